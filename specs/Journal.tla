------------------------------- MODULE Journal -------------------------------
(***************************************************************************)
(* One queue of the journal store (docs/formats/journal.md): message       *)
(* files, state log, rotation, the switch of the read file, recovery.      *)
(*                                                                         *)
(* Every call to the file system is a step of its own. Between any two the *)
(* process may die, with all it wrote still to be seen, or the power may   *)
(* go: then of what was not synced any part is lost, the ends of files,    *)
(* names and state lines each for themselves.                              *)
(*                                                                         *)
(* Each rule of the store has a switch. With all of them on every          *)
(* invariant holds; tests/model/test_journal_spec.py turns each off and    *)
(* sees one break.                                                         *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    MaxMsgs,            \* messages sent in all
    FileMax,            \* messages to a file before another one is begun
    MaxCrash,           \* deaths of the process and power cuts together
    MaxFiles,           \* file ids that may be used up
    SwitchOnlyToOther,  \* a used up read file is left only for another file
    MessageFirst,       \* a state line is written after what it counts is synced
    NameFirst,          \* ... and after the name of a new file is
    StateBeforeRemove,  \* a file is removed after the line that leaves it is synced
    SyncBeforeTelling,  \* sender and reader are told after the sync
    CountAgain,         \* recovery counts what the message files hold
    RemoveUnnamed,      \* recovery removes files that the state does not name
    SettleFirst         \* recovery syncs what it found before it is served

VARIABLES
    content,    \* what each file holds, as the program sees it
    synced,     \* how much of that is on the device
    names,      \* files that have a name, as the program sees it
    keptNames,  \* and on the device
    line,       \* the last state line, as the program sees it
    keptLine,   \* and on the device
    memory,     \* the state in the memory of the process
    todo,       \* calls that the operation under way still has to make
    isUp,
    nextFile, sentCount, crashCount,
    told,       \* messages whose sender was told that they are kept
    read,       \* messages whose reader has acknowledged them
    released,   \* messages whose reader was told that they are gone
    delivered,  \* with the reader, not yet acknowledged; 0: none
    isDamaged   \* a recovery missed something that a state line spoke of

vars == <<content, synced, names, keptNames, line, keptLine, memory, todo, isUp, nextFile,
          sentCount, crashCount, told, read, released, delivered, isDamaged>>
disk == <<content, synced, names, keptNames, line, keptLine>>
ghosts == <<told, read, released>>

Files == 1..MaxFiles
\* readFile and how many of its messages were read, writeFile and how many messages it holds
State(rf, rm, wf, wm) == [rf |-> rf, rm |-> rm, wf |-> wf, wm |-> wm]

Init ==
    /\ content = [f \in Files |-> <<>>] /\ synced = [f \in Files |-> 0]
    /\ names = {} /\ keptNames = {}
    /\ line = State(1, 0, 1, 0) /\ keptLine = line /\ memory = line
    /\ todo = <<>> /\ isUp = TRUE
    /\ nextFile = 2 /\ sentCount = 0 /\ crashCount = 0
    /\ told = {} /\ read = {} /\ released = {} /\ delivered = 0 /\ isDamaged = FALSE

----------------------------------------------------------------------------
\* Operations: each decides on a list of calls, which are then made one by one.

IsIdle == isUp /\ todo = <<>>
Held(f) == IF f \in names THEN Len(content[f]) ELSE 0
Sync(calls) == IF SyncBeforeTelling THEN calls ELSE <<>>

\* A read file that is used up is left for the write file, if that is another one.
Moved(s) ==
    IF s.rf # s.wf /\ s.rm >= Held(s.rf) THEN State(s.wf, 0, s.wf, s.wm) ELSE s

\* Write a state, then remove what it names no more, of the line before and of memory.
StateCalls(s, more) ==
    LET lines == << <<"line", s>> >> \o Sync(<< <<"syncLine">> >>)
        gone == ({memory.rf, memory.wf, line.rf, line.wf} \ {s.rf, s.wf}) \cup more
        remove == IF gone \cap names = {} THEN <<>>
                  ELSE << <<"remove", gone>>, <<"syncNames">> >>
    IN IF StateBeforeRemove THEN lines \o remove ELSE remove \o lines

Append1 ==
    /\ IsIdle /\ sentCount < MaxMsgs
    /\ LET m == sentCount + 1
           begins == memory.wm >= FileMax /\ memory.rf = memory.wf
           wf == IF begins THEN nextFile ELSE memory.wf
           wm == IF begins THEN 0 ELSE memory.wm
           isNew == wf \notin names
           make == IF isNew THEN << <<"create", wf>> >> ELSE <<>>
           sync == Sync(<< <<"sync", wf>> >>)
           keepName == IF isNew THEN Sync(<< <<"syncNames">> >>) ELSE <<>>
           message == make \o << <<"message", wf, m>> >> \o sync
           state == StateCalls(Moved(State(memory.rf, memory.rm, wf, wm + 1)), {})
       IN /\ begins => nextFile <= MaxFiles
          /\ todo' = (IF ~MessageFirst THEN state \o message \o keepName
                      ELSE IF ~NameFirst THEN message \o state \o keepName
                      ELSE message \o keepName \o state) \o << <<"told", m>> >>
          /\ nextFile' = IF begins THEN nextFile + 1 ELSE nextFile
    /\ sentCount' = sentCount + 1
    /\ UNCHANGED <<disk, memory, isUp, crashCount, ghosts, delivered, isDamaged>>

Deliver ==
    /\ IsIdle /\ delivered = 0 /\ memory.rf \in names /\ memory.rm < Len(content[memory.rf])
    /\ delivered' = content[memory.rf][memory.rm + 1]
    /\ UNCHANGED <<disk, memory, todo, isUp, nextFile, sentCount, crashCount, ghosts, isDamaged>>

Acknowledge ==
    /\ IsIdle /\ delivered # 0
    /\ LET s == State(memory.rf, memory.rm + 1, memory.wf, memory.wm)
           \* At the end of the file, whichever is written to.
           leavesOnlyFile == ~SwitchOnlyToOther /\ s.rf = s.wf /\ s.rm >= Held(s.rf)
       IN todo' = (IF leavesOnlyFile THEN StateCalls(State(s.wf, 0, s.wf, s.wm), {s.rf})
                   ELSE StateCalls(Moved(s), {})) \o << <<"released", delivered>> >>
    /\ read' = read \cup {delivered}
    /\ UNCHANGED <<disk, memory, isUp, nextFile, sentCount, crashCount, told, released,
                   delivered, isDamaged>>

Call ==
    /\ isUp /\ todo # <<>> /\ todo' = Tail(todo)
    /\ LET call == Head(todo)
           what == call[1]
       IN /\ content' = CASE what = "create" -> [content EXCEPT ![call[2]] = <<>>]
                          [] what = "message" -> [content EXCEPT ![call[2]] = Append(@, call[3])]
                          [] OTHER -> content
          /\ synced' = CASE what = "create" -> [synced EXCEPT ![call[2]] = 0]
                         [] what = "sync" -> [synced EXCEPT ![call[2]] = Len(content[call[2]])]
                         [] OTHER -> synced
          \* Writing to a name that is gone makes it anew.
          /\ names' = CASE what \in {"create", "message"} -> names \cup {call[2]}
                        [] what = "remove" -> names \ call[2]
                        [] OTHER -> names
          /\ keptNames' = IF what = "syncNames" THEN names ELSE keptNames
          /\ line' = IF what = "line" THEN call[2] ELSE line
          /\ memory' = IF what = "line" THEN call[2] ELSE memory
          /\ keptLine' = IF what = "syncLine" THEN line ELSE keptLine
          /\ told' = IF what = "told" THEN told \cup {call[2]} ELSE told
          /\ released' = IF what = "released" THEN released \cup {call[2]} ELSE released
          /\ delivered' = IF what = "released" THEN 0 ELSE delivered
    /\ UNCHANGED <<isUp, nextFile, sentCount, crashCount, read, isDamaged>>

----------------------------------------------------------------------------
\* The end of a process, and the next one.

Stop ==
    /\ isUp /\ crashCount < MaxCrash /\ crashCount' = crashCount + 1
    /\ isUp' = FALSE /\ todo' = <<>> /\ delivered' = 0
    /\ UNCHANGED <<memory, nextFile, sentCount, ghosts, isDamaged>>

Kill == Stop /\ UNCHANGED disk

\* Of what was not synced, any part.
PowerCut ==
    /\ Stop
    /\ \E found \in SUBSET (names \cup keptNames) :
        /\ (names \cap keptNames) \subseteq found
        /\ \E size \in [found -> 0..MaxMsgs] :
            /\ \A f \in found : synced[f] <= size[f] /\ size[f] <= Len(content[f])
            /\ content' = [f \in Files |-> IF f \in found THEN SubSeq(content[f], 1, size[f])
                                           ELSE <<>>]
            /\ synced' = [f \in Files |-> IF f \in found THEN size[f] ELSE 0]
        /\ names' = found /\ keptNames' = found
    /\ line' \in {line, keptLine} /\ keptLine' = line'

\* The last line is the base; what the files hold beyond it counts.
Recover ==
    /\ ~isUp /\ isUp' = TRUE
    /\ LET hasOne == line.rf = line.wf
           isUsedUp == ~hasOne /\ line.rm >= Held(line.rf)
           wm == IF CountAgain THEN Held(line.wf) ELSE line.wm
           named == {line.rf, line.wf}
           kept == IF RemoveUnnamed THEN names \cap named ELSE names
       IN /\ memory' = IF isUsedUp THEN State(line.wf, 0, line.wf, wm)
                       ELSE State(line.rf, line.rm, line.wf, wm)
          /\ names' = kept
          /\ isDamaged' = (isDamaged \/ Held(line.wf) < line.wm \/ Held(line.rf) < line.rm
                           \/ (~hasOne /\ line.rf \notin names))
          /\ keptNames' = IF SettleFirst \/ kept # names THEN kept ELSE keptNames
          /\ synced' = IF SettleFirst THEN [f \in Files |-> Len(content[f])] ELSE synced
          /\ keptLine' = IF SettleFirst THEN line ELSE keptLine
    /\ UNCHANGED <<content, line, todo, nextFile, sentCount, crashCount, ghosts, delivered>>

Next == Append1 \/ Deliver \/ Acknowledge \/ Call \/ Kill \/ PowerCut \/ Recover
Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
Rest(f, count) == IF f \in names THEN SubSeq(content[f], count + 1, Len(content[f])) ELSE <<>>
Unread == Rest(memory.rf, memory.rm)
          \o (IF memory.rf = memory.wf THEN <<>> ELSE Rest(memory.wf, 0))
Elements(s) == {s[i] : i \in 1..Len(s)}

\* What a sender was told is kept can be read until its reader has acknowledged it.
NoLoss == IsIdle => (told \ read) \subseteq Elements(Unread)
InOrder == IsIdle => \A i, j \in 1..Len(Unread) : i < j => Unread[i] < Unread[j]
\* What a reader was told is gone does not come back.
NotTwice == IsIdle => released \cap Elements(Unread) = {}
\* Files that the state speaks of exist, once there is something in them.
FilesExist == IsIdle => /\ memory.wm > 0 => memory.wf \in names
                        /\ memory.rf # memory.wf => memory.rf \in names
CountTrue == IsIdle => memory.wm = Held(memory.wf)
\* A crash alone never looks like damage: no state line is ahead of what it speaks of.
NoDamage == ~isDamaged
TwoFiles == IsIdle => Cardinality(names) <= 2
==============================================================================
