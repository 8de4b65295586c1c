"""What both sides agreed on in their hellos, and how commands and blocks are made from it."""

from dataclasses import dataclass

from syncline.errors import UnsupportedVersionError
from syncline.links.private_keys import PrivateKey
from syncline.values.queue_records import ServiceRole
from syncline.wire.smp import versions
from syncline.wire.smp.authorizations import authenticate, sign
from syncline.wire.smp.boxes import padded, unpadded
from syncline.wire.smp.chains import BlockChain, ChainKeys
from syncline.wire.smp.commands import (
    Bus,
    Command,
    New,
    Nsub,
    Nsubs,
    Recq,
    Sub,
    Subs,
    encode_command,
)
from syncline.wire.smp.hellos import RouterHello
from syncline.wire.smp.keys import KeyKind, PublicKey
from syncline.wire.smp.transmissions import BLOCK_BYTES, encode_transmission, signed_bytes


@dataclass(frozen=True, slots=True)
class LinkService:
    """The service that this connection is of."""

    service_id: bytes
    role: ServiceRole
    # Made for this connection, and signed by the key of the certificate.
    key: PrivateKey
    # SHA-256 of the certificate that is the service's identity.
    certificate_hash: bytes


class SmpSession:
    """See the module. Blocks are sealed and opened in the order in which they travel."""

    def __init__(
        self,
        version: int,
        session_id: bytes,
        router_key: PublicKey,
        secret: bytes,
        chains: ChainKeys | None,
        service: LinkService | None,
        hello: RouterHello | None = None,
        alpn: str | None = None,
    ) -> None:
        self.version = version
        self.session_id = session_id
        self.router_key = router_key
        # Agreed from the keys of both hellos: a proxy boxes what it forwards with it.
        self.secret = secret
        self.service = service
        # As it was checked: a proxy shows it to its clients.
        self.hello = hello
        # What was agreed on in TLS: who may be asked for more than the public protocol.
        self.alpn = alpn
        self._sealing: BlockChain | None = None
        self._opening: BlockChain | None = None
        if chains is not None:
            self._sealing = BlockChain(chains.client_to_router)
            self._opening = BlockChain(chains.router_to_client)

    @property
    def is_encrypted(self) -> bool:
        """Once more, inside of TLS."""
        return self._sealing is not None

    def seal(self, content: bytes) -> bytes:
        if self._sealing is None:
            return padded(content, BLOCK_BYTES)
        return self._sealing.seal(content)

    def open(self, block: bytes) -> bytes:
        """Raises MalformedMessageError; the connection has to end then."""
        if self._opening is None:
            return unpadded(block)
        return self._opening.open(block)

    def transmission(
        self, corr_id: bytes, entity_id: bytes, command: Command, key: PrivateKey | None
    ) -> bytes:
        """`key` is of the queue; commands of the service take the key of the connection.

        Raises UnsupportedVersionError for a command that the router's version does not have.
        """
        try:
            body = encode_command(self.version, command)
        except ValueError as error:
            raise UnsupportedVersionError(f"the router cannot do that: {error}") from error
        signed = signed_bytes(self.session_id, corr_id, entity_id, body)
        authorization, service_signature = self._authorized(command, key, corr_id, signed)
        return encode_transmission(
            self.version,
            self.session_id,
            authorization,
            service_signature,
            corr_id,
            entity_id,
            body,
        )

    def _authorized(
        self, command: Command, key: PrivateKey | None, corr_id: bytes, signed: bytes
    ) -> tuple[bytes, bytes | None]:
        service = self.service
        if isinstance(command, Subs | Nsubs | Recq | Bus):
            if service is None:
                raise ValueError("only the connection of a service speaks of all of its queues")
            return sign(service.key.kind, service.key.raw, signed), None
        if key is None:
            return b"", None
        if service is None or not isinstance(command, New | Sub | Nsub):
            return self._authorization(key, corr_id, signed), None
        # The queue's key vouches for the service too, so that nobody can slip in another one.
        authorization = self._authorization(key, corr_id, service.certificate_hash + signed)
        return authorization, sign(service.key.kind, service.key.raw, signed)

    def _authorization(self, key: PrivateKey, corr_id: bytes, data: bytes) -> bytes:
        if key.kind is not KeyKind.X25519:
            return sign(key.kind, key.raw, data)
        if self.version < versions.SESSION_KEYS:
            raise UnsupportedVersionError("version 6 has no X25519 authenticators")
        return authenticate(key.raw, self.router_key.raw, corr_id, data)
