------------------------------- MODULE Sending -------------------------------
(***************************************************************************)
(* Who gets what, and whether in time: clients, documents, and one thing   *)
(* pending or not for each pair of them. Mutations never end, so this is   *)
(* where a router can starve somebody; contents, order and networks are in *)
(* Routing.                                                                *)
(*                                                                         *)
(* FairSpec is the rule: the router is fair to each pair. Under LooseSpec  *)
(* it only promises to send something to somebody, time and again.         *)
(***************************************************************************)
EXTENDS Naturals

CONSTANTS
    Clients,
    Documents,
    ClearOnUnsubscribe  \* with a subscription goes what is pending for it

VARIABLES
    subscribed,         \* pairs of a client and a document
    pending             \* pairs for which something waits

vars == <<subscribed, pending>>
Pairs == Clients \X Documents
Init == subscribed = {} /\ pending = {}

Subscribe(c, d) ==
    /\ <<c, d>> \notin subscribed /\ subscribed' = subscribed \cup {<<c, d>>}
    /\ UNCHANGED pending
Unsubscribe(c, d) ==
    /\ <<c, d>> \in subscribed /\ subscribed' = subscribed \ {<<c, d>>}
    /\ pending' = IF ClearOnUnsubscribe THEN pending \ {<<c, d>>} ELSE pending
\* For every subscriber of the document but the author.
Mutate(c, d) ==
    /\ <<c, d>> \in subscribed
    /\ pending' = pending \cup {p \in subscribed : p[1] # c /\ p[2] = d}
    /\ UNCHANGED subscribed
Send(c, d) ==
    /\ <<c, d>> \in pending /\ pending' = pending \ {<<c, d>>}
    /\ UNCHANGED subscribed

Next ==
    \E c \in Clients, d \in Documents :
        Subscribe(c, d) \/ Unsubscribe(c, d) \/ Mutate(c, d) \/ Send(c, d)
Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ \A c \in Clients, d \in Documents : WF_vars(Send(c, d))
LooseSpec == Spec /\ SF_vars(\E c \in Clients, d \in Documents : Send(c, d))

----------------------------------------------------------------------------
NoStalePending == pending \subseteq subscribed
\* What waits is sent, or no longer wanted.
Resolved == \A p \in Pairs : (p \in pending) ~> (p \notin pending)
==============================================================================
