"""What a router does for others: it relays commands that a proxy brings, and is a proxy itself."""

from syncline.server.smp.calls import Call
from syncline.server.smp.proxying import Proxying
from syncline.server.smp.relaying import Relaying, Worker
from syncline.server.smp.replies import Reply
from syncline.wire.smp import failures
from syncline.wire.smp.commands import Pfwd, Prxy, Rfwd, Rslv
from syncline.wire.smp.failures import FailureError


class Forwarding:
    """Implements `dispatching.Relay`. It and the router know one another, so it is attached."""

    def __init__(self, proxying: Proxying) -> None:
        self.proxying = proxying
        self._relaying = Relaying()
        self._router: Worker | None = None

    def attach(self, router: Worker) -> None:
        self._router = router

    def take(self, call: Call) -> Reply | None:
        router = self._router
        assert router is not None, "attached before the first session"
        match call.command:
            case Rfwd() as command:
                self._relaying.take(call, command, router)
                return None
            case Pfwd() as command:
                self.proxying.forward(call, command, router)
                return None
            case Prxy() as command:
                return self.proxying.open(call, command, router)
            case Rslv():
                # Names are looked up where they are registered, and that is not here.
                raise FailureError(failures.NO_RESOLVER)
            case _:
                raise AssertionError("only what is forwarded comes here")

    def keep_house(self) -> None:
        self.proxying.keep_house()

    async def close(self) -> None:
        await self.proxying.close()
