------------------------------- MODULE Service -------------------------------
(***************************************************************************)
(* One service and the queues associated with it, several sessions that    *)
(* speak for it one after the other, senders, and a router between them.   *)
(*                                                                         *)
(* SUBS makes a session the owner: what waits in the queues is sent in a   *)
(* fold, queue by queue, and ALLS says that it is done; SUB makes it the   *)
(* owner too, but looks at one queue only. The owner before is displaced   *)
(* and told so (ENDS). One message of each queue is outstanding at a time, *)
(* until it is acknowledged. A session is one connection: it ends at any   *)
(* time, which the router notices later, and a client that comes back is   *)
(* another session. Messages that a session was sent and does not take     *)
(* before it ends are gone with it, but not from their queues.             *)
(*                                                                         *)
(* Without RegisterFirst a subscription looks first, at what waits in its  *)
(* queues, and is registered some time later; what it sends is what it     *)
(* saw. That, without FoldStops, AckHolder and TakeBack, is the form of    *)
(* the router of the protocol's authors. Without AckHolder whatever is     *)
(* first in the queue goes with any acknowledgement.                       *)
(*                                                                         *)
(* Each rule has a switch. A behaviour keeps all rules but those in `off`; *)
(* with `off` empty every invariant holds, with any rule in it one breaks. *)
(*                                                                         *)
(* Plain sessions, GET, slow readers, expiry and deletion are explored in  *)
(* the code itself: tests/model/test_deliveries_core.py.                   *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Sessions,
    Queues,
    MaxMessages,
    MaxAsks,        \* SUB and SUBS of all sessions together
    Variants        \* sets of rules, one of which is left out

VARIABLES
    msgs,       \* messages of each queue, durable, the oldest first
    sent,       \* messages so far; each is its number
    owner,      \* the session that speaks for the service
    link,       \* of each session: up, lost (and the router has not noticed), gone
    outst,      \* of each session and queue the message that is outstanding, or 0
    todo,       \* of each session the queues that it is still going to look at
    alls,       \* of each session whether ALLS is still to come
    bulk,       \* of each session whether it has asked with SUBS
    asking,     \* without RegisterFirst: a subscription that is not registered yet
    seen,       \* and what it saw in each queue, or 0
    out,        \* messages on the way to each session: <<queue, message>>
    got,        \* messages that some client has taken
    covered,    \* queues whose waiting messages the session has asked for
    knows,      \* whether it takes itself for the owner: it subscribed, and was not told ENDS
    ended,      \* whether it was told ENDS and has not subscribed since
    told,       \* messages it was sent since it subscribed or was told ENDS
    owed,       \* messages that waited when it asked with SUBS and that it was not sent
    faults,     \* what was sent and must not be
    asks,       \* SUB and SUBS so far
    off         \* the rules left out, from first to last

Keeps(rule) == rule \notin off
\* A subscription is registered before anybody looks at what waits.
RegisterFirst == Keeps("RegisterFirst")
\* Fold and live path share the slot of each queue.
OneSlot == Keeps("OneSlot")
\* After an acknowledgement the next message is offered.
OfferNext == Keeps("OfferNext")
\* An acknowledgement counts from the owner and for the message that is outstanding.
AckHolder == Keeps("AckHolder")
\* The fold of a displaced session stops.
FoldStops == Keeps("FoldStops")
\* What is outstanding with a displaced session is outstanding no more,
ClearOnEnds == Keeps("ClearOnEnds")
\* and what is with a session that ended, neither.
ClearOnDrop == Keeps("ClearOnDrop")
\* The end of a session is the end of that one, not of the owner that came after it.
DropBySession == Keeps("DropBySession")
\* A displaced session that asks with SUBS again is the owner again.
TakeBack == Keeps("TakeBack")
\* ALLS is said at the end of the fold.
AllsAtEnd == Keeps("AllsAtEnd")

store == <<msgs, sent>>
wire == <<outst, out, told, owed, faults>>
plan == <<todo, alls, bulk, asking, seen, covered>>
vars == <<msgs, sent, owner, link, outst, todo, alls, bulk, asking, seen, out, got, covered, knows,
          ended, told, owed, faults, asks, off>>

Nobody == "nobody"
Nothing == [queues |-> {}, isBulk |-> FALSE]
None == [q \in Queues |-> 0]
Each(x) == [s \in Sessions |-> x]
Init ==
    /\ msgs = [q \in Queues |-> <<>>] /\ sent = 0 /\ owner = Nobody /\ link = Each("up")
    /\ outst = Each(None) /\ todo = Each({}) /\ alls = Each(FALSE) /\ bulk = Each(FALSE)
    /\ asking = Each(Nothing) /\ seen = Each(None) /\ out = Each(<<>>) /\ got = {}
    /\ covered = Each({}) /\ knows = Each(FALSE) /\ ended = Each(FALSE) /\ told = Each({})
    /\ owed = Each({}) /\ faults = {} /\ asks = 0
    /\ off \in Variants

First(row) == IF row = <<>> THEN 0 ELSE Head(row)
Held(row) == {row[i] : i \in 1..Len(row)}
IsWaiting(m) == \E q \in Queues : m \in Held(msgs[q])
Waiting == {First(msgs[q]) : q \in Queues} \ {0}

----------------------------------------------------------------------------
\* Message m of queue q goes to s, on top of what is on its way and outstanding.
Push(s, q, m, onWay, held) ==
    /\ out' = IF link[s] = "up" THEN [onWay EXCEPT ![s] = Append(@, <<q, m>>)] ELSE onWay
    /\ outst' = [held EXCEPT ![s][q] = m]
    /\ told' = [told EXCEPT ![s] = @ \cup {m}]
    /\ owed' = [owed EXCEPT ![s] = @ \ {m}]
    /\ faults' = faults \cup (IF m \in told[s] THEN {"twice"} ELSE {})
                        \cup (IF ended[s] THEN {"late"} ELSE {})

\* A message is stored and, if nothing of its queue is outstanding, the first one offered.
Send(q) ==
    /\ sent < MaxMessages /\ sent' = sent + 1
    /\ msgs' = [msgs EXCEPT ![q] = Append(@, sent + 1)]
    /\ IF owner # Nobody /\ outst[owner][q] = 0
       THEN /\ Push(owner, q, Head(msgs'[q]), out, outst)
            /\ covered' = [covered EXCEPT ![owner] = @ \cup {q}]
       ELSE UNCHANGED <<wire, covered>>
    /\ UNCHANGED <<owner, link, todo, alls, bulk, asking, seen, got, knows, ended, asks, off>>

----------------------------------------------------------------------------
\* Subscribing. `isBulk`: for all queues, with ALLS; else for one, which is then offered again.

Register(s, queues, isBulk) ==
    LET old == IF owner = s THEN Nobody ELSE owner
        again == IF isBulk THEN {} ELSE queues
        ofQueues == UNION {Held(msgs[q]) : q \in queues}
    IN /\ owner' = s
       /\ todo' = [x \in Sessions |-> IF x = s THEN todo[s] \cup queues
                                      ELSE IF x = old /\ FoldStops THEN {} ELSE todo[x]]
       /\ alls' = [x \in Sessions |-> IF x = s THEN alls[s] \/ isBulk
                                      ELSE IF x = old /\ FoldStops THEN FALSE ELSE alls[x]]
       /\ bulk' = [x \in Sessions |-> IF x = s THEN bulk[s] \/ isBulk
                                      ELSE IF x = old /\ TakeBack THEN FALSE ELSE bulk[x]]
       /\ outst' = [x \in Sessions |->
            IF x = s THEN [q \in Queues |-> IF q \in again THEN 0 ELSE outst[s][q]]
            ELSE IF x = old /\ ClearOnEnds THEN None ELSE outst[x]]
       /\ covered' = [x \in Sessions |-> IF x = s THEN covered[s] \cup queues
                                         ELSE IF x = old THEN {} ELSE covered[x]]
       /\ knows' = [x \in Sessions |-> IF x = s THEN link[s] = "up"
                                       ELSE IF x = old THEN FALSE ELSE knows[x]]
       /\ ended' = [x \in Sessions |-> IF x = s THEN FALSE ELSE IF x = old THEN TRUE ELSE ended[x]]
       /\ told' = [x \in Sessions |-> IF x = s THEN (IF isBulk THEN told[s] ELSE told[s] \ ofQueues)
                                      ELSE IF x = old THEN {} ELSE told[x]]
       /\ owed' = [x \in Sessions |-> IF x = s /\ isBulk THEN Waiting \ told[s]
                                      ELSE IF x = old THEN {} ELSE owed[x]]
       /\ UNCHANGED <<store, link, out, got, faults, off>>

\* In the wrong order: it looks, and is registered when its turn comes.
Look(s, queues, isBulk) ==
    /\ asking' = [asking EXCEPT ![s] = [queues |-> queues, isBulk |-> isBulk]]
    /\ seen' = [seen EXCEPT ![s] = [q \in Queues |-> IF q \in queues THEN First(msgs[q]) ELSE @[q]]]
    /\ UNCHANGED <<store, owner, link, wire, todo, alls, bulk, got, covered, knows, ended, off>>

CanAsk(s) == link[s] = "up" /\ asks < MaxAsks /\ asking[s] = Nothing

Subs(s) ==
    /\ CanAsk(s) /\ asks' = asks + 1
    /\ owner = s => ~bulk[s]
    /\ IF bulk[s] /\ ~TakeBack
       \* It is answered, and nothing happens.
       THEN /\ knows' = [knows EXCEPT ![s] = TRUE]
            /\ UNCHANGED <<store, owner, link, wire, plan, got, ended, off>>
       ELSE IF RegisterFirst THEN Register(s, Queues, TRUE) /\ UNCHANGED <<asking, seen>>
       ELSE Look(s, Queues, TRUE)

Sub(s, q) ==
    /\ CanAsk(s) /\ asks' = asks + 1
    /\ IF RegisterFirst THEN Register(s, {q}, FALSE) /\ UNCHANGED <<asking, seen>>
       ELSE Look(s, {q}, FALSE)

RegisterLate(s) ==
    /\ asking[s] # Nothing /\ asking' = [asking EXCEPT ![s] = Nothing]
    /\ Register(s, asking[s].queues, asking[s].isBulk)
    /\ UNCHANGED <<seen, asks>>

\* The next queue of a fold, or the one of a SUB.
FoldStep(s) ==
    /\ asking[s] = Nothing
    /\ \E q \in todo[s] :
        LET m == IF RegisterFirst THEN First(msgs[q]) ELSE seen[s][q]
        IN /\ todo' = [todo EXCEPT ![s] = @ \ {q}]
           /\ IF m # 0 /\ (OneSlot => outst[s][q] = 0) THEN Push(s, q, m, out, outst)
              ELSE UNCHANGED wire
    /\ UNCHANGED <<store, owner, link, alls, bulk, asking, seen, got, covered, knows, ended, asks,
                   off>>

SayAlls(s) ==
    /\ alls[s] /\ (AllsAtEnd => todo[s] = {})
    /\ alls' = [alls EXCEPT ![s] = FALSE]
    /\ faults' = faults \cup (IF ended[s] THEN {"late"} ELSE {})
                        \cup (IF \E m \in owed[s] : IsWaiting(m) THEN {"early"} ELSE {})
    /\ UNCHANGED <<store, owner, link, outst, out, told, owed, todo, bulk, asking, seen, got,
                   covered, knows, ended, asks, off>>

----------------------------------------------------------------------------
\* A client takes the next message and acknowledges it.
Take(s) ==
    /\ out[s] # <<>> /\ link[s] = "up"
    /\ LET q == Head(out[s])[1]
           m == Head(out[s])[2]
           counts == AckHolder => s = owner /\ outst[s][q] = m
           isFirst == msgs[q] # <<>> /\ (AckHolder => Head(msgs[q]) = m)
           rest == IF counts /\ isFirst THEN Tail(msgs[q]) ELSE msgs[q]
           onWay == [out EXCEPT ![s] = Tail(@)]
           held == IF counts THEN [outst EXCEPT ![s][q] = 0] ELSE outst
       IN /\ got' = got \cup {m}
          /\ msgs' = [msgs EXCEPT ![q] = rest]
          /\ IF counts /\ s = owner /\ rest # <<>> /\ OfferNext
             THEN Push(s, q, Head(rest), onWay, held)
             ELSE out' = onWay /\ outst' = held /\ UNCHANGED <<told, owed, faults>>
    /\ UNCHANGED <<sent, owner, link, plan, knows, ended, asks, off>>

\* The connection is lost, and what was on its way to the client.
Drop(s) ==
    /\ link[s] = "up" /\ link' = [link EXCEPT ![s] = "lost"]
    /\ out' = [out EXCEPT ![s] = <<>>] /\ knows' = [knows EXCEPT ![s] = FALSE]
    /\ UNCHANGED <<store, owner, outst, told, owed, faults, plan, got, ended, asks, off>>

Notice(s) ==
    /\ link[s] = "lost" /\ link' = [link EXCEPT ![s] = "gone"]
    /\ owner' = IF owner = s \/ ~DropBySession THEN Nobody ELSE owner
    /\ outst' = IF ClearOnDrop THEN [outst EXCEPT ![s] = None] ELSE outst
    /\ todo' = [todo EXCEPT ![s] = {}] /\ alls' = [alls EXCEPT ![s] = FALSE]
    /\ asking' = [asking EXCEPT ![s] = Nothing] /\ seen' = [seen EXCEPT ![s] = None]
    /\ bulk' = [bulk EXCEPT ![s] = FALSE] /\ covered' = [covered EXCEPT ![s] = {}]
    /\ ended' = [ended EXCEPT ![s] = FALSE] /\ told' = [told EXCEPT ![s] = {}]
    /\ owed' = [owed EXCEPT ![s] = {}]
    /\ UNCHANGED <<store, out, got, knows, faults, asks, off>>

Next ==
    \/ \E q \in Queues : Send(q)
    \/ \E s \in Sessions :
        \/ Subs(s) \/ RegisterLate(s) \/ FoldStep(s) \/ SayAlls(s) \/ Take(s)
        \/ Drop(s) \/ Notice(s) \/ \E q \in Queues : Sub(s, q)
Spec == Init /\ [][Next]_vars
FairSpec ==
    /\ Spec
    /\ \A s \in Sessions : /\ WF_vars(RegisterLate(s)) /\ WF_vars(FoldStep(s)) /\ WF_vars(SayAlls(s))
                           /\ WF_vars(Take(s)) /\ WF_vars(Notice(s))

----------------------------------------------------------------------------
\* A message is in its queue until a client has taken it.
NoLoss == \A m \in 1..sent : IsWaiting(m) \/ m \in got
OneHolder == \A q \in Queues : Cardinality({s \in Sessions : outst[s][q] # 0}) <= 1
\* What is outstanding can be acknowledged: it is on its way to its session.
Answerable ==
    \A s \in Sessions, q \in Queues : (link[s] = "up" /\ outst[s][q] # 0) =>
        \E i \in 1..Len(out[s]) : out[s][i] = <<q, outst[s][q]>>
\* Of a queue that the owner asked for, what waits is outstanding, or is going to be looked at.
NoStuck ==
    \A q \in Queues : (owner # Nobody /\ msgs[q] # <<>> /\ q \in covered[owner]) =>
        \/ outst[owner][q] # 0
        \/ q \in todo[owner] /\ (RegisterFirst \/ seen[owner][q] # 0)
\* Whoever subscribed and was not told of the end is the owner.
Known == \A s \in Sessions : knows[s] => owner = s
NoDoubleSend == "twice" \notin faults
QuietAfterEnds == "late" \notin faults
AllsLast == "early" \notin faults

\* What the owner asked for is taken, as long as there is an owner that stays.
Drains ==
    \A m \in 1..MaxMessages, s \in Sessions :
        (owner = s /\ \E q \in covered[s] : m \in Held(msgs[q]))
            ~> (~IsWaiting(m) \/ owner # s \/ link[s] # "up")

\* Many variants in one run: says of each what broke first, and follows it no further.
FirstBroken ==
    CASE ~NoLoss -> "NoLoss" [] ~NoDoubleSend -> "NoDoubleSend"
      [] ~QuietAfterEnds -> "QuietAfterEnds" [] ~AllsLast -> "AllsLast" [] ~Known -> "Known"
      [] ~OneHolder -> "OneHolder" [] ~Answerable -> "Answerable" [] ~NoStuck -> "NoStuck"
      [] OTHER -> "nothing"
ASSUME TLCSet(1, {})
Report ==
    /\ off \notin TLCGet(1)
    /\ \/ FirstBroken = "nothing"
       \/ /\ TLCSet(1, TLCGet(1) \cup {off})
          /\ PrintT(<<"broken", off, FirstBroken>>) /\ FALSE
==============================================================================
