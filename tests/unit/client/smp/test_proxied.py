"""A sender behind a proxy, against a proxy and a relay that do as the test says."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest

from syncline.certificates import Identity, make_identity
from syncline.client.smp import queues
from syncline.client.smp.proxied import ProxiedRouter
from syncline.errors import (
    LimitExceededError,
    LinkLostError,
    MalformedMessageError,
    NotAuthorizedError,
    SynclineError,
    UnexpectedMessageError,
    UnsupportedVersionError,
)
from syncline.links.private_keys import PrivateKey
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.authorizations import is_authorized
from syncline.wire.smp.boxes import SecretBox, shared_secret
from syncline.wire.smp.commands import (
    Command,
    Lget,
    Lkey,
    Pfwd,
    Prxy,
    Rslv,
    Send,
    Skey,
    Sub,
    decode_command,
    encode_command,
)
from syncline.wire.smp.failures import Failure, FailureError
from syncline.wire.smp.forwards import open_command, seal_answer
from syncline.wire.smp.hellos import CertifiedKey, VersionRange
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import (
    Err,
    Lnk,
    Ok,
    Pkey,
    Pong,
    Pres,
    RouterMessage,
    encode_message,
)
from syncline.wire.smp.signed_keys import sign_key
from syncline.wire.smp.transmissions import (
    TRANSMISSION_BYTES_MAX,
    Transmission,
    decode_block,
    encode_transmission,
    pack,
)

NOW = datetime.now(UTC)
RELAY = make_identity(NOW)
OTHER = make_identity(NOW)
ADDRESS = RouterAddress(RELAY.fingerprint, ("relay.example",))
QUEUE = b"q" * 24
KEYS = [
    PrivateKey(KeyKind.ED25519, b"k" * 32),
    PrivateKey(KeyKind.ED448, b"k" * 57),
    PrivateKey(KeyKind.X25519, b"k" * 32),
]

Answering = Callable[[Command], RouterMessage]


@dataclass
class FakeProxy:
    """The link to a proxy, the proxy, and the relay behind it."""

    identity: Identity = RELAY
    versions: VersionRange = field(default_factory=lambda: VersionRange(6, 20))
    answering: Answering = lambda _: Ok()
    # What the test makes of answers.
    change_pkey: Callable[[Pkey], RouterMessage] = lambda pkey: pkey
    change_inner: Callable[[bytes, bytes], tuple[bytes, bytes]] = lambda corr_id, entity_id: (
        corr_id,
        entity_id,
    )
    change_pres: Callable[[Pres], RouterMessage] = lambda pres: pres
    content: bytes | None = None
    # Raised in place of an answer, in this order.
    errors: list[SynclineError] = field(default_factory=list[SynclineError])
    prxys: list[Prxy] = field(default_factory=list[Prxy])
    pfwds: list[tuple[Pfwd, bytes, bytes]] = field(default_factory=list[tuple[Pfwd, bytes, bytes]])
    inner: list[tuple[Transmission, Command]] = field(
        default_factory=list[tuple[Transmission, Command]]
    )
    timeouts: list[float | None] = field(default_factory=list[float | None])
    session_count: int = 0

    @property
    def session_id(self) -> bytes:
        return sha256(b"%d" % self.session_count).digest()

    @property
    def relay_key(self) -> PrivateKey:
        return PrivateKey(KeyKind.X25519, sha256(b"key %d" % self.session_count).digest())

    async def request(
        self,
        command: Command,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        *,
        timeout_s: float | None = None,
        corr_id: bytes | None = None,
    ) -> RouterMessage:
        assert key is None, "a proxy is not told who sends"
        self.timeouts.append(timeout_s)
        await asyncio.sleep(0)
        if isinstance(command, Prxy):
            self.prxys.append(command)
            self.session_count += 1
            signer = self.identity.key
            signed = sign_key(self.relay_key.public, signer.raw, signer.kind)
            key_shown = CertifiedKey(self.identity.chain, signed)
            return self.change_pkey(Pkey(self.session_id, self.versions, key_shown))
        assert isinstance(command, Pfwd)
        assert corr_id is not None
        self.pfwds.append((command, entity_id, corr_id))
        if self.errors:
            raise self.errors.pop(0)
        if entity_id != self.session_id:
            raise FailureError(failures.NO_SESSION)
        return self.change_pres(self._relayed(command, corr_id))

    def _relayed(self, command: Pfwd, corr_id: bytes) -> Pres:
        box = SecretBox(shared_secret(self.relay_key.raw, command.key.raw))
        opened = open_command(box, corr_id, command.body)
        (found,) = decode_block(command.version, self.session_id, opened)
        assert isinstance(found, Transmission)
        asked = decode_command(command.version, found.body)
        self.inner.append((found, asked))
        corr_id_told, entity_id_told = self.change_inner(found.corr_id, found.entity_id)
        body = encode_message(command.version, self.answering(asked))
        transmission = encode_transmission(
            command.version, self.session_id, b"", None, corr_id_told, entity_id_told, body
        )
        content = pack([transmission])[0] if self.content is None else self.content
        return Pres(seal_answer(box, corr_id, content))


async def opened(proxy: FakeProxy, **more: object) -> ProxiedRouter:
    return await ProxiedRouter.open(proxy, ADDRESS, now=lambda: NOW, **more)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------- opening


async def test_the_proxy_is_told_which_router_and_its_own_password() -> None:
    proxy = FakeProxy()
    router = await opened(proxy, password="sesame")
    assert proxy.prxys == [Prxy(ADDRESS, b"sesame")]
    assert (router.version, router.session_id) == (20, proxy.session_id)
    assert proxy.timeouts == [30.0]
    await opened(proxy)
    assert proxy.prxys[1] == Prxy(ADDRESS, None)


@pytest.mark.parametrize(
    ("offered", "spoken", "version"),
    [((6, 20), (8, 20), 20), ((6, 15), (8, 20), 15), ((8, 8), (8, 20), 8), ((6, 25), (8, 11), 11)],
)
async def test_the_highest_version_of_both_is_spoken(
    offered: tuple[int, int], spoken: tuple[int, int], version: int
) -> None:
    proxy = FakeProxy(versions=VersionRange(*offered))
    router = await opened(proxy, versions=VersionRange(*spoken))
    await queues.send(router, QUEUE, b"hello")
    assert router.version == proxy.pfwds[0][0].version == version


@pytest.mark.parametrize("offered", [(6, 7), (21, 30)])
async def test_a_router_without_a_common_version_is_told(offered: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedVersionError, match="versions"):
        await opened(FakeProxy(versions=VersionRange(*offered)))
    with pytest.raises(UnsupportedVersionError):
        await opened(FakeProxy(versions=VersionRange(6, 7)), versions=VersionRange(6, 20))


async def test_another_router_is_not_believed() -> None:
    with pytest.raises(NotAuthorizedError, match="another router"):
        await opened(FakeProxy(identity=OTHER))


async def test_a_key_that_the_router_did_not_sign_is_not_believed() -> None:
    def swap(pkey: Pkey) -> Pkey:
        own = PrivateKey(KeyKind.X25519, b"m" * 32)
        signed = sign_key(own.public, OTHER.key.raw, OTHER.key.kind)
        return replace(pkey, key=CertifiedKey(RELAY.chain, signed))

    with pytest.raises(MalformedMessageError, match="signature"):
        await opened(FakeProxy(change_pkey=swap))


async def test_a_leaf_that_the_identity_did_not_sign_is_not_believed() -> None:
    def graft(pkey: Pkey) -> Pkey:
        chain = (OTHER.chain[0], RELAY.chain[1])
        own = PrivateKey(KeyKind.X25519, b"m" * 32)
        return replace(
            pkey, key=CertifiedKey(chain, sign_key(own.public, OTHER.key.raw, OTHER.key.kind))
        )

    with pytest.raises(MalformedMessageError):
        await opened(FakeProxy(change_pkey=graft))


async def test_a_chain_without_an_identity_is_none() -> None:
    def cut(pkey: Pkey) -> Pkey:
        # Signed by the identity itself: that is not what it is for.
        assert RELAY.ca_key is not None
        own = PrivateKey(KeyKind.X25519, b"m" * 32)
        signed = sign_key(own.public, RELAY.ca_key.raw, RELAY.ca_key.kind)
        return replace(pkey, key=CertifiedKey(RELAY.chain[1:], signed))

    with pytest.raises(MalformedMessageError):
        await opened(FakeProxy(change_pkey=cut))


async def test_a_chain_that_has_expired_is_not_believed() -> None:
    with pytest.raises(MalformedMessageError):
        await ProxiedRouter.open(FakeProxy(), ADDRESS, now=lambda: NOW + timedelta(days=40_000))


async def test_a_key_of_another_kind_is_none() -> None:
    def other_kind(pkey: Pkey) -> Pkey:
        signed = sign_key(KEYS[0].public, RELAY.key.raw, RELAY.key.kind)
        return replace(pkey, key=CertifiedKey(RELAY.chain, signed))

    with pytest.raises(MalformedMessageError, match="kind"):
        await opened(FakeProxy(change_pkey=other_kind))


async def test_a_session_id_that_leaves_no_room_in_a_block_is_refused() -> None:
    def longer(size: int) -> Callable[[Pkey], Pkey]:
        return lambda pkey: replace(pkey, session_id=bytes(size))

    router = await opened(FakeProxy(change_pkey=longer(42)))
    largest = encode_command(20, Pfwd(20, KEYS[2].public, bytes(16_242)))
    ids = b"c" * 24, router.session_id
    size = len(encode_transmission(20, b"", b"", None, *ids, largest))
    assert size == TRANSMISSION_BYTES_MAX
    with pytest.raises(LimitExceededError):
        await opened(FakeProxy(change_pkey=longer(43)))


async def test_what_is_no_answer_to_prxy_is_told() -> None:
    with pytest.raises(UnexpectedMessageError, match="PONG"):
        await opened(FakeProxy(change_pkey=lambda _: Pong()))


# ------------------------------------------------------------------------------------------ asking


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.kind.value)
async def test_a_command_is_authorized_for_the_relay_alone(key: PrivateKey) -> None:
    proxy = FakeProxy()
    router = await opened(proxy)
    await queues.secure_as_sender(router, QUEUE, key)
    await queues.send(router, QUEUE, bytes(16_048), key)
    commands = [command for _, command in proxy.inner]
    assert commands == [Skey(key.public), Send(b"T", bytes(16_048))]
    for found, _ in proxy.inner:
        assert found.entity_id == QUEUE
        assert found.service_signature is None
        assert is_authorized(
            key.public, found.authorization, found.signed, found.corr_id, proxy.relay_key.raw
        )


async def test_nothing_about_a_command_is_used_twice() -> None:
    proxy = FakeProxy()
    router = await opened(proxy)
    for _ in range(3):
        await queues.send(router, QUEUE, b"hello")
    assert len({pfwd.key for pfwd, _, _ in proxy.pfwds}) == 3
    assert len({corr_id for _, _, corr_id in proxy.pfwds}) == 3
    assert len({len(pfwd.body) for pfwd, _, _ in proxy.pfwds}) == 1
    for (_, entity_id, corr_id), (found, _) in zip(proxy.pfwds, proxy.inner, strict=True):
        assert (entity_id, found.corr_id) == (proxy.session_id, corr_id)


async def test_links_are_read_and_secured() -> None:
    proxy = FakeProxy(answering=lambda _: Lnk(b"s" * 24, b"fixed", b"user"))
    router = await opened(proxy)
    assert (await queues.read_link(router, b"L" * 24))[0] == b"s" * 24
    sender_id, record = await queues.secure_by_link(router, b"L" * 24, KEYS[0])
    assert (sender_id, record.fixed) == (b"s" * 24, b"fixed")
    assert [command for _, command in proxy.inner] == [Lget(), Lkey(KEYS[0].public)]


async def test_the_relays_refusal_is_a_refusal() -> None:
    for failure in (failures.AUTH, failures.QUOTA, failures.NO_RESOLVER):
        router = await opened(FakeProxy(answering=lambda _, found=failure: Err(found)))  # type: ignore[misc]
        with pytest.raises(FailureError) as caught:
            await router.request(Rslv("name"))
        assert caught.value.failure == failure


async def test_a_relay_that_could_not_read_the_command_is_heard() -> None:
    proxy = FakeProxy(answering=lambda _: Err(failures.BLOCK), change_inner=lambda *_: (b"", b""))
    with pytest.raises(FailureError):
        await queues.send(await opened(proxy), QUEUE, b"hello")


@pytest.mark.parametrize("failure", [failures.AUTH, failures.CRYPTO, failures.QUOTA])
async def test_a_proxy_cannot_pass_its_word_off_as_the_relays(failure: Failure) -> None:
    proxy = FakeProxy(errors=[FailureError(failure)])
    with pytest.raises(UnexpectedMessageError, match="the proxy"):
        await queues.send(await opened(proxy), QUEUE, b"hello")


@pytest.mark.parametrize(
    "failure",
    [failures.BROKER_NETWORK, failures.BROKER_TIMEOUT, failures.proxy_protocol(failures.CRYPTO)],
)
async def test_why_the_relay_was_not_reached_is_told(failure: Failure) -> None:
    proxy = FakeProxy(errors=[FailureError(failure)])
    with pytest.raises(FailureError) as caught:
        await queues.send(await opened(proxy), QUEUE, b"hello")
    assert caught.value.failure == failure
    assert len(proxy.pfwds) == 1, "it may have been carried out, and is not repeated"


async def test_a_lost_link_is_told() -> None:
    proxy = FakeProxy(errors=[LinkLostError("gone")])
    with pytest.raises(LinkLostError):
        await queues.send(await opened(proxy), QUEUE, b"hello")


@pytest.mark.parametrize(
    "changes",
    [
        {"change_inner": lambda corr_id, _: (corr_id, b"other queue")},
        {"change_inner": lambda _, entity_id: (b"other command", entity_id)},
        {"change_inner": lambda *_: (b"", b"")},
        {"change_pres": lambda _: Pong()},
        {"answering": lambda _: Err(failures.AUTH), "change_inner": lambda c, _: (c, b"other")},
    ],
)
async def test_an_answer_to_something_else_is_none(
    changes: dict[str, Callable[..., object]],
) -> None:
    router = await opened(FakeProxy(**changes))  # type: ignore[arg-type]
    with pytest.raises(UnexpectedMessageError):
        await queues.send(router, QUEUE, b"hello")


@pytest.mark.parametrize(
    "changes",
    [
        {"change_pres": lambda _: Pres(b"no box")},
        {"change_pres": lambda pres: Pres(pres.body[:-1] + bytes([pres.body[-1] ^ 1]))},
        {"content": b""},
        {"content": b"\x02\x00\x00\x00\x00"},
        {"content": b"\x01\x00\x03\x00\x00\x00"},
    ],
)
async def test_what_does_not_come_out_of_a_box_is_no_answer(changes: dict[str, object]) -> None:
    router = await opened(FakeProxy(**changes))  # type: ignore[arg-type]
    with pytest.raises(MalformedMessageError):
        await queues.send(router, QUEUE, b"hello")


async def test_what_a_proxy_does_not_forward_is_not_tried() -> None:
    proxy = FakeProxy()
    router = await opened(proxy)
    with pytest.raises(ValueError, match="SUB"):
        await router.request(Sub(), QUEUE, KEYS[0])
    assert proxy.pfwds == []


async def test_a_command_that_fits_into_no_box_is_not_tried() -> None:
    proxy = FakeProxy()
    router = await opened(proxy)
    with pytest.raises(LimitExceededError):
        await router.request(Send(b"F", bytes(16_049)), QUEUE, KEYS[1])
    assert proxy.pfwds == []
    await router.request(Send(b"F", bytes(16_048)), QUEUE, KEYS[1])


# ---------------------------------------------------------------------- proxy and relay have parted


async def test_another_session_takes_the_place_of_one_that_is_over() -> None:
    proxy = FakeProxy()
    router = await opened(proxy)
    first = router.session_id
    proxy.session_count += 1
    await queues.send(router, QUEUE, b"hello", KEYS[2])
    assert len(proxy.prxys) == 2
    assert router.session_id == proxy.session_id != first
    ((found, _),) = proxy.inner
    assert is_authorized(
        KEYS[2].public, found.authorization, found.signed, found.corr_id, proxy.relay_key.raw
    )


async def test_many_that_notice_at_once_ask_once() -> None:
    proxy = FakeProxy()
    router = await opened(proxy)
    proxy.session_count += 1
    await asyncio.gather(*(queues.send(router, QUEUE, b"hello") for _ in range(5)))
    assert (len(proxy.prxys), len(proxy.inner)) == (2, 5)


async def test_it_is_tried_again_once_and_not_for_ever() -> None:
    proxy = FakeProxy(errors=[FailureError(failures.NO_SESSION)] * 2)
    router = await opened(proxy)
    with pytest.raises(FailureError) as caught:
        await queues.send(router, QUEUE, b"hello")
    assert caught.value.failure == failures.NO_SESSION
    assert (len(proxy.prxys), len(proxy.pfwds)) == (2, 2)


async def test_a_router_that_took_its_place_is_not_believed() -> None:
    proxy = FakeProxy()
    router = await opened(proxy)
    proxy.session_count += 1
    proxy.identity = OTHER
    with pytest.raises(NotAuthorizedError):
        await queues.send(router, QUEUE, b"hello")
    assert proxy.inner == []
