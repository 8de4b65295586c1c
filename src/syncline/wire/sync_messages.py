"""The messages of the sync protocol (docs/formats/sync.md), as values.

What a client says is a verb (`Mutate`), what the router says is a noun (`Mutation`). Fields stand
in the order in which they are written; `epoch` is the last of every message that has one, so that
one encoding serves all readers of a document (see `encode_shared` in `syncline.wire.sync`).

`mutation` and `state` are kept as the bytes that came: `syncline.wire.sync_bodies` reads them once
the kind of the document is known. No message refers to itself, so the cycle collector leaves them
alone.
"""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, field

from syncline.values import limits
from syncline.values.kinds import Kind
from syncline.wire import names

Policy = Literal["clean", "intent", "resume"]

# Checked in full by the codec, which is quicker at it than a pattern.
DocumentName = Annotated[str, Meta(min_length=1, max_length=limits.document_name_bytes_max)]
ClientId = Annotated[str, Meta(pattern=names.client_pattern)]
Label = Annotated[str, Meta(min_length=1, max_length=64)]
Token = Annotated[str, Meta(max_length=limits.token_bytes_max)]
Clock = Annotated[int, Meta(ge=1, le=limits.clock_max)]
ClockOrZero = Annotated[int, Meta(ge=0, le=limits.clock_max)]
Sequence = Annotated[int, Meta(ge=0, le=limits.sequence_max)]
Epoch = Annotated[int, Meta(ge=0, le=limits.epoch_max)]
Count = Annotated[int, Meta(ge=0, le=limits.clock_max)]
Nonce = Annotated[str, Meta(max_length=64)] | Count


class Message(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every message has in common: a map with the key `type`."""


class Position(Struct, frozen=True, gc=False, kw_only=True):
    """What a client has of a document already."""

    incarnation: Label
    seq: Sequence


# -------------------------------------------------------------------------------- client to router


class Hello(Message, tag="hello", frozen=True, kw_only=True):
    client: ClientId
    version: Count
    token: Token | None = None
    policy: Policy = "clean"

    def __repr__(self) -> str:
        return f"Hello(client={self.client!r}, version={self.version}, policy={self.policy!r})"


class Subscribe(Message, tag="subscribe", frozen=True, kw_only=True):
    document: DocumentName
    kind: Kind = Kind.JSON
    since: Position | None = field(name="from", default=None)


class Unsubscribe(Message, tag="unsubscribe", frozen=True, kw_only=True):
    document: DocumentName
    epoch: Epoch | None = None


class Mutate(Message, tag="mutation", frozen=True, kw_only=True):
    document: DocumentName
    clock: Clock
    mutation: Raw
    epoch: Epoch


class Acknowledge(Message, tag="ack", frozen=True, kw_only=True):
    document: DocumentName
    seq: Sequence
    epoch: Epoch


class ShowPresence(Message, tag="presence", frozen=True, kw_only=True):
    document: DocumentName
    state: Raw
    epoch: Epoch


class Ping(Message, tag="ping", frozen=True, kw_only=True):
    nonce: Nonce | None = None


class RenewToken(Message, tag="token", frozen=True, kw_only=True):
    token: Token

    def __repr__(self) -> str:
        return "RenewToken(...)"


ClientMessage = (
    Hello | Subscribe | Unsubscribe | Mutate | Acknowledge | ShowPresence | Ping | RenewToken
)


# -------------------------------------------------------------------------------- router to client


class Welcome(Message, tag="welcome", frozen=True, kw_only=True):
    session: Label
    version: Count
    limits: dict[str, int]
    heartbeat_ms: Count
    restored: list[str]


class Subscribed(Message, tag="subscribed", frozen=True, kw_only=True):
    document: DocumentName
    kind: Kind
    incarnation: Label
    seq: Sequence
    resumed: bool
    may_write: bool
    clock: ClockOrZero
    epoch: Epoch


class State(Message, tag="state", frozen=True, kw_only=True):
    document: DocumentName
    seq: Sequence
    state: Raw
    epoch: Epoch


class Mutation(Message, tag="mutation", frozen=True, kw_only=True):
    document: DocumentName
    seq: Sequence
    client: ClientId
    clock: Clock
    mutation: Raw
    epoch: Epoch


class Receipt(Message, tag="ack", frozen=True, kw_only=True):
    document: DocumentName
    clock: Clock
    seq: Sequence
    epoch: Epoch


class Presence(Message, tag="presence", frozen=True, kw_only=True):
    document: DocumentName
    states: dict[str, Raw]
    epoch: Epoch


class Unsubscribed(Message, tag="unsubscribed", frozen=True, kw_only=True):
    document: DocumentName
    code: str | None = None
    message: str | None = None
    retriable: bool | None = None
    epoch: Epoch


class Evicted(Message, tag="evicted", frozen=True, kw_only=True):
    document: DocumentName
    seq: Sequence
    epoch: Epoch


class Failure(Message, tag="error", frozen=True, kw_only=True):
    code: str
    message: str
    retriable: bool
    document: str | None = None
    clock: ClockOrZero | None = None


class Pong(Message, tag="pong", frozen=True, kw_only=True):
    nonce: Nonce | None = None


OfDocument = Subscribed | State | Mutation | Receipt | Presence | Unsubscribed | Evicted
ServerMessage = Welcome | OfDocument | Failure | Pong
