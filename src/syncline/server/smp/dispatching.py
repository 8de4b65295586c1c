"""The one place where a command meets whoever verifies its party and whoever carries it out."""

from typing import Protocol, assert_never

from syncline.server.smp.calls import Call
from syncline.server.smp.creating import Creating
from syncline.server.smp.delivering import Delivering
from syncline.server.smp.dissociating import Dissociating
from syncline.server.smp.erasing import Erasing
from syncline.server.smp.folding import Folding
from syncline.server.smp.links import Links
from syncline.server.smp.notifying import Notifying
from syncline.server.smp.openings import Openings
from syncline.server.smp.parts import Parts
from syncline.server.smp.queue_commands import QueueCommands
from syncline.server.smp.reconciling import Reconciling
from syncline.server.smp.replies import Reply
from syncline.server.smp.sending import Sending
from syncline.server.smp.service_commands import ServiceCommands
from syncline.server.smp.subscribing import Subscribing
from syncline.server.smp.tasks import Tasks
from syncline.server.smp.verifying import Verifier
from syncline.wire.smp import failures
from syncline.wire.smp.commands import (
    Ack,
    Bus,
    Del,
    Get,
    Key,
    Ldel,
    Lget,
    Lkey,
    Lset,
    Ndel,
    New,
    Nkey,
    Nsub,
    Nsubs,
    Off,
    Pfwd,
    Ping,
    Prxy,
    Que,
    Recq,
    Rfwd,
    Rkey,
    Rslv,
    Send,
    Skey,
    Sub,
    Subs,
)
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.messages import Pong

_PONG = Reply(Pong())


class Relay(Protocol):
    """Carries out PRXY, PFWD, RFWD and RSLV, where a router does that.

    A forwarded command is worked through with `SmpRouter.work`, for a `Connection` whose session
    boxes what it is given to send.
    """

    def take(self, call: Call) -> Reply | None:
        """None: it answers later, by `SmpRouter.answer`. Raises FailureError."""
        ...


class Dispatch:
    """Everything that carries out commands, put together."""

    def __init__(self, parts: Parts, tasks: Tasks, relay: Relay | None) -> None:
        self._verify = Verifier(parts.outside.records)
        self._relay = relay
        self.delivering = Delivering(parts)
        self.erasing = Erasing(parts)
        self.creating = Creating(parts, self.delivering)
        self.notifying = Notifying(parts, self.creating)
        self.queue_commands = QueueCommands(parts, self.delivering, self.erasing)
        self.links = Links(parts, self.queue_commands)
        self.sending = Sending(parts, self.delivering, self.notifying)
        self.subscribing = Subscribing(parts, self.delivering)
        self.folding = Folding(parts, self.delivering, tasks)
        self.reconciling = Reconciling(parts, tasks)
        self.dissociating = Dissociating(parts, self.delivering)
        openings = Openings(parts, self.reconciling, tasks)
        self.services = ServiceCommands(parts, self.folding, self.notifying, openings)

    def carry_out(self, call: Call) -> Reply | None:
        """Verify, then do it. None: it is answered later.

        Raises FailureError, and what stores and records raise.
        """
        verify = self._verify
        verify.check_credentials(call)
        # What comes most often stands first: each case is tried in turn (bench: queues).
        match call.command:
            case Send() as command:
                return self.sending.send(call, verify.sender(call), command)
            case Ack(message_id=message_id):
                return self.subscribing.acknowledge(call, verify.recipient(call), message_id)
            case Sub():
                return self.subscribing.subscribe(call, verify.recipient(call))
            case Ping():
                return _PONG
            case New() as command:
                verify.creator(call, command.auth_key)
                return self.creating.create(call, command)
            case Skey(key=key):
                record = verify.securing_sender(call, key)
                return self.queue_commands.secure_by_sender(record, key)
            case Key(key=key):
                return self.queue_commands.secure(verify.recipient(call), key)
            case Rkey(keys=keys):
                return self.queue_commands.set_recipient_keys(verify.recipient(call), keys)
            case Get():
                return self.subscribing.get(call, verify.recipient(call))
            case Off():
                return self.queue_commands.suspend(verify.recipient(call))
            case Del():
                return self.queue_commands.delete(call, verify.recipient(call))
            case Que():
                return self.queue_commands.describe(call, verify.recipient(call))
            case Nkey(keys=notifier_keys):
                return self.notifying.set_keys(call, verify.recipient(call), notifier_keys)
            case Ndel():
                return self.notifying.remove_keys(call, verify.recipient(call))
            case Nsub():
                return self.notifying.subscribe(call, verify.notifier(call))
            case Subs() as command:
                return self.services.subscribe(call, verify.service(call), command)
            case Nsubs() as command:
                return self.services.subscribe_notifiers(call, verify.service(call), command)
            case Recq() as command:
                return self.reconciling.ask(call, verify.owner_of_set(call), command)
            case Bus() as command:
                return self.dissociating.dissociate(call, verify.owner_of_set(call), command)
            case Lset() as command:
                return self.links.set_data(verify.recipient(call), command)
            case Ldel():
                return self.links.delete(verify.recipient(call))
            case Lkey(key=key):
                return self.links.secure(verify.link(call, key), key)
            case Lget():
                return self.links.read(verify.link(call, None))
            case Prxy() | Pfwd() | Rfwd() | Rslv():
                verify.anybody(call)
                return self._forward(call)
            case _:
                assert_never(call.command)

    def _forward(self, call: Call) -> Reply | None:
        if self._relay is not None:
            return self._relay.take(call)
        is_name = isinstance(call.command, Rslv)
        raise FailureError(failures.NO_RESOLVER if is_name else failures.PROHIBITED)
