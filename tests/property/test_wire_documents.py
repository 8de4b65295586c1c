"""Laws of the document protocols: what is written is read back; hostile bytes are only refused."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pycrdt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from syncline.errors import ProtocolError
from syncline.values import limits
from syncline.values.kinds import Kind
from syncline.wire import (
    awareness,
    cable,
    cable_payloads,
    lib0,
    sync,
    sync_bodies,
    yjs,
    yjs_extent,
    yjs_structs,
    yjs_updates,
)
from syncline.wire.awareness import Awareness, Entry
from syncline.wire.sync_bodies import Encoding
from syncline.wire.sync_messages import (
    Acknowledge,
    ClientMessage,
    Evicted,
    Failure,
    Hello,
    Mutate,
    Mutation,
    OfDocument,
    Ping,
    Position,
    Presence,
    Receipt,
    RenewToken,
    ServerMessage,
    ShowPresence,
    State,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)

ENCODINGS = st.sampled_from(["json", "msgpack"])
KINDS = st.sampled_from(list(Kind))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
documents = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=50)
clients = st.from_regex(r"\A[A-Za-z0-9._~-]{1,64}\Z")
labels = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64)
numbers = st.integers(0, limits.clock_max)
clocks = st.integers(1, limits.clock_max)
sequences = st.integers(0, limits.sequence_max)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
patches = st.dictionaries(texts, values, max_size=4)


def json_raws(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Raw]:
    return of.map(lambda value: Raw(msgspec.json.encode(value)))


client_messages: st.SearchStrategy[ClientMessage] = st.one_of(
    st.builds(
        Hello,
        client=clients,
        version=numbers,
        token=st.none() | texts,
        policy=st.sampled_from(["clean", "intent", "resume"]),
    ),
    st.builds(
        Subscribe,
        document=documents,
        kind=KINDS,
        since=st.none() | st.builds(Position, incarnation=labels, seq=sequences),
    ),
    st.builds(Unsubscribe, document=documents, epoch=st.none() | numbers),
    st.builds(Mutate, document=documents, clock=clocks, mutation=json_raws(patches), epoch=numbers),
    st.builds(Acknowledge, document=documents, seq=sequences, epoch=numbers),
    st.builds(ShowPresence, document=documents, state=json_raws(values), epoch=numbers),
    st.builds(Ping, nonce=st.none() | numbers | texts),
    st.builds(RenewToken, token=texts),
)
of_document: st.SearchStrategy[OfDocument] = st.one_of(
    st.builds(
        Subscribed,
        document=documents,
        kind=KINDS,
        incarnation=labels,
        seq=sequences,
        resumed=st.booleans(),
        may_write=st.booleans(),
        clock=numbers,
        epoch=numbers,
    ),
    st.builds(State, document=documents, seq=sequences, state=json_raws(values), epoch=numbers),
    st.builds(
        Mutation,
        document=documents,
        seq=sequences,
        client=clients,
        clock=clocks,
        mutation=json_raws(patches),
        epoch=numbers,
    ),
    st.builds(Receipt, document=documents, clock=clocks, seq=sequences, epoch=numbers),
    st.builds(
        Presence,
        document=documents,
        states=st.dictionaries(clients, json_raws(values), max_size=3),
        epoch=numbers,
    ),
    st.builds(
        Unsubscribed,
        document=documents,
        code=st.none() | texts,
        message=st.none() | texts,
        retriable=st.none() | st.booleans(),
        epoch=numbers,
    ),
    st.builds(Evicted, document=documents, seq=sequences, epoch=numbers),
)
server_messages: st.SearchStrategy[ServerMessage] = (
    of_document
    | st.builds(
        Welcome,
        session=labels,
        version=numbers,
        limits=st.dictionaries(texts, numbers, max_size=3),
        heartbeat_ms=numbers,
        restored=st.lists(texts, max_size=3),
    )
    | st.builds(
        Failure,
        code=texts,
        message=texts,
        retriable=st.booleans(),
        document=st.none() | documents,
        clock=st.none() | numbers,
    )
)


# ------------------------------------------------------------------------------------ round trips


@given(client_messages)
def test_messages_of_a_client_come_back(message: ClientMessage) -> None:
    assert sync.decode_client(sync.encode_client(message, "json"), "json") == message


@given(server_messages)
def test_messages_of_the_router_come_back(message: ServerMessage) -> None:
    assert sync.decode_server(sync.encode_server(message, "json"), "json") == message


@given(of_document, numbers)
def test_a_head_goes_with_the_tail_of_any_epoch(message: OfDocument, epoch: int) -> None:
    head = sync.encode_shared(message, "json")
    theirs = sync.decode_server(head + sync.encode_epoch(epoch, "json"), "json")
    assert theirs == msgspec.structs.replace(message, epoch=epoch)
    packed = Receipt(document="d", clock=1, seq=1, epoch=message.epoch)
    head = sync.encode_shared(packed, "msgpack")
    assert sync.decode_server(
        head + sync.encode_epoch(epoch, "msgpack"), "msgpack"
    ) == msgspec.structs.replace(packed, epoch=epoch)


@given(patches, ENCODINGS)
def test_a_patch_is_the_same_in_both_encodings(patch: dict[str, Any], encoding: Encoding) -> None:
    encode = msgspec.json.encode if encoding == "json" else msgspec.msgpack.encode
    body = sync_bodies.read_mutation(Raw(encode(patch)), Kind.JSON, encoding)
    assert msgspec.json.decode(body) == patch
    for other in ("json", "msgpack"):
        raw = sync_bodies.write_mutation(body, Kind.JSON, other)
        again = sync_bodies.read_mutation(raw, Kind.JSON, other)
        assert msgspec.json.decode(again) == patch


@given(st.lists(st.binary(max_size=40), max_size=5), ENCODINGS)
def test_bytes_are_the_same_in_both_encodings(updates: list[bytes], encoding: Encoding) -> None:
    for update in updates:
        raw = sync_bodies.write_mutation(update, Kind.BYTES, encoding)
        assert sync_bodies.read_mutation(raw, Kind.BYTES, encoding) == update
    raw = sync_bodies.write_state(msgspec.msgpack.encode(updates), Kind.BYTES, encoding)
    assert sync_bodies.split_updates(sync_bodies.read_state(raw, Kind.BYTES, encoding)) == updates


@given(numbers, st.integers(-limits.clock_max, limits.clock_max), texts, st.binary(max_size=300))
def test_primitives_of_lib0_come_back(unsigned: int, signed: int, text: str, data: bytes) -> None:
    reader = lib0.Reader(
        lib0.var_uint(unsigned)
        + lib0.var_int(signed)
        + lib0.var_string(text)
        + lib0.var_bytes(data)
    )
    read = reader.var_uint(), reader.var_int(), reader.var_string(), reader.var_bytes()
    assert read == (unsigned, signed, text, data)
    reader.finish()


@given(st.dictionaries(numbers, numbers, max_size=6))
def test_state_vectors_come_back(vector: dict[int, int]) -> None:
    numbers_in_order = [len(vector), *(each for pair in vector.items() for each in pair)]
    encoded = b"".join(map(lib0.var_uint, numbers_in_order))
    assert yjs_updates.decode_state_vector(encoded) == vector


states = st.sampled_from([None, b"{}", b'{"cursor":[1,2]}', b'"here"', b"0"])
entries = st.lists(
    st.builds(Entry, st.integers(0, 8), st.integers(0, 8), states),
    max_size=6,
    unique_by=lambda entry: entry.client,
)


@given(entries)
def test_awareness_comes_back(given_entries: list[Entry]) -> None:
    assert awareness.decode(awareness.encode(given_entries)) == given_entries


@given(st.lists(st.tuples(st.integers(1, 3), entries), max_size=12))
def test_awareness_agrees_with_the_library(said: list[tuple[int, list[Entry]]]) -> None:
    """The library remembers the clocks of all who left; so do we within the limit."""
    ours, theirs = Awareness(), pycrdt.Awareness(pycrdt.Doc[Any](client_id=99))
    for connection, update in said:
        news = ours.apply(connection, update, now_ms=0)
        theirs.apply_awareness_update(awareness.encode(update), "test")
        assert all(entry in update for entry in news)
    del theirs.states[99]
    assert {
        entry.client: msgspec.json.decode(entry.state or b"null") for entry in ours.everybody()
    } == theirs.states


@given(st.lists(st.tuples(st.integers(1, 3), entries), max_size=12))
def test_whoever_is_told_of_all_news_knows_everybody(said: list[tuple[int, list[Entry]]]) -> None:
    router, listener = Awareness(), Awareness()
    for connection, update in said:
        listener.apply(0, router.apply(connection, update, now_ms=0), now_ms=0)
    listener.apply(0, router.disconnect(1), now_ms=0)
    assert sorted(listener.everybody(), key=repr) == sorted(router.everybody(), key=repr)


# ---------------------------------------------------------------------------------- hostile bytes


def read_all_bodies(raw: Raw, encoding: Encoding) -> None:
    for read in (sync_bodies.read_mutation, sync_bodies.read_state):
        for kind in Kind:
            refused_or_read(lambda read=read, kind=kind: read(raw, kind, encoding))  # type: ignore[misc]
    refused_or_read(lambda: sync_bodies.read_presence(raw, encoding))


def refused_or_read(read: Callable[[], object]) -> object:
    """Anything but a ProtocolError fails the test."""
    try:
        return read()
    except ProtocolError:
        return None


JSON_HAZARDS = [
    b'{"type":"mutation","document":"d","epoch":1,"clock":1,"mutation":' + tail
    for tail in (
        b"NaN}",
        b'{"a":1,"a":2}}',
        b'{"a":"\\ud800"}}',
        b'{"\\udc00":1}}',
        b'{"a":"\xed\xa0\x80"}}',
        b'{"a":"\xff"}}',
        b'{"a":1e400}}',
        b'{"a":-0}}',
        b'{"a":123456789012345678901234567890}}',
        b'{"a":"\\u0000"}}',
        b"[" * 3_000 + b"]" * 3_000 + b"}",
        b'{"a":' * 200 + b"1" + b"}" * 201,
        b"}",
    )
]


@given(st.binary(max_size=200) | st.sampled_from(JSON_HAZARDS), ENCODINGS)
@example(b"\x81\xa4type" + b"\x91" * 5_000, "msgpack")
@example(b"\xdf\xff\xff\xff\xff", "msgpack")
@example(b"\xdd\x7f\xff\xff\xff" + bytes(100), "msgpack")
@example(b"\xc9\xff\xff\xff\xff\x05", "msgpack")
def test_hostile_frames_of_sync_are_refused(data: bytes, encoding: Encoding) -> None:
    for decode in (sync.decode_client, sync.decode_server):
        message = refused_or_read(lambda decode=decode: decode(data, encoding))  # type: ignore[misc]
        if isinstance(message, Mutate | Mutation):
            read_all_bodies(message.mutation, encoding)
    read_all_bodies(Raw(data), encoding)


@pytest.mark.parametrize("data", JSON_HAZARDS)
def test_a_mutation_that_passes_is_safe_to_relay(data: bytes) -> None:
    message = refused_or_read(lambda: sync.decode_client(data, "json"))
    if isinstance(message, Mutate):
        mutation = message.mutation
        body = refused_or_read(lambda: sync_bodies.read_mutation(mutation, Kind.JSON, "json"))
        if isinstance(body, bytes):
            body.decode()
            packed = sync_bodies.write_mutation(body, Kind.JSON, "msgpack")
            assert msgspec.msgpack.decode(packed) == msgspec.json.decode(body)


@given(client_messages, ENCODINGS, st.data())
def test_a_damaged_frame_of_sync_is_refused_or_read(
    message: ClientMessage, encoding: Encoding, data: st.DataObject
) -> None:
    if isinstance(message, Mutate | ShowPresence):
        encoding = "json"  # where its body is
    frame = bytearray(sync.encode_client(message, encoding))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    refused_or_read(lambda: sync.decode_client(frame, encoding))
    refused_or_read(lambda: sync.decode_client(frame[:cut], encoding))


HUGE = b"\xff\xff\xff\xff\xff\xff\xff\x0f"


@given(st.binary(max_size=200))
@example(b"\x00\x00" + HUGE)
@example(b"\x01" + HUGE + b"x")
@example(HUGE)
@example(b"\x80" * 100)
def test_hostile_frames_of_yjs_are_refused(data: bytes) -> None:
    frame = refused_or_read(lambda: yjs.decode(data))
    if frame is not None:
        assert yjs.decode(yjs.encode(frame)) == frame  # type: ignore[arg-type]
    refused_or_read(lambda: awareness.decode(data))
    refused_or_read(lambda: yjs_updates.check_update(data))
    refused_or_read(lambda: yjs_updates.decode_state_vector(data))


@given(
    st.binary(max_size=200), st.sampled_from([b"\x01\x01\x07\x00", b"\x01\x7f\x07\x00", b"\x00"])
)
@example(b"\x08\x01\x01t\x01" + b"\x75\x01" * 3_000, b"\x01\x01\x07\x00")
@example(b"\x08\x01\x01t" + HUGE, b"\x01\x01\x07\x00")
def test_hostile_updates_of_yjs_are_refused(data: bytes, head: bytes) -> None:
    refused_or_read(lambda: yjs_updates.check_update(head + data))


def typed() -> bytes:
    document = pycrdt.Doc[Any](client_id=7)
    text = document.get("t", type=pycrdt.Text)
    text += "typed"
    del text[1:3]
    document.get("m", type=pycrdt.Map)["k"] = {"a": [1, None]}
    return document.get_update()


TYPED = typed()


@given(st.integers(0, len(TYPED) - 1), st.integers(0, 255))
def test_a_damaged_update_is_refused_or_folds(at: int, byte: int) -> None:
    """What passes may still be no use to a document, but never takes the process down."""
    damaged = bytearray(TYPED)
    damaged[at] = byte
    if refused_or_read(lambda: checked(bytes(damaged))) is not None:
        with suppress(ValueError, RuntimeError):
            pycrdt.Doc[Any]().apply_update(bytes(damaged))


def checked(update: bytes) -> bytes:
    yjs_updates.check_update(update)
    return update


edits = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["type", "delete", "format", "set", "unset", "append", "nest", "nothing"]),
        st.integers(0, 30),
        st.sampled_from(["a", "bc", "é", "😀", ""]),
    ),
    max_size=20,
)


def edit(replica: pycrdt.Doc[Any], action: str, at: int, letters: str) -> None:
    text = replica.get("t", type=pycrdt.Text)
    keys = replica.get("m", type=pycrdt.Map)
    items = replica.get("a", type=pycrdt.Array)
    at = min(at, len(str(text).encode()))
    while at and (str(text).encode()[at : at + 1] or b"a")[0] & 0xC0 == 0x80:
        at -= 1  # positions are bytes here; not into the middle of a character
    match action:
        case "type":
            text.insert(at, letters)
        case "delete":
            text.clear()
        case "format" if str(text).isascii() and len(text) > at:
            text.format(at, len(text), {"bold": letters})
        case "set":
            keys[letters] = {"at": [at, letters, None]}
        case "unset" if letters in keys:
            del keys[letters]
        case "append":
            items.append(letters)
        case "nest":
            items.append(pycrdt.Map({letters: pycrdt.Text(letters)}))
        case _:
            pass


@given(edits, st.randoms(use_true_random=False))
def test_no_update_of_a_real_document_is_refused(
    edited: list[tuple[int, str, int, str]], chance: Any
) -> None:
    """Whoever wrote it, in whatever order it arrived, merged or in pieces."""
    updates: list[bytes] = []
    replicas = [pycrdt.Doc[Any](client_id=client) for client in (1, 300, (1 << 53) - 1)]
    for replica in replicas:
        replica.observe(lambda event: updates.append(event.update))
    for who, action, at, letters in edited:
        edit(replicas[who], action, at, letters)
        if updates:
            replicas[(who + 1) % 3].apply_update(chance.choice(updates))
    seen = list(updates)
    chance.shuffle(seen)
    late = pycrdt.Doc[Any]()
    for update in seen[: len(seen) // 2]:
        late.apply_update(update)
    whole = [each.get_update() for each in (*replicas, late)]
    merged = [pycrdt.merge_updates(*seen[::2]), pycrdt.merge_updates(*whole)] if seen else []
    partial = [
        pycrdt.get_update(update, late.get_state()) for update in (*updates, *whole, *merged)
    ]
    for update in (*updates, *whole, *merged, *partial):
        yjs_updates.check_update(update)


@given(st.binary(max_size=200) | values.map(msgspec.json.encode))
@example(b'{"command":"subscribe","identifier":"' + b"[" * 2_000 + b'"}')
@example(b'{"command":"message","identifier":"{}","data":"' + b"[" * 5_000 + b'"}')
@example(b'{"command":"pong","x":' + b"[" * 5_000)
@example(b'{"command":"history","identifier":"i","history":{"since":1e400}}')
@example(b'{"command":"history","identifier":"i","history":{"since":NaN}}')
def test_hostile_frames_of_cable_are_refused(data: bytes) -> None:
    command = refused_or_read(lambda: cable.decode_command(data))
    if isinstance(command, cable.Subscribe | cable.Perform):
        identifier = command.identifier
        refused_or_read(lambda: cable.read_identifier(identifier))
    if isinstance(command, cable.Perform):
        inside = command.data
        refused_or_read(lambda: cable_payloads.read_sent(inside))
    refused_or_read(lambda: cable_payloads.read_sent(data))
    refused_or_read(lambda: cable_payloads.read(data))


@given(
    texts | documents.map(lambda name: msgspec.json.encode({"channel": "C", "path": name}).decode())
)
def test_identifiers_are_read_or_refused(identifier: str) -> None:
    channel = refused_or_read(lambda: cable.read_identifier(identifier))
    if isinstance(channel, cable.Channel):
        assert 0 < len(channel.document.encode()) <= limits.document_name_bytes_max
    command = cable.Subscribe(identifier=identifier)
    assert cable.decode_command(cable.encode(command)) == command


# --------------------------------------------------------- short cuts of Yjs: they decide the same


def _verdict(update: bytes) -> type[Exception] | None:
    try:
        yjs_updates.check_update(update)
    except ProtocolError as error:
        return type(error)
    return None


small_clocks = st.integers(0, 300).map(lib0.var_uint)
one_of_few_clients = st.sampled_from([0, 7, 200, 1 << 50]).map(lib0.var_uint)
item_ids = st.tuples(one_of_few_clients, small_clocks).map(b"".join)
items = st.one_of(
    st.tuples(st.sampled_from([b"\x84", b"\x44", b"\xa4"]), item_ids),
    st.tuples(st.sampled_from([b"\xc4", b"\xe4", b"\xc1"]), item_ids, item_ids),
    st.just((b"\x04\x01\x01t",)),
).map(b"".join)
item_texts = st.sampled_from(["", "a", "ab", "ä", "😀", "a" * 200]).map(lib0.var_string)
structs = st.lists(st.tuples(items, item_texts).map(b"".join), min_size=1, max_size=3)


@st.composite
def updates_of_text(draw: st.DrawFn) -> bytes:
    """Right or nearly so: one client, a few items, and perhaps a byte changed."""
    found = draw(structs)
    parts = [b"\x01", lib0.var_uint(len(found)), draw(one_of_few_clients), draw(small_clocks)]
    update = bytearray(b"".join([*parts, *found, b"\x00"]))
    if draw(st.booleans()):
        update[draw(st.integers(0, len(update) - 1))] = draw(st.integers(0, 255))
    return bytes(update)


def _check_extent(update: bytes) -> None:
    """What a match tells of an update is what reading it tells."""
    extent = yjs_extent.extent_of(update)
    heads = {client: clock + 1 for client, clock in extent.refers.items()} | extent.needs
    for those in (heads, extent.needs, extent.refers, extent.refers | extent.needs):
        typed = yjs_extent.typed_on(update, those)
        if typed is not None:
            assert extent.missing(those) is None
            assert extent.follows(those)
            assert dict([typed]) == extent.ends
    if yjs_updates.is_typed_text(update):
        assert yjs_extent.typed_on(update, heads) is not None


@given(updates_of_text())
def test_matching_an_update_decides_as_reading_it_does(update: bytes) -> None:
    matched = _verdict(update)
    if matched is None:
        _check_extent(update)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(yjs_structs, "_match_typed", lambda data: None)
        patched.setattr(yjs_structs, "_match_text_item", lambda data, at: None)
        assert matched == _verdict(update)
    if yjs_updates.is_typed_text(update):
        assert matched is None
        pycrdt.get_state(update)


@given(st.binary(max_size=200) | st.binary(max_size=140).map(yjs.encode_update))
@example(b"\x00\x02\x00")
def test_a_short_update_is_what_reading_the_frame_gives(data: bytes) -> None:
    update = yjs.read_short_update(data)
    if update is not None:
        assert yjs.decode(data) == yjs.SyncUpdate(update)
    assert yjs.read_short_update(data, len(data) - 1) is None
