-------------------------------- MODULE Drift --------------------------------
(***************************************************************************)
(* A service has a set of associated queues at its router, and a client    *)
(* has in its store the set that it takes for the same. Faults make them   *)
(* differ; a repair finds out how, and makes them the same again, while    *)
(* the application goes on creating, deleting and wanting queues.          *)
(*                                                                         *)
(* What makes them differ: a connection breaks and takes commands and      *)
(* answers with it; the router or the client is restored from an older     *)
(* state; the router loses all associations; an operator deletes a queue;  *)
(* the digest that the router keeps of its set is wrong.                   *)
(*                                                                         *)
(* A repair asks for the set in two questions, each answered from the set  *)
(* as it is then, and compares with the client's set as it was when the    *)
(* round began. What only the router has is associated here too, or        *)
(* removed there (BUS); what only the client has is subscribed again (SUB) *)
(* or given up here. Then both sets are compared as a whole; if they are   *)
(* not the same, another round begins, and after the last one the repair   *)
(* says that it failed.                                                    *)
(*                                                                         *)
(* Questions are answered aside: an answer to one may come before answers  *)
(* to commands that it counts already, or after those to later commands.   *)
(*                                                                         *)
(* Both older states are the one at the start, with the queues in `Live`.  *)
(* A connection that broke is followed by another one at once.             *)
(*                                                                         *)
(* Each rule has a switch. A behaviour keeps all rules but those in `off`; *)
(* with `off` empty every invariant holds, with any rule in it one breaks. *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Ids,
    Live,           \* those that are there at the start
    MaxChanges,     \* of the application
    MaxFaults,
    MaxRounds,      \* of a repair
    Holds,          \* whether commands of the application wait until the repair is over
    Variants        \* sets of rules, one of which is left out

VARIABLES
    alive,      \* queues that the router has
    theirs,     \* those of them that it has associated with the service
    kept,       \* the set whose digest it keeps
    taken,      \* those that another connection has subscribed to by themselves
    known,      \* queues in the client's store
    wanted,     \* those of them that are to deliver
    ours,       \* those that count as associated
    failed,     \* those of which it was told on this connection that it cannot have them
    fresh,      \* ids that were never used
    up,         \* on the way to the router
    down,       \* on the way to the client
    phase,      \* of the repair: idle, asking, fixing, checking
    snap,       \* what the client had when the round began
    todo,       \* what is different: <<"missing", x>>, <<"extra", x>>
    acted,      \* whether anything of it was to be done
    round, changes, faults,
    result,     \* of the last repair: none, equal, failed
    clean,      \* no fault since it began
    calm,       \* nor any other command or change
    harm,       \* what it did and must not do
    off         \* the rules left out, from first to last

Keeps(rule) == rule \notin off
\* What is to be done about an id is decided when it is done, from the store as it is then.
Recheck == Keeps("Recheck")
\* What the router has and we know and want is associated here, not removed there.
KeepKnown == Keeps("KeepKnown")
\* What we do not know is removed only when no new queue is unanswered: it may be that one.
SettleFirst == Keeps("SettleFirst")
\* Commands of a connection take effect in the order in which they were sent.
InOrder == Keeps("InOrder")
\* What is not wanted is not subscribed again, but given up here.
WantedOnly == Keeps("WantedOnly")
\* What another connection took meanwhile is left to it: lists may be older than that.
LeaveTaken == Keeps("LeaveTaken")
\* What the router refuses for good is given up here.
DropRefused == Keeps("DropRefused")
\* What it refuses for the moment is not.
FinalOnly == Keeps("FinalOnly")
\* What we do not know is removed there.
RemoveUnknown == Keeps("RemoveUnknown")
\* Lists that do not lead from one digest to the other are not believed.
CheckLists == Keeps("CheckLists")
\* The sets are compared when all repairs were answered,
AnsweredFirst == Keeps("AnsweredFirst")
\* and while anything was done, not before they were found to be the same is it a success.
Verify == Keeps("Verify")
\* What the router says of its set it counts from the ids; a kept digest that differs is mended.
CountIds == Keeps("CountIds")
\* Where commands are held, they are held until the repairs were made.
HoldToEnd == Keeps("HoldToEnd")

router == <<alive, theirs, kept, taken>>
store == <<known, wanted, ours, failed>>
repair == <<phase, snap, todo, acted, round>>
counts == <<changes, faults>>
vars == <<alive, theirs, kept, taken, known, wanted, ours, failed, fresh, up, down, phase, snap,
          todo, acted, round, changes, faults, result, clean, calm, harm, off>>

Init ==
    /\ alive = Live /\ theirs = Live /\ kept = Live /\ taken = {}
    /\ known = Live /\ wanted = Live /\ ours = Live /\ failed = {} /\ fresh = Ids \ Live
    /\ up = <<>> /\ down = <<>> /\ phase = "idle" /\ snap = {} /\ todo = {} /\ acted = FALSE
    /\ round = 0 /\ changes = 0 /\ faults = 0
    /\ result = "none" /\ clean = TRUE /\ calm = FALSE /\ harm = {}
    /\ off \in Variants

Sent(m) == \E i \in 1..Len(up) : up[i] = m
Coming(m) == \E i \in 1..Len(down) : down[i] = m
IsSubscribing(x) ==
    Sent(<<"sub", x>>) \/ Coming(<<"sok", x>>) \/ Coming(<<"auth", x>>) \/ Coming(<<"busy", x>>)
IsCreating == \E x \in Ids : Sent(<<"new", x>>) \/ Coming(<<"made", x>>)
IsDeleting(x) == Sent(<<"del", x>>) \/ Coming(<<"gone", x>>)
\* The client takes it for associated, or is about to.
IsLive(x) ==
    \/ x \in wanted \cap ours \/ Coming(<<"made", x>>)
    \/ x \in wanted /\ Coming(<<"sok", x>>)
\* The application does not want it any more, and the router is not about to delete it.
IsToGo(x) == x \in known \ wanted /\ ~IsDeleting(x)
Without(row, i) == SubSeq(row, 1, i - 1) \o SubSeq(row, i + 1, Len(row))
\* XOR: what came is in, what went is out, and coming twice is as not at all.
Toggled(set, one) == (set \cup one) \ (set \cap one)
Different(old, new) == (old \ new) \cup (new \ old)

----------------------------------------------------------------------------
\* The application, and the agent that subscribes what is wanted.

IsHeld == Holds /\ IF HoldToEnd THEN phase # "idle" ELSE phase = "asking"
Change ==
    /\ changes < MaxChanges /\ changes' = changes + 1 /\ ~IsHeld /\ calm' = FALSE
    /\ UNCHANGED <<router, down, repair, faults, result, clean, harm, off>>

Create(x) ==
    /\ Change /\ x \in fresh /\ fresh' = fresh \ {x} /\ up' = Append(up, <<"new", x>>)
    /\ UNCHANGED store

Delete(x) ==
    /\ Change /\ x \in known /\ ~IsDeleting(x)
    /\ wanted' = wanted \ {x} /\ up' = Append(up, <<"del", x>>)
    /\ UNCHANGED <<known, ours, failed, fresh>>

Want(x) ==
    /\ Change /\ x \in (known \ wanted) \cup failed /\ ~IsDeleting(x)
    /\ wanted' = wanted \cup {x} /\ failed' = failed \ {x}
    /\ UNCHANGED <<known, ours, fresh, up>>

Pending == {x \in wanted \ (ours \cup failed) : ~IsSubscribing(x)}
Subscribe(x) ==
    /\ x \in Pending /\ ~IsHeld /\ up' = Append(up, <<"sub", x>>) /\ calm' = FALSE
    /\ UNCHANGED <<router, store, fresh, down, repair, counts, result, clean, harm, off>>

----------------------------------------------------------------------------
\* The router.

Reply(m) == down' = Append(down, m)
Associated(new) == theirs' = new /\ kept' = Toggled(kept, Different(theirs, new))

ServeAt(i) ==
    /\ i \in 1..Len(up) /\ (InOrder => i = 1) /\ up' = Without(up, i)
    /\ LET kind == up[i][1]
           x == up[i][2]
       IN CASE kind = "new" ->
                /\ alive' = alive \cup {x} /\ Associated(theirs \cup {x}) /\ Reply(<<"made", x>>)
                /\ UNCHANGED <<taken, harm>>
            [] kind = "sub" ->
                /\ IF x \in alive
                   THEN /\ Associated(theirs \cup {x}) /\ taken' = taken \ {x}
                        /\ Reply(<<"sok", x>>)
                   ELSE Reply(<<"auth", x>>) /\ UNCHANGED <<theirs, kept, taken>>
                /\ UNCHANGED <<alive, harm>>
            [] kind = "del" ->
                /\ alive' = alive \ {x} /\ taken' = taken \ {x} /\ Associated(theirs \ {x})
                /\ Reply(<<"gone", x>>) /\ UNCHANGED harm
            [] kind = "bus" ->
                /\ Associated(theirs \ {x}) /\ UNCHANGED <<alive, taken, down>>
                /\ harm' = harm \cup (IF x \in theirs /\ IsLive(x) THEN {"live"} ELSE {})
            [] kind = "read" ->
                /\ kept' = IF CountIds THEN theirs ELSE kept
                /\ Reply(<<"list", x, theirs \cap x, TRUE>>)
                /\ UNCHANGED <<alive, theirs, taken, harm>>
            [] kind = "state" ->
                /\ Reply(<<"set", IF CountIds THEN theirs ELSE kept>>)
                /\ UNCHANGED <<router, harm>>
    /\ UNCHANGED <<store, fresh, repair, counts, result, clean, calm, off>>
Serve == \E i \in 1..Len(up) : ServeAt(i)

\* It goes through its sets from time to time, and mends digests that are wrong.
Walk ==
    /\ kept # theirs /\ kept' = theirs
    /\ UNCHANGED <<alive, theirs, taken, store, fresh, up, down, repair, counts, result, clean,
                   calm, harm, off>>

----------------------------------------------------------------------------
\* The repair.

Missing(x) ==
    CASE x \in ours -> "nothing"
      [] x \in wanted /\ KeepKnown -> IF x \in failed /\ LeaveTaken THEN "nothing" ELSE "keep"
      [] OTHER -> IF RemoveUnknown THEN "bus" ELSE "nothing"
Extra(x) ==
    CASE x \notin ours -> "nothing"
      [] x \in wanted -> "sub"
      [] OTHER -> IF WantedOnly THEN "leave" ELSE "sub"
Decision(task) ==
    CASE task[1] = "missing" -> Missing(task[2])
      [] task[1] = "extra" -> Extra(task[2])
      [] OTHER -> task[1]
\* Without Recheck: decided as soon as the difference is known.
Noted(task) == IF Recheck THEN task ELSE <<Decision(task), task[2]>>

\* The first question is about one of the ids, the second about the others.
First == {CHOOSE x \in Ids : TRUE}
Ask(part) == up' = Append(up, <<"read", part>>)
BeginRound ==
    phase' = "asking" /\ snap' = ours /\ todo' = {} /\ acted' = FALSE /\ Ask(First)
End(how) ==
    /\ phase' = "idle" /\ snap' = {} /\ todo' = {} /\ acted' = FALSE /\ round' = 0
    /\ result' = how
NextRound ==
    IF round < MaxRounds THEN BeginRound /\ round' = round + 1 /\ UNCHANGED result
    ELSE End("failed") /\ UNCHANGED up

IsAnswered == ~\E x \in Ids :
    \/ IsSubscribing(x) \/ IsDeleting(x) \/ Sent(<<"new", x>>) \/ Coming(<<"made", x>>)
Begin ==
    /\ phase = "idle" /\ round' = 1
    /\ Holds => IsAnswered
    /\ BeginRound
    /\ result' = "none" /\ clean' = TRUE /\ calm' = (up = <<>> /\ down = <<>>)
    /\ UNCHANGED <<router, store, fresh, down, counts, harm, off>>

TakeList(part, found, isRight) ==
    IF ~isRight /\ CheckLists THEN NextRound
    ELSE /\ todo' = todo \cup {Noted(<<"missing", x>>) : x \in found \ snap}
                         \cup {Noted(<<"extra", x>>) : x \in (snap \cap part) \ found}
         /\ IF part = First /\ Ids # First THEN Ask(Ids \ First) /\ UNCHANGED phase
            ELSE phase' = "fixing" /\ UNCHANGED up
         /\ UNCHANGED <<snap, acted, round, result>>

FixOne(task) ==
    /\ phase = "fixing" /\ task \in todo /\ todo' = todo \ {task}
    /\ LET x == task[2]
           decision == Decision(task)
       IN /\ (decision = "bus" /\ SettleFirst) => ~IsCreating
          /\ ours' = CASE decision = "keep" -> ours \cup {x}
                       [] decision = "leave" -> ours \ {x}
                       [] OTHER -> ours
          /\ acted' = (acted \/ decision # "nothing")
          /\ up' = IF decision \in {"sub", "bus"} THEN Append(up, <<decision, x>>) ELSE up
          /\ harm' = harm \cup IF decision # "sub" THEN {}
                              ELSE (IF IsToGo(x) THEN {"unwanted"} ELSE {})
                                   \cup (IF x \in failed \cap taken THEN {"taken"} ELSE {})
    /\ UNCHANGED <<router, known, wanted, failed, fresh, down, phase, snap, round, counts, result,
                   clean, calm, off>>
Fix == \E task \in todo : FixOne(task)

Compare ==
    /\ phase = "fixing" /\ todo = {}
    /\ AnsweredFirst => ~\E x \in Ids : IsSubscribing(x)
    /\ IF acted /\ Verify
       THEN /\ phase' = "checking" /\ up' = Append(up, <<"state", {}>>)
            /\ UNCHANGED <<snap, todo, acted, round, result>>
       ELSE End("equal") /\ UNCHANGED up
    /\ UNCHANGED <<router, store, fresh, down, counts, clean, calm, harm, off>>

TakeSet(found) == IF found = ours THEN End("equal") /\ UNCHANGED up ELSE NextRound

----------------------------------------------------------------------------
\* The client takes what came.

IsAside(m) == m[1] \in {"list", "set"}
IsNext(i) == \A j \in 1..i - 1 : IsAside(down[j]) # IsAside(down[i])
Forget(x) ==
    /\ known' = known \ {x} /\ wanted' = wanted \ {x} /\ ours' = ours \ {x}
    /\ failed' = failed \ {x}

TakeAt(i) ==
    /\ i \in 1..Len(down) /\ IsNext(i) /\ down' = Without(down, i)
    /\ LET kind == down[i][1]
           x == down[i][2]
       IN CASE kind = "list" -> TakeList(x, down[i][3], down[i][4]) /\ UNCHANGED store
            [] kind = "set" -> TakeSet(x) /\ UNCHANGED store
            [] OTHER ->
                /\ UNCHANGED <<up, repair, result>>
                /\ CASE kind = "made" ->
                        /\ known' = known \cup {x} /\ wanted' = wanted \cup {x}
                        /\ ours' = ours \cup {x} /\ UNCHANGED failed
                     [] kind = "sok" /\ x \in known ->
                        /\ ours' = ours \cup {x} /\ failed' = failed \ {x}
                        /\ UNCHANGED <<known, wanted>>
                     [] kind = "auth" /\ x \in known ->
                        /\ ours' = IF DropRefused THEN ours \ {x} ELSE ours
                        /\ failed' = failed \cup {x} /\ UNCHANGED <<known, wanted>>
                     [] kind = "busy" /\ x \in known ->
                        /\ ours' = ours \ {x}
                        /\ failed' = IF FinalOnly THEN failed ELSE failed \cup {x}
                        /\ UNCHANGED <<known, wanted>>
                     [] kind = "end" /\ x \in known ->
                        /\ ours' = ours \ {x} /\ failed' = failed \cup {x}
                        /\ UNCHANGED <<known, wanted>>
                     [] kind = "gone" -> Forget(x)
                     [] OTHER -> UNCHANGED store
    /\ UNCHANGED <<router, fresh, counts, clean, calm, harm, off>>
Take == \E i \in 1..Len(down) : TakeAt(i)

----------------------------------------------------------------------------
\* Faults.

Fault ==
    /\ faults < MaxFaults /\ faults' = faults + 1 /\ calm' = FALSE
    /\ UNCHANGED <<fresh, changes, harm, off>>
\* With the connection goes what was on it, and the repair.
Cut ==
    /\ up' = <<>> /\ down' = <<>> /\ failed' = {}
    /\ IF phase = "idle" THEN UNCHANGED <<repair, result>> ELSE End("none")

\* After these nothing is promised of the repair that was under way, or had just been made.
Disturbance == Fault /\ clean' = FALSE
Break == Disturbance /\ Cut /\ UNCHANGED <<router, known, wanted, ours>>
RestoreRouter ==
    /\ Disturbance /\ Cut /\ alive' = Live /\ theirs' = Live /\ kept' = Live /\ taken' = {}
    /\ UNCHANGED <<known, wanted, ours>>
LoseAssociations ==
    /\ Disturbance /\ Cut /\ theirs' = {} /\ kept' = {} /\ taken' = {}
    /\ UNCHANGED <<alive, known, wanted, ours>>
RestoreClient ==
    /\ Disturbance /\ Cut /\ known' = Live /\ wanted' = Live /\ ours' = Live
    /\ UNCHANGED router
Damage(set) ==
    /\ Disturbance /\ set # kept /\ kept' = set
    /\ UNCHANGED <<alive, theirs, taken, store, up, down, repair, result>>
\* These a repair has to cope with. An operator deletes a queue:
Remove(x) ==
    /\ Fault /\ x \in alive /\ alive' = alive \ {x} /\ taken' = taken \ {x}
    /\ Associated(theirs \ {x})
    /\ IF x \in theirs THEN Reply(<<"gone", x>>) ELSE UNCHANGED down
    /\ UNCHANGED <<store, up, repair, result, clean>>
\* A connection without a service subscribes to it, and takes it out of the service:
TakeAway(x) ==
    /\ Fault /\ x \in theirs /\ taken' = taken \cup {x} /\ Associated(theirs \ {x})
    /\ Reply(<<"end", x>>) /\ UNCHANGED <<alive, store, up, repair, result, clean>>
\* The router cannot do it now, and says so, or nothing until the client waits no longer:
Refuse(isSaid) ==
    /\ Fault /\ up # <<>> /\ Head(up)[1] = "sub" /\ up' = Tail(up)
    /\ IF isSaid THEN Reply(<<"busy", Head(up)[2]>>) ELSE UNCHANGED down
    /\ UNCHANGED <<router, store, repair, result, clean>>
\* A list is not what it should be: two ids have the same hash.
Mislead(set) ==
    /\ Fault
    /\ \E i \in 1..Len(down) :
        /\ down[i][1] = "list" /\ set \subseteq down[i][2] /\ set # down[i][3]
        /\ down' = [down EXCEPT ![i] = <<"list", @[2], set, FALSE>>]
    /\ UNCHANGED <<router, store, up, repair, result, clean>>

Step ==
    \/ \E x \in Ids : Create(x) \/ Delete(x) \/ Want(x) \/ Subscribe(x)
                  \/ Remove(x) \/ TakeAway(x)
    \/ Serve \/ Walk \/ Take \/ Fix \/ Compare
    \/ Break \/ RestoreRouter \/ LoseAssociations \/ RestoreClient
    \/ \E isSaid \in BOOLEAN : Refuse(isSaid)
    \/ \E set \in SUBSET Ids : Damage(set) \/ Mislead(set)
Next == Step \/ Begin
Spec == Init /\ [][Next]_vars
\* For what happens in the end: a repair begins where the digests differ.
Detect == kept # ours /\ Begin
FairSpec ==
    /\ Init /\ [][Step \/ Detect]_vars
    /\ WF_vars(Serve) /\ WF_vars(Walk) /\ WF_vars(Take) /\ WF_vars(Fix) /\ WF_vars(Compare)
    /\ WF_vars(Detect) /\ \A x \in Ids : WF_vars(Subscribe(x))

----------------------------------------------------------------------------
IsAtRest == phase = "idle" /\ up = <<>> /\ down = <<>>
IsRepaired == IsAtRest /\ result = "equal" /\ clean
\* After a repair that no fault disturbed both have the same, whatever else went on.
Converged == IsRepaired => ours = theirs
\* And the digest that the router keeps is the one of its set: it does not tell of drift for ever.
Mended == IsRepaired => kept = theirs
\* Whatever is wanted, and is there, delivers.
Delivered == (IsRepaired /\ Pending = {}) => (wanted \cap alive) \ taken \subseteq theirs
\* A repair takes nothing away that is in use,
LiveKept == "live" \notin harm
\* and brings nothing back that is to go.
NotBroughtBack == "unwanted" \notin harm
\* What others took it leaves to them.
NotTakenBack == "taken" \notin harm
\* It fails only where something else goes on.
Succeeds == result = "failed" => ~calm
InStore == theirs \subseteq alive /\ ours \subseteq known /\ wanted \subseteq known

\* A repair ends, with success or not.
Ends == phase # "idle" ~> phase = "idle"
\* Once faults and changes are over, all that is wanted and is there delivers.
Heals == <>[]((wanted \cap alive) \ (taken \cup failed) \subseteq theirs /\ ours = theirs)

\* Many variants in one run: says of each what broke first, and follows it no further.
FirstBroken ==
    CASE ~LiveKept -> "LiveKept" [] ~NotBroughtBack -> "NotBroughtBack"
      [] ~NotTakenBack -> "NotTakenBack" [] ~Converged -> "Converged"
      [] ~Mended -> "Mended" [] ~Delivered -> "Delivered" [] ~Succeeds -> "Succeeds"
      [] ~InStore -> "InStore"
      [] OTHER -> "nothing"
ASSUME TLCSet(1, {})
Report ==
    /\ off \notin TLCGet(1)
    /\ \/ FirstBroken = "nothing"
       \/ /\ TLCSet(1, TLCGet(1) \cup {off})
          /\ PrintT(<<"broken", off, FirstBroken>>) /\ FALSE
==============================================================================
