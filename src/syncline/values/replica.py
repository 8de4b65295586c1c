"""What passes between a replica of one document, its router and its application.

The messages are those of docs/formats/sync.md without the name of the document: whoever has
several replicas knows which of them a message is for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from syncline.values.json_value import Json
from syncline.values.kinds import Kind

# JSON for documents of kind `json`, bytes for the others; a state of kind `bytes` is many of them.
Body: TypeAlias = "Json | bytes"


# From the router.


@dataclass(frozen=True, slots=True)
class Subscribed:
    epoch: int
    kind: Kind
    incarnation: str
    seq: int
    resumed: bool
    may_write: bool
    clock: int


@dataclass(frozen=True, slots=True)
class StateMessage:
    epoch: int
    seq: int
    state: Body


@dataclass(frozen=True, slots=True)
class MutationMessage:
    epoch: int
    seq: int
    client: str
    clock: int
    mutation: Body


@dataclass(frozen=True, slots=True)
class Receipt:
    """The client's own mutation `clock`, and every one before it, is stored."""

    epoch: int
    clock: int
    seq: int


@dataclass(frozen=True, slots=True)
class PresenceMessage:
    epoch: int
    states: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    epoch: int
    code: str | None = None
    message: str = ""
    retriable: bool = False


@dataclass(frozen=True, slots=True)
class Evicted:
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that names this document; with a clock it is about that mutation."""

    code: str
    message: str
    retriable: bool = False
    clock: int | None = None


FromRouter = (
    Subscribed
    | StateMessage
    | MutationMessage
    | Receipt
    | PresenceMessage
    | Unsubscribed
    | Evicted
    | Refusal
)


# To the router.


@dataclass(frozen=True, slots=True)
class Place:
    """Everything up to `seq` of this life of the document."""

    incarnation: str
    seq: int


@dataclass(frozen=True, slots=True)
class Subscribe:
    have: Place | None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    epoch: int | None


@dataclass(frozen=True, slots=True)
class SendMutation:
    epoch: int
    clock: int
    mutation: Body


@dataclass(frozen=True, slots=True)
class Acknowledge:
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class SendPresence:
    epoch: int
    state: Json


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a connection; whoever sends it adds client id, policy and token."""


ToRouter = Subscribe | Unsubscribe | SendMutation | Acknowledge | SendPresence


# To the application.


@dataclass(frozen=True, slots=True)
class WentLive:
    """The state is as new as the router's, and follows it."""

    may_write: bool


@dataclass(frozen=True, slots=True)
class StateReplaced:
    """The router sent the whole state, up to `seq`; `state` has own changes on top."""

    seq: int
    state: Body


@dataclass(frozen=True, slots=True)
class Changed:
    """Somebody else's mutation was applied."""

    seq: int
    client: str
    mutation: Body


@dataclass(frozen=True, slots=True)
class Stored:
    """The own change `number` is on the router's disk, at `seq` or below."""

    number: int
    clock: int
    seq: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The own change `number` was refused for good and is taken back."""

    number: int
    clock: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class PresenceChanged:
    """Who else is there now: their states by client id."""

    states: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Complaint:
    """The router objected to something that is neither a mutation nor the subscription."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Tried often enough. Unsent work is kept; nothing more is tried until asked to."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stalled:
    """The router does not answer, although the connection is up: it is better to make a new one."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The router ended or refused the subscription for good."""

    code: str
    message: str


ToApplication = (
    WentLive
    | StateReplaced
    | Changed
    | Stored
    | Rejected
    | PresenceChanged
    | Complaint
    | GaveUp
    | Stalled
    | Ended
)


# About the connection.


class LinkStatus(StrEnum):
    """`connecting` covers the waits between attempts. `offline`: tried often enough; `closed`:
    ended for good. Both wait to be told to try again."""

    CONNECTING = "connecting"
    ONLINE = "online"
    OFFLINE = "offline"
    CLOSED = "closed"


class DocumentStatus(StrEnum):
    """`live`: follows the router. `evicted`: was too far behind, and is getting the state."""

    CONNECTING = "connecting"
    LIVE = "live"
    EVICTED = "evicted"
    OFFLINE = "offline"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class LinkTurned:
    """The connection of all documents has another status."""

    status: LinkStatus
    code: str = ""
    message: str = ""
