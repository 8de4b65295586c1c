"""Laws of the codec of SMP: what is written is read back, in every version; hostile bytes are only
refused."""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from syncline.errors import MalformedMessageError
from syncline.values.queue_records import QueueMode, ServiceRole
from syncline.values.reconciliation import SetHashes, SetState
from syncline.wire.smp import bodies, failures, versions
from syncline.wire.smp.addresses import RouterAddress, read_address, write_address
from syncline.wire.smp.bodies import Notification, QuotaReached, Received, ReceivedMessage
from syncline.wire.smp.commands import (
    Ack,
    Bus,
    Command,
    Del,
    Get,
    Key,
    Ldel,
    Lget,
    LinkRequest,
    Lkey,
    Lset,
    Ndel,
    New,
    Nkey,
    NotifierKeys,
    Nsub,
    Nsubs,
    Off,
    Pfwd,
    Ping,
    Prxy,
    Que,
    QueueRequest,
    Recq,
    Rfwd,
    Rkey,
    Rslv,
    Send,
    Skey,
    Sub,
    Subs,
    decode_command,
    encode_command,
)
from syncline.wire.smp.failures import FailureError, decode_failure, encode_failure
from syncline.wire.smp.hellos import (
    CertifiedKey,
    ClientHello,
    RouterHello,
    ServiceAccepted,
    ServiceHello,
    ServiceRefused,
    VersionRange,
    decode_client_hello,
    decode_router_hello,
    decode_service_answer,
    encode_client_hello,
    encode_router_hello,
    encode_service_answer,
)
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.messages import (
    Alls,
    Deld,
    End,
    Ends,
    Err,
    Ids,
    Info,
    Lnk,
    Msg,
    Nid,
    Nmsg,
    Ok,
    Pkey,
    Pong,
    Pres,
    Reca,
    Rname,
    RouterMessage,
    Rres,
    Sok,
    Soks,
    decode_message,
    encode_message,
)
from syncline.wire.smp.primitives import Reader
from syncline.wire.smp.stored import StoredMessage
from syncline.wire.smp.transmissions import (
    CONTENT_BYTES_MAX,
    TRANSMISSION_BYTES_MAX,
    Damaged,
    Transmission,
    decode_block,
    encode_transmission,
    pack,
    signed_bytes,
)

PUBLIC = range(versions.VERSION_MIN, versions.VERSION_MAX + 1)
VERSIONS = st.sampled_from([*PUBLIC, versions.EXTENDED])
SESSION_ID = bytes(range(32))

ids = st.binary(max_size=30) | st.binary(min_size=255, max_size=255)
large = st.binary(max_size=40)
tails = st.binary(max_size=40)
counts = st.integers(-(1 << 63), (1 << 63) - 1)
hashes = st.binary(max_size=20)


def keys(kind: KeyKind, raw_bytes: int) -> st.SearchStrategy[PublicKey]:
    return st.builds(PublicKey, st.just(kind), st.binary(min_size=raw_bytes, max_size=raw_bytes))


dh_keys = keys(KeyKind.X25519, 32)
auth_keys = dh_keys | keys(KeyKind.ED25519, 32) | keys(KeyKind.ED448, 57)
notifier_keys = st.builds(NotifierKeys, auth_keys, dh_keys)
certified_keys = st.builds(
    CertifiedKey, st.lists(large, min_size=1, max_size=4).map(tuple), st.binary(max_size=40)
)
ranges = st.tuples(st.integers(0, 65_535), st.integers(0, 65_535)).map(
    lambda pair: VersionRange(*sorted(pair))
)
hosts = st.from_regex(r"\A[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?\Z") | st.sampled_from(
    ["::1", "fe80::a"]
)
addresses = st.builds(
    RouterAddress,
    st.binary(min_size=32, max_size=32),
    st.lists(hosts, min_size=1, max_size=4).map(tuple),
    st.integers(1, 65_535),
)
links = st.builds(LinkRequest, st.none(), ids, large, large)
requests = st.one_of(
    st.builds(QueueRequest, st.just(QueueMode.MESSAGING), st.none() | links),
    st.builds(
        QueueRequest,
        st.just(QueueMode.CONTACT),
        st.none() | st.builds(LinkRequest, ids, ids, large, large),
    ),
)
digests = st.binary(min_size=16, max_size=16)
set_hashes = st.builds(SetHashes, digests, digests)
entity_ids = st.binary(min_size=24, max_size=24)
states = st.builds(
    SetState, st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1), digests, digests
)


def _soks_of(ids_hash: bytes, state: SetState, opening: bytes) -> Soks:
    return Soks(state.count, ids_hash, state, opening)


commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        New,
        auth_keys,
        dh_keys,
        st.none() | ids,
        st.booleans(),
        st.none() | requests,
        st.none() | notifier_keys,
    ),
    st.sampled_from(
        [Sub(), Ndel(), Get(), Off(), Del(), Que(), Nsub(), Ping(), Ldel(), Lget(), Subs(), Nsubs()]
    ),
    st.builds(Subs, counts, hashes, st.none() | set_hashes),
    st.builds(Nsubs, counts, hashes, st.none() | set_hashes),
    st.builds(Recq, tails),
    st.builds(Bus, st.lists(entity_ids, min_size=1, max_size=4).map(tuple)),
    st.builds(Key, auth_keys),
    st.builds(Skey, auth_keys),
    st.builds(Lkey, auth_keys),
    st.builds(Rkey, st.lists(auth_keys, min_size=1, max_size=4).map(tuple)),
    st.builds(Nkey, notifier_keys),
    st.builds(Ack, ids),
    st.builds(Send, st.sampled_from([b"T", b"F"]), tails),
    st.builds(Lset, ids, large, large),
    st.builds(Prxy, addresses, st.none() | ids),
    st.builds(Pfwd, st.integers(0, 65_535), dh_keys, tails),
    st.builds(Rfwd, tails),
    st.builds(Rslv, st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
)

plain_failures = st.sampled_from(
    [getattr(failures, name) for name in vars(failures) if name.isupper() and name[0] != "_"]
).filter(lambda value: isinstance(value, failures.Failure))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
failure_values = st.one_of(
    plain_failures,
    st.builds(
        failures.blocked, st.sampled_from(["spam", "content"]), st.none() | st.integers(0, 1 << 40)
    ),
    st.builds(failures.store, texts),
    st.builds(failures.name_resolver, texts),
    plain_failures.map(failures.proxy_protocol),
    st.builds(failures.proxy_broker, st.sampled_from(["RESPONSE", "UNEXPECTED"]), ids),
)
nids = st.builds(Nid, ids, dh_keys)
messages: st.SearchStrategy[RouterMessage] = st.one_of(
    st.builds(
        Ids,
        ids,
        ids,
        dh_keys,
        st.none() | st.sampled_from(QueueMode),
        st.none() | ids,
        st.none() | ids,
        st.none() | nids,
    ),
    nids,
    st.sampled_from([Ok(), End(), Pong(), Deld(), Alls(), Sok()]),
    st.builds(Sok, ids),
    st.builds(Soks, counts, hashes),
    st.builds(_soks_of, hashes, states, tails),
    st.builds(Reca, tails),
    st.builds(Ends, counts, hashes),
    st.builds(Msg, ids, tails),
    st.builds(Nmsg, st.binary(min_size=24, max_size=24), ids),
    st.builds(Info, tails),
    st.builds(Err, failure_values),
    st.builds(Lnk, ids, large, large),
    st.builds(Pkey, ids, ranges, certified_keys),
    st.builds(Pres, tails),
    st.builds(Rres, tails),
    st.builds(Rname, tails),
)

FIRST_VERSIONS: dict[type[object], int] = {
    **dict.fromkeys((Prxy, Pfwd, Rfwd, Pkey, Pres, Rres), 8),
    **dict.fromkeys((Skey,), 9),
    **dict.fromkeys((Lset, Ldel, Lkey, Lget, Lnk), 15),
    **dict.fromkeys((Subs, Nsubs, Soks, Ends, Alls), 16),
    **dict.fromkeys((Rslv, Rname), 20),
    **dict.fromkeys((Recq, Bus, Reca), versions.EXTENDED),
}


# ------------------------------------------------------------------------------------ round trips


def is_sayable(version: int, said: Command | RouterMessage) -> bool:
    """Whether the version has words for it."""
    if version < FIRST_VERSIONS.get(type(said), 6):
        return False
    match said:
        case New(request=request, notifier=notifier):
            has_link = request is not None and request.link is not None
            return (version >= 15 or not has_link) and (version >= 17 or notifier is None)
        case Subs(count=count, hashes=told) | Nsubs(count=count, hashes=told):
            is_whole = version < versions.EXTENDED or told is not None
            return is_whole and (version < 19 or count is not None)
        case Soks(state=state):
            return version < versions.EXTENDED or state is not None
        case _:
            return True


def as_read(version: int, said: Command) -> Command:
    """What is left of it in a version that has no room for all of it."""
    match said:
        case New() if version < 9:
            return replace(said, request=None)
        case New(request=None) if version < 15:
            return replace(said, request=QueueRequest(QueueMode.CONTACT))
        case Subs() if version < 19:
            return Subs()
        case Nsubs() if version < 19:
            return Nsubs()
        case Subs() | Nsubs() if version < versions.EXTENDED:
            return replace(said, hashes=None)
        case _:
            return said


def as_told(version: int, said: RouterMessage) -> RouterMessage:
    match said:
        case Sok() if version < 16:
            return Ok()
        case Deld() if version < 10:
            return End()
        case Soks(count=count) if version < 19:
            return Soks(count)
        case Soks(count=count, ids_hash=ids_hash) if version < versions.EXTENDED:
            return Soks(count, ids_hash)
        case Ends() if version < 19:
            return replace(said, ids_hash=None)
        case Ids(mode=mode) if version < 15:
            told = (mode or QueueMode.CONTACT) if version >= 9 else None
            return replace(said, mode=told, link_id=None, service_id=None, notifier=None)
        case Ids() if version < 17:
            service_id = said.service_id if version >= 16 else None
            return replace(said, service_id=service_id, notifier=None)
        case Err(failure=failure):
            return Err(decode_failure(encode_failure(version, failure)))
        case _:
            return said


@given(VERSIONS, commands)
def test_commands_come_back(version: int, command: Command) -> None:
    assume(is_sayable(version, command))
    encoded = encode_command(version, command)
    read = decode_command(version, encoded)
    assert read == as_read(version, command)
    assert encode_command(version, read) == encoded


@given(VERSIONS, messages)
def test_messages_come_back(version: int, message: RouterMessage) -> None:
    assume(is_sayable(version, message))
    encoded = encode_message(version, message)
    read = decode_message(version, encoded)
    assert read == as_told(version, message)
    assert encode_message(version, read) == encoded


@given(failure_values)
def test_failures_come_back(failure: failures.Failure) -> None:
    assert decode_failure(encode_failure(versions.VERSION_MAX, failure)) == failure


@given(VERSIONS, failure_values)
def test_an_older_version_can_read_every_failure_it_is_told(
    version: int, failure: failures.Failure
) -> None:
    told = encode_failure(version, failure)
    assert encode_failure(version, decode_failure(told)) == told
    assert version >= 12 or b"BLOCKED" not in told or failure.code in ("STORE", "NAME RESOLVER")


@given(addresses)
def test_addresses_come_back(address: RouterAddress) -> None:
    assert RouterAddress.parse(str(address)) == address
    assert read_address(Reader(write_address(address))) == address


session_ids = st.binary(max_size=48)


@given(session_ids, ranges, st.none() | certified_keys, st.none() | st.binary(max_size=114), tails)
def test_router_hellos_come_back(
    session_id: bytes,
    spoken: VersionRange,
    key: CertifiedKey | None,
    proof: bytes | None,
    later: bytes,
) -> None:
    hello = RouterHello(spoken, session_id, key, proof)
    read = decode_router_hello(encode_router_hello(hello))
    has_key = spoken.max >= 7 and key is not None
    has_proof = has_key and spoken.max >= 19
    assert read == RouterHello(
        spoken, session_id, key if has_key else None, proof if has_proof else None
    )
    if has_proof and proof is not None:
        assert decode_router_hello(encode_router_hello(hello) + later) == read


services = st.builds(ServiceHello, st.sampled_from(ServiceRole), certified_keys)


@given(VERSIONS, ids, st.none() | dh_keys, st.booleans(), st.none() | services, tails)
def test_client_hellos_come_back(
    version: int,
    key_hash: bytes,
    key: PublicKey | None,
    is_proxy: bool,
    service: ServiceHello | None,
    later: bytes,
) -> None:
    hello = ClientHello(version, key_hash, key, is_proxy, service)
    read = decode_client_hello(encode_client_hello(hello))
    assert read == ClientHello(
        version,
        key_hash,
        key if version >= 7 else None,
        is_proxy and version >= 14,
        service if version >= 16 else None,
    )
    # Up to 13, what follows may look like the key that was left out.
    if version >= 14 or (version >= 7 and key is not None):
        assert decode_client_hello(encode_client_hello(hello) + later) == read


@given(
    st.builds(ServiceAccepted, ids)
    | st.builds(ServiceRefused, st.sampled_from(sorted(failures.TRANSPORT_FAILURES)))
)
def test_answers_to_services_come_back(answer: ServiceAccepted | ServiceRefused) -> None:
    assert decode_service_answer(encode_service_answer(answer)) == answer


authorizations = st.sampled_from([b"", bytes(64), b"\xff" * 64, bytes(114)])


@given(
    VERSIONS,
    session_ids,
    authorizations,
    st.booleans(),
    st.lists(st.tuples(ids, ids, tails), max_size=9),
)
def test_transmissions_come_back(
    version: int,
    session_id: bytes,
    authorization: bytes,
    is_service: bool,
    said: list[tuple[bytes, bytes, bytes]],
) -> None:
    signature = bytes(64) if is_service and authorization and version >= 16 else None
    contents = pack(
        encode_transmission(version, session_id, authorization, signature, *each) for each in said
    )
    read = [each for content in contents for each in decode_block(version, session_id, content)]
    assert read == [
        Transmission(authorization, signature, *each, signed_bytes(session_id, *each))
        for each in said
    ]


@given(st.lists(st.integers(0, TRANSMISSION_BYTES_MAX) | st.integers(0, 100), max_size=600))
def test_blocks_are_full_but_not_overfull(sizes: list[int]) -> None:
    contents = pack(bytes(size) for size in sizes)
    assert sum(content[0] for content in contents) == len(sizes)
    at = 0
    for content in contents:
        assert 0 < content[0] <= 255
        assert len(content) <= CONTENT_BYTES_MAX
        at += content[0]
        # The next one did not fit any more.
        assert (
            at == len(sizes)
            or content[0] == 255
            or len(content) + 2 + sizes[at] > CONTENT_BYTES_MAX
        )


times = st.integers(0, (1 << 55) - 1)


@given(
    st.builds(QuotaReached, times)
    | st.builds(ReceivedMessage, times, st.sampled_from([b"T", b"F"]), tails)
)
def test_received_messages_come_back(received: Received) -> None:
    assert bodies.decode_received(bodies.encode_received(received)) == received


@given(st.builds(Notification, ids, times), tails)
def test_notifications_come_back(notification: Notification, later: bytes) -> None:
    encoded = bodies.encode_notification(notification)
    assert bodies.decode_notification(encoded + later) == notification


@given(st.binary(min_size=24, max_size=24), ids, tails)
def test_stored_messages_come_back(message_id: bytes, flags: bytes, body: bytes) -> None:
    message = StoredMessage(message_id, flags, body)
    assert StoredMessage.decode(message.encoded()) == message


# ------------------------------------------------------------------------------------ hostile input


def refuse_or_read(version: int, data: bytes) -> None:
    """Gives the bytes to every reader there is. Only what a peer may cause is let pass."""
    try:
        command = decode_command(version, data)
    except FailureError as error:
        refusal = error.failure
    else:
        # What is read can be said again, and means the same.
        assert decode_command(version, encode_command(version, command)) == command
        refusal = failures.SYNTAX
    assert refusal in (failures.UNKNOWN, failures.SYNTAX)
    readers: tuple[Callable[[bytes], object], ...] = (
        lambda given: encode_message(version, decode_message(version, given)),
        decode_failure,
        decode_router_hello,
        decode_client_hello,
        decode_service_answer,
        bodies.decode_received,
        bodies.decode_notification,
        StoredMessage.decode,
        PublicKey.decode,
    )
    for read in readers:
        with suppress(MalformedMessageError):
            read(data)
    decoded = decode_block(version, SESSION_ID, data)
    assert decoded
    for each in decoded:
        if isinstance(each, Damaged):
            assert each.failure in (failures.BLOCK, failures.SESSION)


def sound(version: int) -> Iterator[bytes]:
    """Bytes of this version that all have some reader."""
    key, auth = PublicKey(KeyKind.X25519, bytes(32)), PublicKey(KeyKind.ED25519, bytes(32))
    certified = CertifiedKey((b"leaf", b"identity"), b"signed")
    nid, pair = Nid(b"n" * 24, key), NotifierKeys(auth, key)
    request = QueueRequest(QueueMode.CONTACT, LinkRequest(b"l" * 24, b"s" * 24, b"fix", b"user"))
    address = RouterAddress(bytes(32), ("a.example", "::1"), 443)
    told_hashes = SetHashes(bytes(16), bytes(16))
    state = SetState(3, 1, told_hashes.xor128, told_hashes.sum128)
    said: list[Command] = [
        New(
            auth,
            key,
            b"pw",
            True,
            request if version >= 15 else None,
            pair if version >= 17 else None,
        ),
        *(Sub(), Subs(1, bytes(16), told_hashes), Nsubs(1, bytes(16), told_hashes)),
        *(Key(auth), Rkey((auth, key)), Nkey(pair), Recq(b"part"), Bus((b"r" * 24, b"q" * 24))),
        *(Ack(b"m" * 24), Skey(auth), Send(b"T", b"hello"), Lset(b"l" * 24, b"fix", b"user")),
        *(Lkey(auth), Prxy(address, b"pw"), Pfwd(8, key, b"boxed"), Rfwd(b"boxed"), Rslv("a")),
    ]
    told: list[RouterMessage] = [
        Ids(b"r" * 24, b"s" * 24, key, QueueMode.MESSAGING, b"l" * 24, b"e" * 24, nid),
        *(Sok(b"e" * 24), Soks(1, bytes(16), state, b"opening"), Reca(b"part")),
        *(Ends(1, bytes(16)), Msg(b"m" * 24, b"boxed"), nid),
        *(Nmsg(bytes(24), b"meta"), Lnk(b"s" * 24, b"fix", b"user"), Info(b"{}"), Ok(), Alls()),
        *(Pkey(b"id", VersionRange(6, 20), certified), Pres(b"boxed"), Rname(b"{}")),
        Err(failures.blocked("spam", 60)),
        Err(failures.proxy_protocol(failures.proxy_broker("RESPONSE", b"BLOCK"))),
        Err(failures.proxy_broker("NETWORK", b"CONNECT \x02no")),
    ]
    encoded = [encode_command(version, each) for each in said if is_sayable(version, each)]
    encoded += [encode_message(version, each) for each in told if is_sayable(version, each)]
    yield from encoded
    yield from (each[4:] for each in encoded if each.startswith(b"ERR "))
    signature = bytes(64) if version >= 16 else None
    yield from pack(
        encode_transmission(version, SESSION_ID, bytes(64), signature, b"c" * 24, b"e" * 24, each)
        for each in encoded[:3]
    )
    yield encode_router_hello(
        RouterHello(VersionRange(6, version), SESSION_ID, certified, bytes(64))
    )
    service = ServiceHello(ServiceRole.MESSAGING, certified)
    yield encode_client_hello(ClientHello(version, bytes(32), key, False, service))
    yield encode_service_answer(ServiceAccepted(b"e" * 24))
    yield encode_service_answer(ServiceRefused("HANDSHAKE BAD_AUTH"))
    yield bodies.encode_received(ReceivedMessage(1, b"T", b"hello"))
    yield bodies.encode_received(QuotaReached(1))
    yield bodies.encode_notification(Notification(b"m" * 24, 1))
    yield StoredMessage(b"m" * 24, b"T", b"hello").encoded()
    yield auth.encoded


SOUND = {version: list(sound(version)) for version in (*PUBLIC, versions.EXTENDED)}
WORDS = [each.__name__.upper().encode() for each in (*get_args(Command), *get_args(RouterMessage))]


def test_every_command_and_message_with_parameters_is_mutated() -> None:
    begun = {data.partition(b" ")[0] for data in SOUND[versions.EXTENDED]}
    with_parameters = {
        each.__name__.upper().encode()
        for each in (*get_args(Command), *get_args(RouterMessage))
        if each.__match_args__
    }
    assert with_parameters - begun <= {b"RRES"}


@pytest.mark.parametrize("version", SOUND)
def test_bytes_cut_anywhere_are_read_or_refused(version: int) -> None:
    for data in SOUND[version]:
        for cut in range(len(data) + 1):
            refuse_or_read(version, data[:cut])


@given(VERSIONS, st.sampled_from(WORDS), st.binary(max_size=60))
def test_any_parameters_are_read_or_refused(version: int, word: bytes, parameters: bytes) -> None:
    refuse_or_read(version, word + b" " + parameters)


@given(st.integers(0, 30), st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(version: int, data: bytes) -> None:
    refuse_or_read(version, data)


@given(VERSIONS, st.data())
def test_damaged_bytes_are_read_or_refused(version: int, data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from(SOUND[version])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    refuse_or_read(version, bytes(damaged))


def damage(chance: random.Random, data: bytes) -> bytes:
    """Flips, cuts, repeats or swaps a few bytes, or makes up all of them."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(damaged) + 1)
        match chance.randrange(6):
            case 0 | 1 if at < len(damaged):
                damaged[at] = chance.randrange(256)
            case 2:
                del damaged[at : at + chance.randint(1, 8)]
            case 3:
                damaged[at:at] = chance.randbytes(chance.randint(1, 8))
            case 4:
                damaged[at:at] = damaged[:at]
            case 5:
                damaged = bytearray(chance.choice(WORDS) + b" " + chance.randbytes(at % 64))
            case _:
                damaged += chance.choice((b" ", b"\0", b"0", b"\xff"))
    return bytes(damaged[:400])


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_million_damaged_inputs_are_read_or_refused() -> None:
    """Each goes to all eleven readers."""
    for seed in range(1_000_000):
        chance = random.Random(seed)
        version = chance.randint(versions.VERSION_MIN, versions.VERSION_MAX)
        data = damage(chance, chance.choice(SOUND[version]))
        try:
            refuse_or_read(version, data)
        except BaseException:
            pytest.fail(f"seed {seed}, version {version}: {data.hex()}")
            raise
