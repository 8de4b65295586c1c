"""Where the router's certificates are, and the address that clients know it by."""

from pathlib import Path

from syncline.server.settings import Settings
from syncline.storage.folder import CERTIFICATES_NAME
from syncline.wire.smp.addresses import PORT_DEFAULT, RouterAddress

# Listening on all addresses is no name that a client could use.
_EVERYWHERE = {"0.0.0.0", "::", ""}


def certificate_folder(settings: Settings) -> Path:
    if settings.smp_certificate_folder:
        return Path(settings.smp_certificate_folder).absolute()
    return Path(settings.store_folder).absolute() / CERTIFICATES_NAME


def router_address(settings: Settings, fingerprint: bytes, port: int) -> RouterAddress:
    """As clients may use it; the password that new queues need is not in it."""
    hosts = settings.smp_public_hosts
    if not hosts:
        hosts = ("localhost",) if settings.smp_host in _EVERYWHERE else (settings.smp_host,)
    return RouterAddress(fingerprint, hosts, port or PORT_DEFAULT)
