"""RFWD: a proxy brings a command of somebody whom we do not get to see.

The command is boxed twice: by the proxy for us, and by whoever sent it, for our key of the session
that we have with the proxy. It is carried out like any other, and its answer, boxed twice as well,
goes back when what it tells is durable. What is wrong with a box is told to the proxy; what is
wrong with the command, to whoever sent it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

from syncline.errors import MalformedMessageError
from syncline.server.smp.calls import Call
from syncline.server.smp.connections import Connection
from syncline.server.smp.faces import Answer, SessionService
from syncline.wire.smp import failures, versions
from syncline.wire.smp.boxes import SecretBox, nonce_of, reversed_nonce, shared_secret
from syncline.wire.smp.commands import (
    Lget,
    Lkey,
    Rfwd,
    Rslv,
    Send,
    Skey,
    credentials_fault,
    decode_command,
)
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.forwards import (
    CONTENT_BYTES_MAX,
    FORWARDED_VERSIONS,
    Forward,
    ForwardAnswer,
    decode_forward,
    encode_forward_answer,
    open_command,
    seal_answer,
)
from syncline.wire.smp.messages import Err, RouterMessage, Rres, encode_message
from syncline.wire.smp.transmissions import (
    Damaged,
    Transmission,
    decode_block,
    encode_transmission,
    pack,
)

# With a count and its length before it, as the content of a block has them.
_TRANSMISSION_BYTES_MAX: Final = CONTENT_BYTES_MAX - 3
# The answer to a command that was sound has no room in a box.
_TOO_LARGE: Final = Err(failures.BLOCK)
_NO_KEY: Final = failures.proxy_broker("TRANSPORT", b"NO_AUTH")
# What one may ask without having a queue here.
_FORWARDED: Final = (Send, Skey, Lkey, Lget, Rslv)


class Worker(Protocol):
    """What of the router is used here; see `SmpRouter`."""

    def hold(self, call: Call) -> None: ...

    def answer(self, call: Call, message: RouterMessage) -> None: ...

    def work(
        self, connection: Connection, transmissions: Sequence[Transmission | Damaged]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class _Boxes:
    """With whom this command is shared: the proxy, and whoever sent it."""

    proxy: SecretBox
    sender: SecretBox


class Relaying:
    """See the module."""

    def __init__(self) -> None:
        # Below those of real sessions, which count upwards.
        self._numbers = count(-1, -1)

    def take(self, call: Call, command: Rfwd, router: Worker) -> None:
        """Carry it out; it is answered later. Raises FailureError with what the proxy is told."""
        session = call.session
        if not session.is_proxy and session.version >= versions.PROXY_HELLO:
            raise FailureError(failures.PROHIBITED)
        if session.forward_box is None or session.router_private is None:
            raise FailureError(_NO_KEY)
        forward = _opened_forward(session.forward_box, call.transmission.corr_id, command.body)
        if forward.version not in FORWARDED_VERSIONS:
            raise FailureError(failures.BROKER_VERSION)
        sender, content = _opened_command(session.router_private, forward)
        found = decode_block(forward.version, session.session_id, content)
        if len(found) != 1:
            raise FailureError(failures.BLOCK)
        inner = ForwardedSession(
            next(self._numbers), call, forward, _Boxes(session.forward_box, sender), router
        )
        router.hold(call)
        if (refusal := _refusal(forward.version, found[0])) is not None:
            inner.send([refusal])
        else:
            router.work(Connection(inner, call.connection.opened_ms), found)


def _opened_forward(box: SecretBox, corr_id: bytes, body: bytes) -> Forward:
    try:
        opened = box.open_box(nonce_of(corr_id), body)
    except MalformedMessageError as error:
        raise FailureError(failures.CRYPTO) from error
    try:
        return decode_forward(opened)
    except MalformedMessageError as error:
        raise FailureError(failures.SYNTAX) from error


def _opened_command(private: bytes, forward: Forward) -> tuple[SecretBox, bytes]:
    """The box of this command's sender, and what was in it."""
    try:
        box = SecretBox(shared_secret(private, forward.key.raw))
        return box, open_command(box, forward.corr_id, forward.body)
    except MalformedMessageError as error:
        raise FailureError(failures.CRYPTO) from error


def _refusal(version: int, found: Transmission | Damaged) -> Answer | None:
    """To a command that is sound, but not for others to bring."""
    if isinstance(found, Damaged):
        return None
    try:
        command = decode_command(version, found.body)
    except FailureError:
        return None
    fault = credentials_fault(command, bool(found.authorization), bool(found.entity_id))
    if fault is not None or isinstance(command, _FORWARDED):
        return None
    return Answer(found.corr_id, found.entity_id, Err(failures.PROHIBITED))


@dataclass(frozen=True, slots=True)
class ForwardedSession:
    """One command's session: `faces.SmpSession` for as long as it takes to answer it."""

    number: int
    call: Call
    forward: Forward
    boxes: _Boxes = field(repr=False)
    router: Worker = field(repr=False)

    @property
    def version(self) -> int:
        return self.forward.version

    @property
    def session_id(self) -> bytes:
        return self.call.session.session_id

    @property
    def router_private(self) -> bytes | None:
        return self.call.session.router_private

    @property
    def service(self) -> SessionService | None:
        return None

    @property
    def is_proxy(self) -> bool:
        return False

    @property
    def forward_box(self) -> SecretBox | None:
        return None

    @property
    def remote(self) -> str:
        return self.call.session.remote

    @property
    def is_writable(self) -> bool:
        return True

    def send(self, answers: Sequence[Answer]) -> None:
        """The one answer there is."""
        (answer,) = answers
        self.router.answer(self.call, self._boxed(answer))

    def _boxed(self, answer: Answer) -> RouterMessage:
        version, corr_id = self.version, self.forward.corr_id
        transmission = encode_transmission(
            version,
            self.session_id,
            b"",
            None,
            answer.corr_id,
            answer.entity_id,
            encode_message(version, answer.message),
        )
        if len(transmission) > _TRANSMISSION_BYTES_MAX:
            return _TOO_LARGE
        (content,) = pack([transmission])
        body = seal_answer(self.boxes.sender, corr_id, content)
        nonce = reversed_nonce(nonce_of(self.call.transmission.corr_id))
        told = encode_forward_answer(ForwardAnswer(corr_id, body))
        return Rres(self.boxes.proxy.box(nonce, told))

    # Reading is not ours to pause: it is one command, and that has been read.

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self, reason: str) -> None:
        pass
