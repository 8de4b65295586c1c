"""A router that is reached through another one, for whoever sends and does not want to be seen.

    relay = await ProxiedRouter.open(link, address)        # the link leads to the proxy
    await queues.send(relay, sender_id, b"hello", key)

The proxy sees who asks and which router is asked; that router, the relay, sees what is asked and
that a proxy brought it. A relay proves who it is by its chain and a key signed with it, which the
proxy passes on; each command is boxed for that key alone, with a key of its own.

What always holds:
- Nothing is boxed for a relay that has not proved to be the one of the address.
- A refusal is the relay's only if it comes out of the box. What a proxy says by itself is told
  apart: PROXY and why, or an error that is no refusal.
- A command is repeated by itself only when the proxy did not pass it on.
"""

import asyncio
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from syncline.certificates import (
    ROUTER_CHAIN_COUNT_MIN,
    check_chain,
    identity_of_chain,
    key_of_certificate,
)
from syncline.errors import (
    LimitExceededError,
    MalformedMessageError,
    NotAuthorizedError,
    UnexpectedMessageError,
    UnsupportedVersionError,
)
from syncline.links.private_keys import Entropy, PrivateKey
from syncline.links.smp_link import CORR_ID_BYTES
from syncline.links.smp_session import SmpSession
from syncline.wire.smp import failures
from syncline.wire.smp.addresses import RouterAddress
from syncline.wire.smp.boxes import SecretBox, shared_secret
from syncline.wire.smp.commands import Command, Lget, Lkey, Pfwd, Prxy, Rslv, Send, Skey
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.forwards import (
    CONTENT_BYTES_MAX,
    FORWARDED_VERSIONS,
    open_answer,
    seal_command,
)
from syncline.wire.smp.hellos import VersionRange
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.messages import Err, Pkey, Pres, RouterMessage, decode_message
from syncline.wire.smp.signed_keys import open_signed_key
from syncline.wire.smp.transmissions import Transmission, decode_block, pack

# With a longer one PFWD fits into no block: 16363 bytes less all that stands in it beside.
_SESSION_ID_BYTES_MAX: Final = 42
# The proxy may have to connect first, and waits for the relay in turn.
TIMEOUT_S: Final = 30.0


class Proxy(Protocol):
    """A link to the proxy; see `SmpLink`."""

    async def request(
        self,
        command: Command,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        *,
        timeout_s: float | None = None,
        corr_id: bytes | None = None,
    ) -> RouterMessage: ...


def _utc_now() -> datetime:
    return datetime.now(UTC)


class ProxiedRouter:
    """Asks a router as `queues` wants it asked. Made by `open`; lives as long as its link."""

    def __init__(
        self,
        proxy: Proxy,
        address: RouterAddress,
        password: str | None,
        spoken: VersionRange,
        timeout_s: float,
        entropy: Entropy,
        now: Callable[[], datetime],
    ) -> None:
        self._proxy = proxy
        self._address = address
        self._password = password
        self._spoken = spoken
        self._timeout_s = timeout_s
        self._entropy = entropy
        self._now = now
        self._session: SmpSession | None = None
        self._opening = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        proxy: Proxy,
        address: RouterAddress,
        *,
        password: str | None = None,
        versions: VersionRange = FORWARDED_VERSIONS,
        timeout_s: float = TIMEOUT_S,
        entropy: Entropy = secrets.token_bytes,
        now: Callable[[], datetime] = _utc_now,
    ) -> "ProxiedRouter":
        """`password` is the one that the proxy wants.

        Raises FailureError if the proxy says no, NotAuthorizedError if it brings another router,
        UnsupportedVersionError, MalformedMessageError, and LinkError.
        """
        router = cls(proxy, address, password, versions, timeout_s, entropy, now)
        await router._open(None)
        return router

    @property
    def version(self) -> int:
        return self._opened.version

    @property
    def session_id(self) -> bytes:
        """Of the connection between proxy and relay."""
        return self._opened.session_id

    async def request(
        self,
        command: Command,
        entity_id: bytes = b"",
        key: PrivateKey | None = None,
        *,
        corr_id: bytes | None = None,
    ) -> RouterMessage:
        """The relay's answer. Raises FailureError if that is an error, or if the proxy cannot reach
        it (`PROXY …`); LinkError; UnexpectedMessageError for what is no answer."""
        if not isinstance(command, Send | Skey | Lkey | Lget | Rslv):
            raise ValueError(f"{type(command).__name__.upper()} is not forwarded by a proxy")
        session = self._opened
        try:
            return await self._forwarded(session, command, entity_id, key, corr_id)
        except FailureError as error:
            if error.failure != failures.NO_SESSION:
                raise
        # Proxy and relay have parted since. Nothing was forwarded.
        session = await self._open(session)
        return await self._forwarded(session, command, entity_id, key, corr_id)

    @property
    def _opened(self) -> SmpSession:
        assert self._session is not None, "made by `open`"
        return self._session

    async def _open(self, former: SmpSession | None) -> SmpSession:
        """Another session in place of `former`; once, however many ask for it."""
        async with self._opening:
            if self._session is former:
                self._session = await self._asked()
            return self._opened

    async def _asked(self) -> SmpSession:
        password = None if self._password is None else self._password.encode()
        answer = await self._proxy.request(Prxy(self._address, password), timeout_s=self._timeout_s)
        if not isinstance(answer, Pkey):
            raise _unexpected(answer)
        if len(answer.session_id) > _SESSION_ID_BYTES_MAX:
            raise LimitExceededError("a session id", len(answer.session_id), _SESSION_ID_BYTES_MAX)
        version = self._spoken.common(answer.versions)
        if version is None or version not in FORWARDED_VERSIONS:
            raise UnsupportedVersionError(
                f"the router behind the proxy speaks versions {answer.versions.min} to "
                f"{answer.versions.max}, we speak {self._spoken.min} to {self._spoken.max}"
            )
        key = _checked_key(answer, self._address.fingerprint, self._now())
        return SmpSession(version, answer.session_id, key, b"", None, None)

    async def _forwarded(
        self,
        session: SmpSession,
        command: Command,
        entity_id: bytes,
        key: PrivateKey | None,
        corr_id: bytes | None,
    ) -> RouterMessage:
        corr_id = corr_id or self._entropy(CORR_ID_BYTES)
        (content,) = pack([session.transmission(corr_id, entity_id, command, key)])
        if len(content) > CONTENT_BYTES_MAX:
            raise LimitExceededError("a forwarded command", len(content), CONTENT_BYTES_MAX)
        own = PrivateKey.new(KeyKind.X25519, self._entropy)
        box = SecretBox(shared_secret(own.raw, session.router_key.raw))
        body = seal_command(box, corr_id, content)
        answer = await self._passed_on(Pfwd(session.version, own.public, body), session, corr_id)
        return _opened_answer(session, open_answer(box, corr_id, answer.body), corr_id, entity_id)

    async def _passed_on(self, command: Pfwd, session: SmpSession, corr_id: bytes) -> Pres:
        try:
            answer = await self._proxy.request(
                command, session.session_id, corr_id=corr_id, timeout_s=self._timeout_s
            )
        except FailureError as error:
            if error.failure.code.startswith("PROXY "):
                raise
            # As bare as this it would pass for the relay's word on the command.
            raise UnexpectedMessageError(f"the proxy did not pass it on: {error}") from error
        if not isinstance(answer, Pres):
            raise _unexpected(answer)
        return answer


def _checked_key(answer: Pkey, fingerprint: bytes, now: datetime) -> PublicKey:
    chain = answer.key.chain
    check_chain(chain, now, count_min=ROUTER_CHAIN_COUNT_MIN)
    if identity_of_chain(chain) != fingerprint:
        raise NotAuthorizedError(
            "the proxy brings another router: its fingerprint is not that of the address"
        )
    key = open_signed_key(answer.key.signed_key, key_of_certificate(chain[0]))
    if key.kind is not KeyKind.X25519:
        raise MalformedMessageError(f"the router's key is of kind {key.kind.value}")
    return key


def _opened_answer(
    session: SmpSession, content: bytes, corr_id: bytes, entity_id: bytes
) -> RouterMessage:
    found = decode_block(session.version, session.session_id, content)
    if len(found) != 1 or not isinstance(found[0], Transmission):
        raise MalformedMessageError("the box of the relay holds no answer, or too many")
    answer = found[0]
    message = decode_message(session.version, answer.body)
    ids = (answer.corr_id, answer.entity_id)
    if isinstance(message, Err):
        # A router that could not read a command may not have read what it was about.
        if answer.corr_id in (corr_id, b"") and answer.entity_id in (entity_id, b""):
            raise FailureError(message.failure)
        raise UnexpectedMessageError("the relay refuses another command")
    if ids != (corr_id, entity_id):
        raise UnexpectedMessageError("the relay answers another command")
    return message


def _unexpected(answer: RouterMessage) -> UnexpectedMessageError:
    word = type(answer).__name__.upper()
    return UnexpectedMessageError(f"the proxy answered {word}, which is no answer to that")
