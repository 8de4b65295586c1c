------------------------------ MODULE Reliable ------------------------------
(***************************************************************************)
(* One document's stream: an author whose mutations are to be stored once, *)
(* readers that are to get all of them, and a router that may cut off the  *)
(* stream's old end once nobody needs it.                                  *)
(*                                                                         *)
(* The network loses, repeats and reorders. What was sent once may arrive  *)
(* at any later time, any number of times or never, so it is enough to     *)
(* remember how far each side has sent: `sent`, `stated`, `acked`.         *)
(*                                                                         *)
(* Readers apply in any order (the kind is idempotent) and acknowledge.    *)
(* Joining takes two steps: the router picks the snapshot to send, and     *)
(* sends it, and between the two anything may happen.                      *)
(*                                                                         *)
(* Each rule has a switch. A behaviour keeps all rules but those in `off`; *)
(* with `off` empty every invariant holds, with any rule in it one breaks. *)
(* An author that reads as well is both; what ties the two together is in  *)
(* Routing. That stored means on disk is the committer's part.             *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Readers,
    MaxClock,   \* mutations that the author makes
    MaxSeq,     \* entries of the stream: more than MaxClock where one may be stored twice
    MaxEpoch,   \* subscriptions of each reader
    MayLose,    \* say of each entry whether its first sending is lost: for liveness only
    Variants    \* sets of rules, one of which is left out

VARIABLES
    made,       \* author: its highest clock, all sent and sent again
    confirmed,  \* author: everything up to this clock is acknowledged to it
    log,        \* the clock stored at each seq, cut off or not
    stored,     \* router: the highest clock stored of the author
    base,       \* router: the stream is cut off up to this seq
    folding,    \* router: a snapshot up to this seq is being written
    snapshot,   \* router: ... and up to this seq one is on disk
    epoch,      \* router: the last epoch given to each reader
    joining,    \* router: the seq of the snapshot it is about to send to each reader
    tracker,    \* router: the seq up to which each reader needs nothing more
    sent,       \* router: of each epoch, the highest seq ever sent
    stated,     \* router: of each epoch, the seq of the state that opened it
    lost,       \* of the present epoch: seqs, 0 for the state, that were sent in vain
    current,    \* reader: the epoch of its subscription
    have,       \* reader: the seqs it has applied
    acked,      \* reader: of each epoch, the highest seq it ever acknowledged
    off         \* the rules left out, from first to last

Keeps(rule) == rule \notin off
\* A mutation with a clock that is stored is not stored again.
Dedupe == Keeps("Dedupe")
\* A mutation is stored only next to the one before it.
ClockOrder == Keeps("ClockOrder")
\* A reader acknowledges the end of what it has without a gap.
PrefixAck == Keeps("PrefixAck")
\* An acknowledgement counts in its own epoch only, and only while that is tracked.
AckEpoch == Keeps("AckEpoch")
\* The stream is cut off at most up to the lowest tracked seq,
CutAtMinimum == Keeps("CutAtMinimum")
\* and at most up to what a snapshot covers,
CutAtSnapshot == Keeps("CutAtSnapshot")
\* which is on disk.
SnapshotOnDisk == Keeps("SnapshotOnDisk")
\* A joiner is tracked from the moment its snapshot is picked.
PinFirst == Keeps("PinFirst")
\* An evicted reader begins a new subscription.
StateAfterEviction == Keeps("StateAfterEviction")
\* What a reader has not acknowledged is sent again.
SendAgain == Keeps("SendAgain")

author == <<made, confirmed>>
storage == <<log, stored, base, folding, snapshot>>
delivery == <<epoch, joining, tracker, sent, stated, lost>>
reader == <<current, have, acked>>
vars == <<made, confirmed, log, stored, base, folding, snapshot, epoch, joining, tracker, sent,
          stated, lost, current, have, acked, off>>

None == MaxSeq + 1
Epochs == 1..MaxEpoch
Each(x) == [r \in Readers |-> x]
Init ==
    /\ made = 0 /\ confirmed = 0
    /\ log = <<>> /\ stored = 0 /\ base = 0 /\ folding = 0 /\ snapshot = 0
    /\ epoch = Each(0) /\ joining = Each(None) /\ tracker = Each(None)
    /\ sent = Each([e \in Epochs |-> 0]) /\ stated = Each([e \in Epochs |-> None])
    /\ lost = Each({})
    /\ current = Each(0) /\ have = Each({}) /\ acked = Each([e \in Epochs |-> 0])
    /\ off \in Variants

Max(m, n) == IF m >= n THEN m ELSE n
Tracked == {r \in Readers : tracker[r] # None}
Told == {r \in Tracked : joining[r] = None}

----------------------------------------------------------------------------
\* The author, and the router that stores its mutations.

Mutate ==
    /\ made < MaxClock /\ made' = made + 1
    /\ UNCHANGED <<confirmed, storage, delivery, reader, off>>

\* A new entry goes to every reader that has been told its state.
Store(clock) ==
    LET seq == Len(log) + 1
    IN /\ seq <= MaxSeq
       /\ log' = Append(log, clock) /\ stored' = Max(stored, clock)
       /\ sent' = [r \in Readers |->
                    IF r \in Told THEN [sent[r] EXCEPT ![epoch[r]] = seq] ELSE sent[r]]
       /\ \E unlucky \in (IF MayLose THEN SUBSET Told ELSE {{}}) :
            lost' = [r \in Readers |-> IF r \in unlucky THEN lost[r] \cup {seq} ELSE lost[r]]
       /\ UNCHANGED <<author, base, folding, snapshot, epoch, joining, tracker, stated, reader,
                      off>>

TakeMutation ==
    \E clock \in 1..made :
        /\ Dedupe => clock > stored
        /\ ClockOrder => clock <= stored + 1
        /\ Store(clock)

\* The router's acknowledgement names the highest stored clock and covers all before it.
TakeConfirmation ==
    /\ confirmed < stored /\ confirmed' \in (confirmed + 1)..stored
    /\ UNCHANGED <<made, storage, delivery, reader, off>>

----------------------------------------------------------------------------
\* Readers come, are told, and are given up.

Join(r) ==
    /\ epoch[r] < MaxEpoch /\ joining[r] = None
    /\ epoch' = [epoch EXCEPT ![r] = @ + 1]
    /\ joining' = [joining EXCEPT ![r] = snapshot]
    /\ tracker' = [tracker EXCEPT ![r] = IF PinFirst THEN snapshot ELSE None]
    /\ lost' = [lost EXCEPT ![r] = {}]
    /\ UNCHANGED <<author, storage, sent, stated, reader, off>>

\* The state, and behind it all of the stream that follows.
Tell(r) ==
    /\ joining[r] # None
    /\ joining' = [joining EXCEPT ![r] = None]
    /\ tracker' = [tracker EXCEPT ![r] = joining[r]]
    /\ stated' = [stated EXCEPT ![r][epoch[r]] = joining[r]]
    /\ sent' = [sent EXCEPT ![r][epoch[r]] = Len(log)]
    /\ \E vain \in (IF MayLose THEN SUBSET ({0} \cup (joining[r] + 1)..Len(log)) ELSE {{}}) :
        lost' = [lost EXCEPT ![r] = vain]
    /\ UNCHANGED <<author, storage, epoch, reader, off>>

Evict(r) ==
    /\ r \in Tracked
    /\ tracker' = [tracker EXCEPT ![r] = None] /\ joining' = [joining EXCEPT ![r] = None]
    /\ UNCHANGED <<author, storage, epoch, sent, stated, lost, reader, off>>

\* Without the rule: an evicted reader is let in again where it was, under its old epoch.
Readmit(r) ==
    /\ ~StateAfterEviction /\ r \notin Tracked /\ joining[r] = None /\ current[r] # 0
    /\ current[r] = epoch[r]
    /\ tracker' = [tracker EXCEPT ![r] = acked[r][current[r]]]
    /\ UNCHANGED <<author, storage, epoch, joining, sent, stated, lost, reader, off>>

\* With a later update or a heartbeat.
Repeat(r) ==
    /\ SendAgain /\ r \in Told /\ lost[r] # {}
    /\ lost' = [lost EXCEPT ![r] = {}]
    /\ UNCHANGED <<author, storage, epoch, joining, tracker, sent, stated, reader, off>>

\* The tracker only rises. A sorted set that simply takes an offset also lets a stranger in.
TakeAck(r) ==
    \E e \in Epochs : \E seq \in 1..acked[r][e] :
        /\ AckEpoch => r \in Tracked /\ e = epoch[r]
        /\ r \in Tracked => tracker[r] < seq
        /\ tracker' = [tracker EXCEPT ![r] = seq]
        /\ UNCHANGED <<author, storage, epoch, joining, sent, stated, lost, reader, off>>

----------------------------------------------------------------------------
\* Snapshots, and the end of the stream that they make needless.

BeginSnapshot ==
    /\ folding = snapshot /\ folding < Len(log) /\ folding' = Len(log)
    /\ UNCHANGED <<author, log, stored, base, snapshot, delivery, reader, off>>
FinishSnapshot ==
    /\ folding # snapshot /\ snapshot' = folding
    /\ UNCHANGED <<author, log, stored, base, folding, delivery, reader, off>>

Truncate ==
    /\ \E seq \in (base + 1)..Len(log) :
        /\ CutAtMinimum => \A r \in Tracked : seq <= tracker[r]
        /\ CutAtSnapshot => seq <= (IF SnapshotOnDisk THEN snapshot ELSE folding)
        /\ base' = seq
    /\ UNCHANGED <<author, log, stored, folding, snapshot, delivery, reader, off>>

----------------------------------------------------------------------------
\* What a reader does with what it gets.

WithoutGap(seqs) == CHOOSE n \in 0..MaxSeq : 1..n \subseteq seqs /\ (n + 1) \notin seqs

\* The state of a newer subscription is its new base.
TakeState(r) ==
    \E e \in Epochs :
        /\ e > current[r] /\ stated[r][e] # None /\ (e = epoch[r] => 0 \notin lost[r])
        /\ current' = [current EXCEPT ![r] = e]
        /\ have' = [have EXCEPT ![r] = 1..stated[r][e]]
        /\ UNCHANGED <<author, storage, delivery, acked, off>>

TakeEntry(r, seq) ==
    /\ current[r] # 0 /\ seq <= sent[r][current[r]] /\ seq > stated[r][current[r]]
    /\ current[r] = epoch[r] => seq \notin lost[r]
    /\ have' = [have EXCEPT ![r] = @ \cup {seq}]
    /\ LET last == IF PrefixAck THEN WithoutGap(have'[r]) ELSE seq
       IN acked' = [acked EXCEPT ![r][current[r]] = Max(@, last)]
    /\ UNCHANGED <<author, storage, delivery, current, off>>

Receive(r) == \E seq \in 1..MaxSeq : TakeEntry(r, seq)

Next ==
    \/ Mutate \/ TakeMutation \/ TakeConfirmation
    \/ BeginSnapshot \/ FinishSnapshot \/ Truncate
    \/ \E r \in Readers :
        \/ Join(r) \/ Tell(r) \/ Evict(r) \/ Readmit(r) \/ Repeat(r) \/ TakeAck(r)
        \/ TakeState(r) \/ Receive(r)
Spec == Init /\ [][Next]_vars
FairSpec ==
    /\ Spec
    /\ \A r \in Readers : /\ WF_vars(Tell(r)) /\ WF_vars(Repeat(r)) /\ WF_vars(TakeState(r))
                          /\ \A seq \in 1..MaxSeq : WF_vars(TakeEntry(r, seq))

----------------------------------------------------------------------------
InStream(seq) == base < seq /\ seq <= Len(log)
\* What the router may count on: the state it told this subscription, or is about to tell.
Opening(r) == IF joining[r] # None THEN joining[r] ELSE stated[r][epoch[r]]
IsOpening(r) == joining[r] # None \/ current[r] < epoch[r]

\* The tracker is never ahead of the reader, nor of the state that is on its way.
TrackerTrue ==
    \A r \in Tracked : \/ 1..tracker[r] \subseteq have[r]
                       \/ IsOpening(r) /\ tracker[r] <= Opening(r)
\* Whatever a tracked reader lacks is in its state or still in the stream, beyond its place there.
NoLoss ==
    \A r \in Tracked : \A seq \in 1..Len(log) :
        \/ seq \in have[r] /\ ~IsOpening(r)
        \/ IsOpening(r) /\ seq <= Opening(r)
        \/ InStream(seq) /\ seq > tracker[r]
\* Every entry is in the stream or in a snapshot on disk.
Durable == \A seq \in 1..Len(log) : InStream(seq) \/ seq <= snapshot
\* What the author was told is stored, is.
Stored == \A clock \in 1..confirmed : \E seq \in 1..Len(log) : log[seq] = clock
Once == \A m, n \in 1..Len(log) : m # n => log[m] # log[n]

\* An entry reaches every reader that stays tracked.
Arrives ==
    \A r \in Readers : \A seq \in 1..MaxSeq :
        (r \in Tracked /\ seq <= Len(log)) ~> (seq \in have[r] \/ r \notin Tracked)

\* Many variants in one run: says of each what broke first, and follows it no further.
FirstBroken ==
    CASE ~TrackerTrue -> "TrackerTrue" [] ~NoLoss -> "NoLoss" [] ~Durable -> "Durable"
      [] ~Stored -> "Stored" [] ~Once -> "Once" [] OTHER -> "nothing"
ASSUME TLCSet(1, {})
Report ==
    /\ off \notin TLCGet(1)
    /\ \/ FirstBroken = "nothing"
       \/ /\ TLCSet(1, TLCGet(1) \cup {off})
          /\ PrintT(<<"broken", off, FirstBroken>>) /\ FALSE
==============================================================================
