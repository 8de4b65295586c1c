"""TLS as a client of SMP speaks it: 1.3 alone, no server name, no resumption, no authorities.

TLS does not check who the router is: its certificates are signed by nobody that anybody knows. The
hello does that, by the fingerprint in the router's address (`smp_hello`).
"""

import os
import ssl
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from syncline.certificates import ServiceCredentials
from syncline.errors import LinkLostError

ALPN_SMP = "smp/1"
# Offered first: a router that has it can be asked how its sets differ from ours.
ALPN_SYNCLINE = "syncline/1"


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """What a hello is checked against."""

    # The client's Finished: both sides know it, and no two connections share it.
    session_id: bytes
    # The certificate of the router, DER.
    leaf: bytes
    alpn: str | None


def client_context(alpn: Sequence[str], credentials: ServiceCredentials | None) -> ssl.SSLContext:
    """`credentials` are shown to a router that asks for them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.options |= ssl.OP_NO_TICKET
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if credentials is not None:
        _load(context, credentials)
    return context


def facts_of(connection: ssl.SSLObject) -> TlsFacts:
    """Raises LinkLostError for a connection that has none."""
    session_id = connection.get_channel_binding("tls-unique")
    leaf = connection.getpeercert(binary_form=True)
    if session_id is None or leaf is None:
        raise LinkLostError("the connection ended before it had an identity")
    return TlsFacts(session_id, leaf, connection.selected_alpn_protocol())


def _load(context: ssl.SSLContext, credentials: ServiceCredentials) -> None:
    """The library reads keys from files alone, so there is one for a moment: in memory where the
    system has such files, and for the owner's eyes anyway."""
    pem = b"".join(ssl.DER_cert_to_PEM_cert(each).encode() for each in credentials.chain)
    pem += credentials.key.pem
    descriptor, path, is_in_memory = _private_file()
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(path)
    finally:
        os.close(descriptor)
        if not is_in_memory:
            os.unlink(path)


def _private_file() -> tuple[int, str, bool]:
    # Absent from some systems and from some kernels.
    with suppress(AttributeError, OSError):
        descriptor = os.memfd_create("credentials", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{descriptor}"
        if os.path.exists(path):
            return descriptor, path, True
        os.close(descriptor)
    return *tempfile.mkstemp(), False
