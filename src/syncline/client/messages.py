"""Frames of the sync protocol to what the core understands, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never, cast

from msgspec import json

from syncline.core.replicas import Send
from syncline.errors import LimitExceededError, MalformedMessageError
from syncline.values import limits, replica
from syncline.values.json_value import Json
from syncline.values.kinds import Kind
from syncline.wire import sync, sync_bodies, sync_messages
from syncline.wire.sync_bodies import Encoding
from syncline.wire.sync_messages import Policy

# What a frame has beside its body: keys, numbers, and the name of the document with every
# character escaped.
FRAME_OVERHEAD_BYTES = 1_536


@dataclass(frozen=True, slots=True)
class Identity:
    """What `hello` says about us. The token is a secret and in no text of this object."""

    client: str
    policy: Policy
    token: str | None = None

    def __repr__(self) -> str:
        return f"Identity(client={self.client!r}, policy={self.policy!r})"


# ----------------------------------------------------------------------------------------- sending


def encode(send: Send, identity: Identity, encoding: Encoding) -> bytes:
    """One frame."""
    return sync.encode_client(_to_wire(send, identity, encoding), encoding)


def encode_token(token: str, encoding: Encoding) -> bytes:
    return sync.encode_client(sync_messages.RenewToken(token=token), encoding)


def _to_wire(send: Send, identity: Identity, encoding: Encoding) -> sync_messages.ClientMessage:
    document = send.document
    match send.message:
        case replica.Hello():
            return sync_messages.Hello(
                client=identity.client,
                version=sync.VERSION,
                token=identity.token,
                policy=identity.policy,
            )
        case replica.Subscribe(have=have):
            since = (
                sync_messages.Position(incarnation=have.incarnation, seq=have.seq) if have else None
            )
            return sync_messages.Subscribe(document=document, kind=send.kind, since=since)
        case replica.Unsubscribe(epoch=epoch):
            return sync_messages.Unsubscribe(document=document, epoch=epoch)
        case replica.SendMutation() as message:
            body = mutation_bytes(message.mutation, send.kind)
            return sync_messages.Mutate(
                document=document,
                clock=message.clock,
                mutation=sync_bodies.write_mutation(body, send.kind, encoding),
                epoch=message.epoch,
            )
        case replica.Acknowledge(epoch=epoch, seq=seq):
            return sync_messages.Acknowledge(document=document, seq=seq, epoch=epoch)
        case replica.SendPresence(epoch=epoch, state=state):
            shown = sync_bodies.write_presence(json.encode(state), encoding)
            return sync_messages.ShowPresence(document=document, state=shown, epoch=epoch)
        case _:
            assert_never(send.message)


def mutation_bytes(mutation: replica.Body, kind: Kind) -> bytes:
    """The body of a mutation as the wire knows it: bytes, or the text of a JSON object."""
    return json.encode(mutation) if kind is Kind.JSON else cast("bytes", mutation)


def checked_mutation(mutation: replica.Body, kind: Kind, frame_bytes_max: int) -> replica.Body:
    """A mutation of our own, as a copy that nobody else can change.

    Raises MalformedMessageError for what is none, LimitExceededError for one too large or deep.
    """
    if kind is Kind.JSON:
        mutation = checked_json(mutation, "mutation")
        size = len(json.encode(mutation))
    elif isinstance(mutation, bytes | bytearray | memoryview):
        mutation = bytes(mutation)
        # Four characters for three bytes where the encoding is JSON.
        size = (len(mutation) + 2) // 3 * 4
    else:
        raise MalformedMessageError(f"a mutation of a document of kind {kind} is bytes")
    room = frame_bytes_max - FRAME_OVERHEAD_BYTES
    if size > room:
        raise LimitExceededError("the size of a mutation in bytes", size, room)
    return mutation


def checked_presence(state: Json) -> Json:
    """A presence of our own, as a copy. Raises as `checked_mutation` does."""
    state = checked_json(state, "presence")
    size = len(json.encode(state))
    if size > limits.presence_bytes_max:
        raise LimitExceededError("the size of a presence in bytes", size, limits.presence_bytes_max)
    return state


def checked_json(value: Json, what: str) -> Json:
    """A copy in plain lists and dictionaries that both encodings can carry."""
    plain = _plain(value, limits.json_depth_max, what)
    sync_bodies.check_value(plain, what)
    return plain


def _plain(value: Json, depth_left: int, what: str) -> Json:
    if isinstance(value, Mapping | list | tuple):
        if depth_left == 0:
            raise LimitExceededError(
                f"the nesting of a {what}", limits.json_depth_max + 1, limits.json_depth_max
            )
        if isinstance(value, Mapping):
            return {name: _plain(part, depth_left - 1, what) for name, part in value.items()}
        return [_plain(part, depth_left - 1, what) for part in value]
    return value


# --------------------------------------------------------------------------------------- receiving


def from_wire(
    message: sync_messages.OfDocument | sync_messages.Failure, kind: Kind, encoding: Encoding
) -> replica.FromRouter:
    """What the router says about a document of ours. Raises ProtocolError for a body that is no
    such."""
    match message:
        case sync_messages.Subscribed():
            return replica.Subscribed(
                epoch=message.epoch,
                kind=message.kind,
                incarnation=message.incarnation,
                seq=message.seq,
                resumed=message.resumed,
                may_write=message.may_write,
                clock=message.clock,
            )
        case sync_messages.State():
            state = _read_state(message, kind, encoding)
            return replica.StateMessage(message.epoch, message.seq, state)
        case sync_messages.Mutation():
            body = sync_bodies.read_mutation(message.mutation, kind, encoding)
            mutation: replica.Body = json.decode(body) if kind is Kind.JSON else body
            return replica.MutationMessage(
                message.epoch, message.seq, message.client, message.clock, mutation
            )
        case sync_messages.Receipt():
            return replica.Receipt(message.epoch, message.clock, message.seq)
        case sync_messages.Presence():
            states: dict[str, Json] = {
                client: json.decode(sync_bodies.read_presence(state, encoding))
                for client, state in message.states.items()
            }
            return replica.PresenceMessage(message.epoch, states)
        case sync_messages.Unsubscribed():
            return replica.Unsubscribed(
                message.epoch, message.code, message.message or "", bool(message.retriable)
            )
        case sync_messages.Evicted():
            return replica.Evicted(message.epoch, message.seq)
        case sync_messages.Failure():
            return replica.Refusal(
                message.code, message.message, message.retriable, message.clock or None
            )
        case _:
            assert_never(message)


def _read_state(message: sync_messages.State, kind: Kind, encoding: Encoding) -> replica.Body:
    body = sync_bodies.read_state(message.state, kind, encoding)
    match kind:
        case Kind.JSON:
            state: Json = json.decode(body)
            return state
        case Kind.YJS:
            return body
        case Kind.BYTES:
            return cast("Json", sync_bodies.split_updates(body))
