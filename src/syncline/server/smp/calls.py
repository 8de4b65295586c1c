"""One command on its way through the router: who said it, what it says, and what came beside it."""

import msgspec

from syncline.server.smp.connections import Connection
from syncline.server.smp.faces import SmpSession
from syncline.wire.smp.commands import Command
from syncline.wire.smp.transmissions import Transmission


class Call(msgspec.Struct, frozen=True):
    """A struct: one is made for each command (bench: queues)."""

    connection: Connection
    transmission: Transmission
    command: Command

    @property
    def session(self) -> SmpSession:
        return self.connection.session

    @property
    def number(self) -> int:
        """Of the session."""
        return self.connection.number

    @property
    def service_id(self) -> bytes | None:
        """Of the service that the session speaks for."""
        service = self.connection.session.service
        return None if service is None else service.service_id
