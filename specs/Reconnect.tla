------------------------------ MODULE Reconnect ------------------------------
(***************************************************************************)
(* One client whose connections drop, one document, and all other clients  *)
(* as somebody who stores mutations at any time. The three policies of     *)
(* docs/formats/sync.md say what a dropped connection leaves behind:       *)
(*                                                                         *)
(*   clean    nothing: the client subscribes again and gets the state;     *)
(*   intent   the subscription: on return it gets the state unasked;       *)
(*   resume   the subscription and how far the client has acknowledged: it *)
(*            gets what is missing by seq, or the state if that was cut.   *)
(*                                                                         *)
(* Whatever the policy, a client that `offers` says in `subscribe` how far *)
(* it is, and gets what is missing if that is still in the stream.         *)
(*                                                                         *)
(* A connection is ordered both ways and ends at any point: what was on    *)
(* its way to the client is gone, of what was on its way to the router a   *)
(* first part still arrives, and the router notices the end late, possibly *)
(* after the next connection has come. Epochs begin anew with each.        *)
(*                                                                         *)
(* The client makes mutations at any time and keeps them until they are    *)
(* acknowledged. Its replica is a base, in the order of seq, with these on *)
(* top. The router cuts off the stream as it likes: no tracker holds it    *)
(* back here (that is in Reliable). While the client is away the document  *)
(* may be deleted and made again: another incarnation.                     *)
(*                                                                         *)
(* Each rule has a switch. A behaviour keeps all rules but those in `off`; *)
(* with `off` empty every invariant holds, with any rule in it one breaks. *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    MaxOwn,         \* mutations that the client makes
    MaxOthers,      \* mutations that others make
    MaxConnections,
    MaxIncarnation,
    Policies,       \* policies, and
    Offers,         \* whether the client offers what it has: one of each is tried
    Variants        \* sets of rules, one of which is left out

VARIABLES
    log,            \* at each seq the clock of the client's own mutation, or 0: somebody else's
    base,           \* the stream is cut off up to this seq
    incarnation,    \* the life of the document
    others,         \* mutations that others made so far
    connection,     \* router: the client's connection, 0: none
    subscription,   \* router: the epoch in force, 0: none
    issued,         \* router: the last epoch given on this connection
    offset,         \* router: how far the client is known to be, or Unknown
    kept,           \* router: what the last connection left: Nothing, Unknown or an offset
    pending,        \* router: decided, not yet sent
    up,             \* of each connection, on the way to the router
    wire,           \* on the way to the client
    link,           \* client: its connection, 0: none
    opened,         \* client: connections so far
    mode,           \* client: down, asked (for a subscription), awaiting (its state), live
    epoch,          \* client: its subscription
    life,           \* client: the incarnation that it has something of, 0: none
    applied,        \* client: how far its base is
    have,           \* client: <<incarnation, seq>> of what is in its base
    own,            \* client: clocks of mutations it keeps
    made,           \* client: its highest clock
    told,           \* client: the highest seq it has acknowledged in this epoch
    gone,           \* clocks that were stored in a former life
    policy, offers, \* from first to last
    off             \* the rules left out, from first to last

Keeps(rule) == rule \notin off
\* With a connection goes what is pending for it.
ClearOnDrop == Keeps("ClearOnDrop")
\* The end of a connection is the end of that one only, not of the one that displaced it.
DropByConnection == Keeps("DropByConnection")
\* Of a connection that was displaced nothing more is read.
DisplacedIsUnread == Keeps("DisplacedIsUnread")
\* The offset that is kept is what the client acknowledged, not what was sent to it.
OffsetIsAcknowledged == Keeps("OffsetIsAcknowledged")
\* If what is missing was cut off, the client gets the state.
GapMeansState == Keeps("GapMeansState")
\* What the client has of another incarnation means nothing.
CheckIncarnation == Keeps("CheckIncarnation")
\* What `clock` covers is kept until its ack or a state comes, though not sent again.
KeepUntilPlaced == Keeps("KeepUntilPlaced")
\* `subscribed` says which clock is stored, and what that covers is not sent again.
ClockOnSubscribed == Keeps("ClockOnSubscribed")

stream == <<log, base, incarnation, others>>
router == <<connection, subscription, issued, offset, kept>>
client == <<link, opened, mode, epoch, life, applied, have, own, made, told>>
setup == <<policy, offers, off>>
vars == <<log, base, incarnation, others, connection, subscription, issued, offset, kept, pending,
          up, wire, link, opened, mode, epoch, life, applied, have, own, made, told, gone, policy,
          offers, off>>

MaxSeq == MaxOwn * MaxConnections + MaxOthers
Unknown == MaxSeq + 1
Nothing == MaxSeq + 2
Connections == 1..MaxConnections

Init ==
    /\ log = <<>> /\ base = 0 /\ incarnation = 1 /\ others = 0
    /\ connection = 0 /\ subscription = 0 /\ issued = 0 /\ offset = Unknown /\ kept = Nothing
    /\ pending = <<>> /\ up = [n \in Connections |-> <<>>] /\ wire = <<>>
    /\ link = 0 /\ opened = 0 /\ mode = "down" /\ epoch = 0 /\ life = 0
    /\ applied = 0 /\ have = {} /\ own = {} /\ made = 0 /\ told = 0 /\ gone = {}
    /\ policy \in Policies /\ offers \in Offers /\ off \in Variants

Max(m, n) == IF m >= n THEN m ELSE n
Upto(l, seq) == {<<l, n>> : n \in 1..seq}
Clocks == {log[i] : i \in 1..Len(log)} \ {0}
StoredClock == CHOOSE k \in Clocks \cup {0} : \A j \in Clocks : j <= k
InOrder(clocks) == SelectSeq([k \in 1..MaxOwn |-> k], LAMBDA k : k \in clocks)
Mutations(e, clocks) ==
    LET order == InOrder(clocks)
    IN [i \in 1..Len(order) |-> [type |-> "mutation", epoch |-> e, clock |-> order[i]]]

----------------------------------------------------------------------------
\* The world: other clients, the stream's old end, a document deleted and made again.

StoreOther ==
    /\ others < MaxOthers /\ others' = others + 1
    /\ log' = Append(log, 0)
    /\ pending' = IF subscription = 0 THEN pending
                  ELSE Append(pending, [type |-> "mutation", epoch |-> subscription,
                                        seq |-> Len(log) + 1])
    /\ UNCHANGED <<base, incarnation, router, up, wire, client, gone, setup>>

Truncate ==
    /\ base < Len(log) /\ base' \in (base + 1)..Len(log)
    /\ UNCHANGED <<log, incarnation, others, router, pending, up, wire, client, gone, setup>>

MakeAgain ==
    /\ incarnation < MaxIncarnation /\ connection = 0
    /\ incarnation' = incarnation + 1 /\ log' = <<>> /\ base' = 0 /\ kept' = Nothing
    /\ gone' = gone \cup Clocks
    /\ UNCHANGED <<others, connection, subscription, issued, offset, pending, up, wire, client,
                   setup>>

----------------------------------------------------------------------------
\* The client by itself.

Mutate ==
    /\ made < MaxOwn /\ made' = made + 1 /\ own' = own \cup {made + 1}
    /\ up' = IF mode \in {"down", "asked"} THEN up
             ELSE [up EXCEPT ![link] = @ \o Mutations(epoch, {made + 1})]
    /\ UNCHANGED <<stream, router, pending, wire, link, opened, mode, epoch, life, applied, have,
                   told, gone, setup>>

Connect ==
    /\ link = 0 /\ opened < MaxConnections
    /\ opened' = opened + 1 /\ link' = opened + 1 /\ mode' = "asked" /\ epoch' = 0 /\ told' = 0
    /\ up' = [up EXCEPT ![opened + 1] = << [type |-> "hello"] >>]
    /\ UNCHANGED <<stream, router, pending, wire, life, applied, have, own, made, gone, setup>>

Drop ==
    /\ link # 0 /\ link' = 0 /\ mode' = "down" /\ wire' = <<>>
    /\ \E count \in 0..Len(up[link]) :
        up' = [up EXCEPT ![link] = SubSeq(@, 1, count) \o << [type |-> "close"] >>]
    /\ UNCHANGED <<stream, router, pending, opened, epoch, life, applied, have, own, made, told,
                   gone, setup>>

\* Only a router that keeps offsets has a use for it here.
Acknowledge ==
    /\ policy = "resume" /\ mode = "live" /\ told < applied /\ told' = applied
    /\ up' = [up EXCEPT ![link] = Append(@, [type |-> "ack", epoch |-> epoch, seq |-> applied])]
    /\ UNCHANGED <<stream, router, pending, wire, link, opened, mode, epoch, life, applied, have,
                   own, made, gone, setup>>

----------------------------------------------------------------------------
\* The router.

Take(n, type) == up[n] # <<>> /\ Head(up[n]).type = type
Read(n) == up' = [up EXCEPT ![n] = Tail(@)]

\* What the connection that ends leaves behind.
Left ==
    IF subscription = 0 THEN kept
    ELSE IF policy = "clean" THEN Nothing
    ELSE IF policy = "intent" THEN Unknown
    ELSE offset

Entry(e, seq) ==
    IF log[seq] = 0 THEN [type |-> "mutation", epoch |-> e, seq |-> seq]
    ELSE [type |-> "ack", epoch |-> e, seq |-> seq, clock |-> log[seq]]

\* The messages that open a subscription for a client that is known to be at `from`.
CanResume(from) == from # Unknown /\ from <= Len(log) /\ (GapMeansState => from >= base)
Opening(e, from) ==
    LET resumed == CanResume(from)
        first == [type |-> "subscribed", epoch |-> e, resumed |-> resumed,
                  incarnation |-> incarnation,
                  clock |-> IF ClockOnSubscribed THEN StoredClock ELSE 0]
        start == Max(from, base)
    IN << first >> \o (IF resumed THEN [i \in 1..(Len(log) - start) |-> Entry(e, start + i)]
                       ELSE << [type |-> "state", epoch |-> e, seq |-> Len(log)] >>)
\* What is sent counts as delivered only without the rule.
OffsetAfter(from) ==
    IF ~OffsetIsAcknowledged THEN Len(log) ELSE IF CanResume(from) THEN from ELSE Unknown

\* A connection begins; an older one of the same client is displaced.
TakeHello(n) ==
    /\ Take(n, "hello") /\ n > connection
    /\ connection' = n
    /\ LET left == IF connection = 0 THEN kept ELSE Left
           restored == left # Nothing
           before == IF ClearOnDrop THEN <<>> ELSE pending
           welcome == << [type |-> "welcome", restored |-> restored] >>
       IN /\ kept' = Nothing
          /\ subscription' = IF restored THEN 1 ELSE 0
          /\ issued' = IF restored THEN 1 ELSE 0
          /\ offset' = IF restored THEN OffsetAfter(left) ELSE Unknown
          /\ pending' = before \o welcome \o (IF restored THEN Opening(1, left) ELSE <<>>)
    \* The ends of older connections are still to be noticed.
    /\ LET Rest(older) == IF DisplacedIsUnread
                          THEN SelectSeq(up[older], LAMBDA m : m.type = "close")
                          ELSE up[older]
       IN up' = [i \in Connections |-> IF i = n THEN Tail(up[n])
                                       ELSE IF i < n THEN Rest(i) ELSE up[i]]
    /\ UNCHANGED <<stream, wire, client, gone, setup>>

\* A connection that ended before it was noticed to begin: nothing was lost by it.
TakeLateHello(n) ==
    /\ Take(n, "hello") /\ n < connection /\ Read(n)
    /\ UNCHANGED <<stream, router, pending, wire, client, gone, setup>>

TakeSubscribe(n) ==
    /\ Take(n, "subscribe") /\ Read(n)
    /\ LET m == Head(up[n])
           e == issued + 1
           from == IF m.from # Unknown /\ (CheckIncarnation => m.life = incarnation)
                   THEN m.from ELSE Unknown
       IN /\ subscription' = e /\ issued' = e /\ offset' = OffsetAfter(from)
          /\ pending' = pending \o Opening(e, from)
    /\ UNCHANGED <<stream, connection, kept, wire, client, gone, setup>>

TakeMutation(n) ==
    /\ Take(n, "mutation") /\ Read(n)
    /\ LET m == Head(up[n])
       IN IF subscription # 0 /\ m.epoch = subscription
          THEN /\ log' = Append(log, m.clock)
               /\ pending' = Append(pending, [type |-> "ack", epoch |-> subscription,
                                              seq |-> Len(log) + 1, clock |-> m.clock])
          ELSE UNCHANGED <<log, pending>>
    /\ UNCHANGED <<base, incarnation, others, router, wire, client, gone, setup>>

TakeAck(n) ==
    /\ Take(n, "ack") /\ Read(n)
    /\ LET m == Head(up[n])
       IN offset' = IF subscription = 0 \/ m.epoch # subscription \/ ~OffsetIsAcknowledged
                    THEN offset
                    ELSE IF offset = Unknown THEN m.seq ELSE Max(offset, m.seq)
    /\ UNCHANGED <<stream, connection, subscription, issued, kept, pending, wire, client, gone,
                   setup>>

TakeClose(n) ==
    /\ Take(n, "close") /\ Read(n)
    /\ IF n = connection \/ (~DropByConnection /\ connection # 0)
       THEN /\ connection' = 0 /\ kept' = Left /\ subscription' = 0 /\ issued' = 0
            /\ offset' = Unknown /\ pending' = IF ClearOnDrop THEN <<>> ELSE pending
       ELSE UNCHANGED <<router, pending>>
    /\ UNCHANGED <<stream, wire, client, gone, setup>>

\* What is sent to a connection that the client has given up goes nowhere.
Send ==
    /\ pending # <<>> /\ connection # 0
    /\ pending' = Tail(pending)
    /\ wire' = IF connection = link THEN Append(wire, Head(pending)) ELSE wire
    /\ UNCHANGED <<stream, router, up, client, gone, setup>>

----------------------------------------------------------------------------
\* What the client does with what it gets.

Ignore == UNCHANGED <<mode, epoch, life, applied, have, own, up>>

TakeWelcome(m) ==
    /\ up' = IF m.restored THEN up
             ELSE [up EXCEPT ![link] = Append(@, [type |-> "subscribe", life |-> life,
                    from |-> IF offers /\ life # 0 THEN applied ELSE Unknown])]
    /\ UNCHANGED <<mode, epoch, life, applied, have, own>>

TakeSubscribed(m) ==
    LET rest == {k \in own : k > m.clock}
    IN /\ epoch' = m.epoch
       /\ mode' = IF m.resumed THEN "live" ELSE "awaiting"
       /\ own' = IF m.resumed /\ KeepUntilPlaced THEN own ELSE rest
       /\ up' = [up EXCEPT ![link] = @ \o Mutations(m.epoch, rest)]
       /\ life' = m.incarnation
       /\ UNCHANGED <<applied, have>>

TakeState(m) ==
    IF mode # "awaiting" \/ m.epoch # epoch THEN Ignore
    ELSE /\ mode' = "live" /\ applied' = m.seq /\ have' = Upto(life, m.seq)
         /\ UNCHANGED <<epoch, life, own, up>>

\* A mutation, or at the place of an own one its ack.
TakeOne(m) ==
    IF mode # "live" \/ m.epoch # epoch THEN Ignore
    ELSE /\ own' = IF m.type = "ack" THEN own \ (1..m.clock) ELSE own
         /\ IF m.seq # applied + 1 THEN UNCHANGED <<applied, have>>
            ELSE /\ applied' = m.seq
                 \* The ack brings no content: the client needs to have kept it.
                 /\ have' = IF m.type = "ack" /\ m.clock \notin own THEN have
                            ELSE have \cup {<<life, m.seq>>}
         /\ UNCHANGED <<mode, epoch, life, up>>

Receive ==
    /\ wire # <<>> /\ wire' = Tail(wire)
    /\ LET m == Head(wire)
       IN CASE m.type = "welcome" -> TakeWelcome(m)
            [] m.type = "subscribed" -> TakeSubscribed(m)
            [] m.type = "state" -> TakeState(m)
            [] OTHER -> TakeOne(m)
    /\ UNCHANGED <<stream, router, pending, link, opened, made, told, gone, setup>>

Next ==
    \/ StoreOther \/ Truncate \/ MakeAgain
    \/ Mutate \/ Connect \/ Drop \/ Acknowledge
    \/ \E n \in Connections :
        \/ TakeHello(n) \/ TakeLateHello(n) \/ TakeSubscribe(n) \/ TakeMutation(n) \/ TakeAck(n)
        \/ TakeClose(n)
    \/ Send \/ Receive
Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
IsQuiet == link # 0 /\ pending = <<>> /\ wire = <<>> /\ \A n \in Connections : up[n] = <<>>

\* Nothing waits for a connection that is gone, and nothing of an older epoch for a new one.
NoStalePending ==
    /\ connection = 0 => pending = <<>>
    /\ \A i \in 1..Len(pending) : pending[i].type # "welcome" => pending[i].epoch = subscription
\* A live client has what `applied` says, by content.
Prefix == mode = "live" => have = Upto(life, applied)
\* What a live client gets follows on what it has.
NoGap ==
    (mode = "live" /\ wire # <<>>) =>
        LET m == Head(wire)
        IN (m.type \in {"mutation", "ack"} /\ m.epoch = epoch) => m.seq <= applied + 1
\* Once all messages have arrived the client has everything, and its own mutations are stored.
NoLoss == IsQuiet => mode = "live" /\ have = Upto(incarnation, Len(log)) /\ own = {}
\* A mutation is stored, or still with the client.
Kept == \A clock \in 1..made : clock \in Clocks \cup own \cup gone
Once == \A m, n \in 1..Len(log) : (m # n /\ log[m] # 0) => log[m] # log[n]

\* Many variants in one run: says of each what broke first, and follows it no further.
FirstBroken ==
    CASE ~NoStalePending -> "NoStalePending" [] ~Prefix -> "Prefix" [] ~NoGap -> "NoGap"
      [] ~NoLoss -> "NoLoss" [] ~Kept -> "Kept" [] ~Once -> "Once" [] OTHER -> "nothing"
ASSUME TLCSet(1, {})
Report ==
    /\ off \notin TLCGet(1)
    /\ \/ FirstBroken = "nothing"
       \/ /\ TLCSet(1, TLCGet(1) \cup {off})
          /\ PrintT(<<"broken", off, FirstBroken>>) /\ FALSE
==============================================================================
