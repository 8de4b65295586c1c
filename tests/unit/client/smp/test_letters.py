"""Envelopes, addresses of queues, and letters from one to the other."""

from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.client.smp import queues
from syncline.client.smp.agent_records import Account, StoredQueue
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.envelopes import (
    DATA_BYTES_MAX,
    Envelope,
    open_envelope,
    seal_envelope,
)
from syncline.client.smp.letters import address_of, open_letter, send_letter
from syncline.client.smp.queue_uris import QueueUri
from syncline.errors import (
    LimitExceededError,
    MalformedMessageError,
    NotAuthorizedError,
    UnexpectedMessageError,
)
from syncline.links.private_keys import PrivateKey
from syncline.values.queue_records import QueueMode
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.commands import Command, Send, Skey
from syncline.wire.smp.failures import Failure, FailureError
from syncline.wire.smp.keys import KeyKind
from syncline.wire.smp.messages import Ok, Pong, RouterMessage
from syncline.wire.smp.versions import body_bytes_max

SENDER = PrivateKey(KeyKind.X25519, b"s" * 32)
RECIPIENT = PrivateKey(KeyKind.X25519, b"r" * 32)
KEY = PrivateKey(KeyKind.ED25519, b"k" * 32)
NONCE = b"n" * 24
ROUTER = RouterAddress(b"f" * 32, ("127.0.0.1",), 5223)


# ---------------------------------------------------------------------------------------- envelopes


@pytest.mark.parametrize("sender_dh", [None, SENDER.public], ids=["known", "told"])
@pytest.mark.parametrize("sender_key", [None, KEY.public], ids=["plain", "with a key"])
@pytest.mark.parametrize("size", [0, 1, 15_800])
def test_envelope_is_opened_by_its_recipient(
    sender_dh: object, sender_key: object, size: int
) -> None:
    envelope = Envelope(bytes(size), sender_dh, sender_key)  # type: ignore[arg-type]
    body = seal_envelope(envelope, SENDER, RECIPIENT.public, NONCE)
    known = None if sender_dh else SENDER.public
    assert open_envelope(body, RECIPIENT, known) == envelope
    # All of a kind have one length, and fit into any message.
    assert len(body) == (15_992 if sender_dh else 16_043)
    assert len(body) <= body_bytes_max(20)


def test_largest_letter_fits_and_one_byte_more_does_not() -> None:
    for size, error in ((DATA_BYTES_MAX, None), (DATA_BYTES_MAX + 1, LimitExceededError)):
        envelope = Envelope(bytes(size), SENDER.public)
        if error is None:
            seal_envelope(envelope, SENDER, RECIPIENT.public, NONCE)
        else:
            with pytest.raises(error):
                seal_envelope(envelope, SENDER, RECIPIENT.public, NONCE)


def test_envelope_for_somebody_else_stays_closed() -> None:
    body = seal_envelope(Envelope(b"secret", SENDER.public), SENDER, RECIPIENT.public, NONCE)
    with pytest.raises(MalformedMessageError):
        open_envelope(body, SENDER, None)
    without = seal_envelope(Envelope(b"secret"), SENDER, RECIPIENT.public, NONCE)
    with pytest.raises(MalformedMessageError, match="none came before"):
        open_envelope(without, RECIPIENT, None)


@given(st.binary(max_size=300))
def test_whatever_comes_is_an_envelope_or_refused(body: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        open_envelope(body, RECIPIENT, SENDER.public)


SEALED = seal_envelope(Envelope(b"secret", SENDER.public), SENDER, RECIPIENT.public, NONCE)


@given(st.integers(0, 15_991), st.integers(1, 255))
def test_changed_envelope_is_refused_or_says_what_it_said(at: int, flip: int) -> None:
    body = bytearray(SEALED)
    body[at] ^= flip
    try:
        # The version alone is not sealed.
        assert open_envelope(bytes(body), RECIPIENT, None).data == b"secret"
        assert at < 2
    except MalformedMessageError:
        pass


# ---------------------------------------------------------------------------------------- addresses

URI = QueueUri(ROUTER, b"q" * 24, RECIPIENT.public)


@given(
    st.builds(
        QueueUri,
        st.builds(
            RouterAddress,
            st.binary(min_size=32, max_size=32),
            st.sampled_from([("127.0.0.1",), ("a.example", "b.example"), ("::1",)]),
            st.integers(1, 65_535),
        ),
        st.binary(min_size=1, max_size=255),
        st.just(RECIPIENT.public),
        st.sampled_from(QueueMode),
    )
)
def test_address_is_read_back(uri: QueueUri) -> None:
    assert QueueUri.parse(str(uri)) == uri


def test_address_looks_as_the_page_says() -> None:
    key = urlsafe_b64encode(RECIPIENT.public.encoded).decode().replace("=", "%3D")
    router = f"smp://{urlsafe_b64encode(b'f' * 32).decode()}@127.0.0.1"
    queue = urlsafe_b64encode(b"q" * 24).decode()
    assert str(URI) == f"{router}/{queue}#/?v=1-4&dh={key}&q=m"


def test_password_of_a_router_is_not_given_away() -> None:
    uri = replace(URI, router=replace(ROUTER, password="secret"))
    assert "secret" not in str(uri) + repr(uri)
    text = str(URI).replace("@", ":secret@")
    assert QueueUri.parse(text) == URI


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("&q=m", "&q=c"), QueueMode.CONTACT),
        (("&q=m", ""), QueueMode.CONTACT),
        (("&q=m", "&k=s"), QueueMode.MESSAGING),
        (("&q=m", "&q=m&more=1"), QueueMode.MESSAGING),
        (("v=1-4", "v=4"), QueueMode.MESSAGING),
        (("%3D", "="), QueueMode.MESSAGING),
        (("#/?", "#?"), QueueMode.MESSAGING),
    ],
)
def test_other_spellings_are_read(change: tuple[str, str], expected: QueueMode) -> None:
    assert QueueUri.parse(str(URI).replace(*change)) == replace(URI, mode=expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "smp://",
        str(ROUTER),
        str(URI).replace("smp:", "http:"),
        str(URI).replace("#", ""),
        str(URI).replace("dh=", "x="),
        str(URI).replace("v=1-4", "v=5-9"),
        str(URI).replace("v=1-4", "v=4-1"),
        str(URI).replace("v=1-4", "v=x"),
        str(URI).replace("q=m", "q=x"),
        str(URI).replace("cXFx", "!XFx", 1),
        str(URI).replace("cXFx", "cXF", 1),
        str(URI).replace("dh=MC", "dh=M!C"),
        str(URI) + "x" * 2_000,
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(MalformedMessageError):
        QueueUri.parse(text)


@given(st.text(max_size=200))
def test_whatever_is_typed_is_an_address_or_refused(text: str) -> None:
    for each in (text, str(URI) + text, str(URI)[: -len(text) or None]):
        with suppress(MalformedMessageError):
            QueueUri.parse(each)


# ------------------------------------------------------------------------------------------ letters


class Router:
    """Takes what is sent, from who has secured the queue."""

    version = 20

    def __init__(self) -> None:
        self.asked: list[tuple[Command, PrivateKey | None]] = []
        self.failure: Failure | None = None
        self.answer: RouterMessage = Ok()

    async def request(
        self,
        command: Command,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        *,
        corr_id: bytes | None = None,
    ) -> RouterMessage:
        self.asked.append((command, key))
        if self.failure is not None:
            raise FailureError(self.failure)
        return self.answer


@pytest.fixture
def store() -> Iterator[AgentStore]:
    with closing(AgentStore(":memory:")) as store:
        yield store


def queue_in(store: AgentStore, mode: QueueMode = QueueMode.MESSAGING) -> StoredQueue:
    account = Account(store.user("me"), store.server(replace(ROUTER, password="secret")))
    queue = StoredQueue(
        account, "inbox", b"r" * 24, b"q" * 24, mode, KEY, b"x" * 32, envelope_key=RECIPIENT
    )
    store.add_queue(queue)
    return queue


async def test_letter_is_read_by_who_gave_the_address(store: AgentStore) -> None:
    queue, router = queue_in(store), Router()
    uri = address_of(store, queue)
    assert uri == URI
    for text in (b"one", b"two"):
        await send_letter(router, store, store.user("you"), uri, text)
    sender = store.sender(store.user("you"), str(uri))
    assert sender is not None
    # Secured once, with the key that the letters are sent with.
    assert [type(command) for command, _ in router.asked] == [Skey, Send, Send]
    assert {key for _, key in router.asked} == {sender.key}
    bodies = [command.body for command, _ in router.asked if isinstance(command, Send)]
    assert [open_letter(store, queue, body) for body in bodies] == [b"one", b"two"]
    found = store.queue(queue.account, queue.recipient_id)
    assert found is not None
    assert found.sender_dh == sender.envelope_key.public.raw


async def test_keys_are_kept_before_the_router_hears_of_them(store: AgentStore) -> None:
    router, uri = Router(), URI
    router.failure = failures.INTERNAL
    with pytest.raises(FailureError):
        await send_letter(router, store, store.user("you"), uri, b"one")
    router.failure = None
    await send_letter(router, store, store.user("you"), uri, b"one")
    keys = {command.key for command, _ in router.asked if isinstance(command, Skey)}
    assert len(keys) == 1, "the same key, as if the first answer had been lost"


async def test_contact_address_takes_letters_without_a_key(store: AgentStore) -> None:
    queue, router = queue_in(store, QueueMode.CONTACT), Router()
    await send_letter(router, store, store.user("you"), address_of(store, queue), b"one")
    [(command, key)] = router.asked
    assert isinstance(command, Send)
    assert key is None
    assert open_letter(store, queue, command.body) == b"one"


async def test_queue_that_takes_nothing_from_us_is_told_apart(store: AgentStore) -> None:
    router = Router()
    router.failure = failures.AUTH
    with pytest.raises(NotAuthorizedError, match="takes nothing from us"):
        await send_letter(router, store, store.user("you"), URI, b"one")
    router.failure = failures.QUOTA
    with pytest.raises(FailureError, match="QUOTA"):
        await send_letter(router, store, store.user("you"), URI, b"one")


async def test_letter_that_is_too_long_is_not_sent(store: AgentStore) -> None:
    router = Router()
    with pytest.raises(LimitExceededError):
        await send_letter(router, store, store.user("you"), URI, bytes(DATA_BYTES_MAX + 1))
    assert router.asked == []


def test_queue_without_a_key_has_no_letters(store: AgentStore) -> None:
    queue = replace(queue_in(store), envelope_key=None)
    with pytest.raises(MalformedMessageError):
        address_of(store, queue)
    with pytest.raises(MalformedMessageError):
        open_letter(store, queue, b"")


async def test_answer_of_a_wrong_kind_is_unexpected(store: AgentStore) -> None:
    queue, router = queue_in(store), Router()
    router.answer = Pong()
    asking = [
        queues.create(router),
        queues.subscribe(router, queue),
        queues.get(router, queue),
        queues.acknowledge(router, queue, b"m" * 24),
        queues.delete(router, queue),
        queues.info(router, queue),
        queues.add_notifier(router, queue),
        queues.send(router, b"q" * 24, b"body"),
        queues.read_link(router, b"l" * 24),
    ]
    for each in asking:
        with pytest.raises(UnexpectedMessageError, match="PONG"):
            await each
