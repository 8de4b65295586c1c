------------------------------- MODULE Routing -------------------------------
(***************************************************************************)
(* One document and its clients (docs/formats/sync.md): subscriptions,     *)
(* the state that opens each, mutations, acknowledgements, leaving and     *)
(* coming back on a connection that stays up.                              *)
(*                                                                         *)
(* A client's messages reach the router in order, some time later. What    *)
(* the router decides to send waits in `pending`, from which it can still  *)
(* be taken back; what is on the `wire` cannot, and arrives in order. With *)
(* StateInBand the state of a subscription travels there too, in one       *)
(* message with `subscribed`. Without it the client asks for the state,    *)
(* and the answer comes `aside`, in no order with the rest.                *)
(*                                                                         *)
(* The client takes every `subscribed` while it wants the document: the    *)
(* newest one is its subscription. `unsubscribed` needs no message here:   *)
(* a client that left listens to nothing.                                  *)
(*                                                                         *)
(* Each rule has a switch. A behaviour keeps all rules but those in `off`; *)
(* with `off` empty, or StateInBand alone in it, every invariant holds,    *)
(* with any other rule in it one breaks. SeqFilter, HoldBack and           *)
(* SubscribeFirst are needed only where StateInBand is left out.           *)
(*                                                                         *)
(* Connections that drop are in Reconnect, networks that lose messages and *)
(* the stream's end that is cut are in Reliable, fairness is in Sending.   *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Clients,
    MaxMutations,        \* mutations made by all clients together
    MaxEpoch,            \* subscriptions of each client
    Variants             \* sets of rules, one of which is left out

VARIABLES
    log,            \* stored mutations: <<client, clock>> at each seq
    subscription,   \* router: the epoch in force of each client, 0: none
    issued,         \* router: the last epoch given to each client
    pending,        \* router: decided, not yet sent
    up,             \* on the way to the router, in order
    wire,           \* on the way to the client, in order
    aside,          \* on the way to the client, in any order
    mode,           \* client: off, asked (for a subscription), awaiting (its state), live
    epoch,          \* client: its subscription, 0: not known
    applied,        \* client: everything up to this seq is in `base`
    reached,        \* client: the highest `applied` since the state was taken
    base,           \* client: mutations that the router told it of
    own,            \* client: clocks of its mutations that are not acknowledged
    held,           \* client: mutations held back until the state comes
    made,           \* every mutation that a client has made
    off             \* the rules left out, from first to last

Keeps(rule) == rule \notin off
\* The state travels in the ordered stream.
StateInBand == Keeps("StateInBand")
\* With a subscription goes what is pending for it.
ClearOnUnsubscribe == Keeps("ClearOnUnsubscribe")
\* An author gets an ack in place of its mutation,
ExcludeAuthor == Keeps("ExcludeAuthor")
\* and gets it in the ordered stream.
AckInBand == Keeps("AckInBand")
\* Messages of another epoch are ignored.
CheckEpoch == Keeps("CheckEpoch")
\* What is not above `applied` is not applied.
SeqFilter == Keeps("SeqFilter")
\* Mutations that come before the state wait for it.
HoldBack == Keeps("HoldBack")
\* The state is asked for once the subscription is in force.
SubscribeFirst == Keeps("SubscribeFirst")
\* A state and its seq are of one moment.
OnePoint == Keeps("OnePoint")
\* Unsubscribe ends the subscription, whichever epoch it names.
EndAnyEpoch == Keeps("EndAnyEpoch")
\* An error about an epoch of the past costs no mutation.
KeepUntilAcked == Keeps("KeepUntilAcked")

router == <<log, subscription, issued>>
client == <<mode, epoch, applied, reached, base, own, held>>
vars == <<log, subscription, issued, pending, up, wire, aside, mode, epoch, applied, reached,
          base, own, held, made, off>>

Each(x) == [c \in Clients |-> x]
Init ==
    /\ log = <<>> /\ subscription = Each(0) /\ issued = Each(0) /\ pending = Each(<<>>)
    /\ up = Each(<<>>) /\ wire = Each(<<>>) /\ aside = Each({})
    /\ mode = Each("off") /\ epoch = Each(0) /\ applied = Each(0) /\ reached = Each(0)
    /\ base = Each({}) /\ own = Each({}) /\ held = Each({}) /\ made = {}
    /\ off \in Variants

Max(numbers) == CHOOSE n \in numbers \cup {0} : \A m \in numbers : m <= n
Upto(n) == {log[i] : i \in 1..n}
\* The highest stored clock of a client.
StoredClock(c) == Max({log[i][2] : i \in {j \in 1..Len(log) : log[j][1] = c}})
InOrder(clocks) == SelectSeq([k \in 1..MaxMutations |-> k], LAMBDA k : k \in clocks)

Subscribed(e, clock) == [type |-> "subscribed", epoch |-> e, clock |-> clock]
State(e, seq, content, clock) ==
    [type |-> "state", epoch |-> e, seq |-> seq, content |-> content, clock |-> clock]
Mutation(e, seq) == [type |-> "mutation", epoch |-> e, seq |-> seq, id |-> log'[seq]]
Ack(e, seq) == [type |-> "ack", epoch |-> e, seq |-> seq, id |-> log'[seq]]
Error(e, clock) == [type |-> "error", epoch |-> e, clock |-> clock]

----------------------------------------------------------------------------
\* What the user of a client does.

AskedFor(c) == issued[c] + Len(SelectSeq(up[c], LAMBDA m : m.type = "subscribe"))
Resend(e, clocks) ==
    LET order == InOrder(clocks)
    IN [i \in 1..Len(order) |-> [type |-> "mutation", epoch |-> e, clock |-> order[i]]]

Subscribe(c) ==
    /\ mode[c] = "off" /\ AskedFor(c) < MaxEpoch
    /\ mode' = [mode EXCEPT ![c] = "asked"]
    /\ LET ask == << [type |-> "subscribe"] >>
           early == IF StateInBand \/ SubscribeFirst THEN <<>>
                    ELSE << [type |-> "get", epoch |-> 0] >>
       IN up' = [up EXCEPT ![c] = @ \o early \o ask]
    /\ UNCHANGED <<router, pending, wire, aside, epoch, applied, reached, base, own, held, made,
                   off>>

Unsubscribe(c) ==
    /\ mode[c] # "off"
    /\ mode' = [mode EXCEPT ![c] = "off"] /\ epoch' = [epoch EXCEPT ![c] = 0]
    /\ held' = [held EXCEPT ![c] = {}]
    /\ up' = [up EXCEPT ![c] = Append(@, [type |-> "unsubscribe", epoch |-> epoch[c]])]
    /\ UNCHANGED <<router, pending, wire, aside, applied, reached, base, own, made, off>>

Mutate(c) ==
    /\ mode[c] = "live" /\ Cardinality(made) < MaxMutations
    /\ LET clock == Cardinality({id \in made : id[1] = c}) + 1
       IN /\ made' = made \cup {<<c, clock>>}
          /\ own' = [own EXCEPT ![c] = @ \cup {clock}]
          /\ up' = [up EXCEPT ![c] = @ \o Resend(epoch[c], {clock})]
    /\ UNCHANGED <<router, pending, wire, aside, mode, epoch, applied, reached, base, held, off>>

----------------------------------------------------------------------------
\* What the router does.

Take(c, type) == up[c] # <<>> /\ Head(up[c]).type = type /\ up' = [up EXCEPT ![c] = Tail(@)]
StateNow(c, e) ==
    \* Without OnePoint the content may have been read before the seq was.
    {State(e, Len(log), n, StoredClock(c)) : n \in (IF OnePoint THEN {Len(log)} ELSE 0..Len(log))}

TakeSubscribe(c) ==
    /\ Take(c, "subscribe")
    /\ LET e == issued[c] + 1
           opening == IF StateInBand THEN StateNow(c, e) ELSE {Subscribed(e, StoredClock(c))}
       IN /\ subscription' = [subscription EXCEPT ![c] = e]
          /\ issued' = [issued EXCEPT ![c] = e]
          /\ \E m \in opening : pending' = [pending EXCEPT ![c] = Append(@, m)]
    /\ UNCHANGED <<log, wire, aside, client, made, off>>

TakeGet(c) ==
    /\ Take(c, "get")
    /\ \E m \in StateNow(c, Head(up[c]).epoch) : aside' = [aside EXCEPT ![c] = @ \cup {m}]
    /\ UNCHANGED <<router, pending, wire, client, made, off>>

TakeUnsubscribe(c) ==
    /\ Take(c, "unsubscribe")
    /\ IF EndAnyEpoch \/ Head(up[c]).epoch \in {0, subscription[c]}
       THEN /\ subscription' = [subscription EXCEPT ![c] = 0]
            /\ pending' = IF ClearOnUnsubscribe THEN [pending EXCEPT ![c] = <<>>] ELSE pending
       ELSE UNCHANGED <<subscription, pending>>
    /\ UNCHANGED <<log, issued, wire, aside, client, made, off>>

Fanout(author, seq, x) ==
    IF subscription[x] = 0 THEN <<>>
    ELSE IF x # author \/ ~ExcludeAuthor THEN << Mutation(subscription[x], seq) >>
    ELSE IF AckInBand THEN << Ack(subscription[x], seq) >>
    ELSE <<>>

TakeMutation(c) ==
    /\ Take(c, "mutation")
    /\ LET m == Head(up[c])
           seq == Len(log) + 1
       IN IF subscription[c] # 0 /\ (CheckEpoch => m.epoch = subscription[c])
          THEN /\ log' = Append(log, <<c, m.clock>>)
               /\ pending' = [x \in Clients |-> pending[x] \o Fanout(c, seq, x)]
               /\ aside' = IF AckInBand \/ ~ExcludeAuthor THEN aside
                           ELSE [aside EXCEPT ![c] = @ \cup {Ack(m.epoch, seq)}]
          \* The client sends it again under its newest subscription, if it still has it.
          ELSE /\ pending' = IF KeepUntilAcked THEN pending
                             ELSE [pending EXCEPT ![c] = Append(@, Error(subscription[c], m.clock))]
               /\ UNCHANGED <<log, aside>>
    /\ UNCHANGED <<subscription, issued, wire, client, made, off>>

Send(c) ==
    /\ pending[c] # <<>>
    /\ pending' = [pending EXCEPT ![c] = Tail(@)]
    /\ wire' = [wire EXCEPT ![c] = Append(@, Head(pending[c]))]
    /\ UNCHANGED <<router, up, aside, client, made, off>>

----------------------------------------------------------------------------
\* What a client does with what it gets.

Ignore == UNCHANGED <<client, up>>
IsOurs(c, m) == mode[c] # "off" /\ (CheckEpoch => m.epoch \in {epoch[c], 0})

\* The newest `subscribed` is the client's subscription; without epochs, the first one it meets.
IsNews(c, m) == IF CheckEpoch THEN mode[c] # "off" ELSE mode[c] = "asked"

\* Take a state, then of what was held back all that is newer, in order.
Restart(c, m) ==
    LET late == {h \in held[c] : SeqFilter => h.seq > m.seq}
        seq == IF late = {} THEN m.seq ELSE Max({h.seq : h \in late})
    IN /\ mode' = [mode EXCEPT ![c] = "live"] /\ epoch' = [epoch EXCEPT ![c] = m.epoch]
       /\ base' = [base EXCEPT ![c] = Upto(m.content) \cup {h.id : h \in late}]
       /\ applied' = [applied EXCEPT ![c] = seq]
       /\ reached' = [reached EXCEPT ![c] = Max({seq, m.seq})]
       /\ held' = [held EXCEPT ![c] = {}]

Remaining(c, m) == {k \in own[c] : k > m.clock}

\* In band: `subscribed` and `state` in one.
TakeOpening(c, m) ==
    IF ~IsNews(c, m) THEN Ignore
    ELSE /\ Restart(c, m)
         /\ own' = [own EXCEPT ![c] = Remaining(c, m)]
         /\ up' = [up EXCEPT ![c] = @ \o Resend(m.epoch, Remaining(c, m))]

TakeSubscribed(c, m) ==
    IF ~IsNews(c, m) THEN Ignore
    ELSE /\ mode' = [mode EXCEPT ![c] = IF SubscribeFirst \/ @ # "live" THEN "awaiting" ELSE @]
         /\ epoch' = [epoch EXCEPT ![c] = m.epoch]
         /\ own' = [own EXCEPT ![c] = Remaining(c, m)]
         /\ held' = IF CheckEpoch THEN [held EXCEPT ![c] = {}] ELSE held
         /\ LET get == IF SubscribeFirst THEN << [type |-> "get", epoch |-> m.epoch] >> ELSE <<>>
            IN up' = [up EXCEPT ![c] = @ \o get \o Resend(m.epoch, Remaining(c, m))]
         /\ UNCHANGED <<applied, reached, base>>

TakeState(c, m) ==
    IF ~IsOurs(c, m) \/ mode[c] = "live" THEN Ignore
    ELSE LET e == IF m.epoch = 0 THEN epoch[c] ELSE m.epoch
             \* Acks that were held back count as well.
             acked == {h.id[2] : h \in {x \in held[c] : x.id[1] = c}}
         IN /\ Restart(c, [m EXCEPT !.epoch = e])
            /\ own' = [own EXCEPT ![c] = Remaining(c, m) \ acked]
            /\ UNCHANGED up

\* A mutation or the acknowledgement of one's own.
TakeOne(c, m) ==
    IF ~IsOurs(c, m) THEN Ignore
    ELSE IF mode[c] # "live"
    THEN /\ held' = IF HoldBack THEN [held EXCEPT ![c] = @ \cup {m}] ELSE held
         /\ UNCHANGED <<mode, epoch, applied, reached, base, own, up>>
    ELSE /\ own' = IF m.id[1] = c THEN [own EXCEPT ![c] = @ \ {m.id[2]}] ELSE own
         /\ IF SeqFilter /\ m.seq <= applied[c] THEN UNCHANGED <<applied, reached, base>>
            ELSE /\ base' = [base EXCEPT ![c] = @ \cup {m.id}]
                 /\ applied' = [applied EXCEPT ![c] = m.seq]
                 /\ reached' = [reached EXCEPT ![c] = Max({@, m.seq})]
         /\ UNCHANGED <<mode, epoch, held, up>>

\* An ack aside: the author has the mutation and now learns its number.
TakeNumber(c, m) ==
    IF ~IsOurs(c, m) \/ mode[c] # "live" THEN Ignore
    ELSE /\ own' = [own EXCEPT ![c] = @ \ {m.id[2]}]
         /\ base' = [base EXCEPT ![c] = @ \cup {m.id}]
         /\ applied' = [applied EXCEPT ![c] = Max({@, m.seq})]
         /\ reached' = [reached EXCEPT ![c] = Max({@, m.seq})]
         /\ UNCHANGED <<mode, epoch, held, up>>

TakeError(c, m) ==
    /\ own' = [own EXCEPT ![c] = @ \ {m.clock}]
    /\ UNCHANGED <<mode, epoch, applied, reached, base, held, up>>

Receive(c) ==
    /\ wire[c] # <<>> /\ wire' = [wire EXCEPT ![c] = Tail(@)]
    /\ LET m == Head(wire[c])
       IN CASE m.type = "subscribed" -> TakeSubscribed(c, m)
            [] m.type = "state" -> TakeOpening(c, m)
            [] m.type = "error" -> TakeError(c, m)
            [] OTHER -> TakeOne(c, m)
    /\ UNCHANGED <<router, pending, aside, made, off>>

ReceiveAside(c) ==
    /\ \E m \in aside[c] :
        /\ aside' = [aside EXCEPT ![c] = @ \ {m}]
        /\ IF m.type = "state" THEN TakeState(c, m) ELSE TakeNumber(c, m)
    /\ UNCHANGED <<router, pending, wire, made, off>>

Route(c) == TakeSubscribe(c) \/ TakeGet(c) \/ TakeUnsubscribe(c) \/ TakeMutation(c)
Next ==
    \E c \in Clients :
        \/ Subscribe(c) \/ Unsubscribe(c) \/ Mutate(c)
        \/ TakeSubscribe(c) \/ TakeGet(c) \/ TakeUnsubscribe(c) \/ TakeMutation(c)
        \/ Send(c) \/ Receive(c) \/ ReceiveAside(c)
Spec == Init /\ [][Next]_vars
FairSpec ==
    /\ Spec
    /\ \A c \in Clients : /\ WF_vars(Route(c)) /\ WF_vars(Send(c))
                          /\ WF_vars(Receive(c)) /\ WF_vars(ReceiveAside(c))

----------------------------------------------------------------------------
IsQuiet(c) == up[c] = <<>> /\ pending[c] = <<>> /\ wire[c] = <<>> /\ aside[c] = {}

\* Pending is of the subscription in force: whoever left gets nothing more than the wire holds.
NoStalePending ==
    \A c \in Clients : \A i \in 1..Len(pending[c]) : pending[c][i].epoch = subscription[c]
AuthorExcluded ==
    \A c \in Clients : \A i \in 1..Len(pending[c]) :
        pending[c][i].type = "mutation" => pending[c][i].id[1] # c
\* While a client is live it never goes back.
NoRegression == \A c \in Clients : mode[c] = "live" => applied[c] = reached[c]
\* A live client has what `applied` says, by content and not by number alone.
Prefix == \A c \in Clients : mode[c] = "live" => base[c] = Upto(applied[c])
\* The seq of an epoch's mutations and acknowledgements has no gaps.
NoGap ==
    \A c \in Clients : (mode[c] = "live" /\ wire[c] # <<>>) =>
        LET m == Head(wire[c])
        IN (m.type \in {"mutation", "ack"} /\ m.epoch = epoch[c]) => m.seq <= applied[c] + 1
\* Once all messages have arrived, whoever subscribed has everything.
NoLoss ==
    \A c \in Clients : (IsQuiet(c) /\ mode[c] # "off") =>
        mode[c] = "live" /\ base[c] = Upto(Len(log)) /\ own[c] = {}
\* ... judged by numbers alone, as an example of a property that sees too little.
NumbersAgree == \A c \in Clients : (IsQuiet(c) /\ mode[c] = "live") => applied[c] = Len(log)
\* ... and whoever left is not subscribed.
Left == \A c \in Clients : (IsQuiet(c) /\ mode[c] = "off") => subscription[c] = 0
\* A mutation is stored, or still with its client.
Kept == \A id \in made : id \in Upto(Len(log)) \/ id[2] \in own[id[1]]
Once == Cardinality(Upto(Len(log))) = Len(log)

\* Whoever waits for a subscription or a state gets it, or leaves.
Answered ==
    \A c \in Clients : (mode[c] \in {"asked", "awaiting"}) ~> (mode[c] \in {"off", "live"})

\* Many variants in one run: says of each what broke first, and follows it no further.
FirstBroken ==
    CASE ~NoStalePending -> "NoStalePending" [] ~AuthorExcluded -> "AuthorExcluded"
      [] ~NoRegression -> "NoRegression" [] ~Prefix -> "Prefix" [] ~NoGap -> "NoGap"
      [] ~NoLoss -> "NoLoss" [] ~Left -> "Left" [] ~Kept -> "Kept" [] ~Once -> "Once"
      [] OTHER -> "nothing"
ASSUME TLCSet(1, {})
Report ==
    /\ off \notin TLCGet(1)
    /\ \/ FirstBroken = "nothing"
       \/ /\ TLCSet(1, TLCGet(1) \cup {off})
          /\ PrintT(<<"broken", off, FirstBroken>>) /\ FALSE
==============================================================================
