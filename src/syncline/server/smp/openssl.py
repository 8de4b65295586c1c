"""pyOpenSSL's connection, with a shorter way to read and write records (bench: queues).

pyOpenSSL asks after each call whether a callback of the handshake failed, and compares the result
with every error there is before it takes it for none: 3 µs of each record. Here what went well is
done with at once. That needs what pyOpenSSL keeps to itself; a version of it that does not have
this is used as it is, with the same results and errors.
"""

from typing import Any, Final

from cryptography.hazmat.bindings.openssl.binding import Binding
from OpenSSL import SSL

# Neither has types: they are made from C.
_lib: Final[Any] = Binding.lib
_ffi: Final[Any] = Binding.ffi
_allocate: Final = _ffi.new_allocator(should_clear_after_alloc=False)
_bytes_type: Final = _ffi.typeof("char[]")
_view: Final = _ffi.buffer
_ssl_read: Final = _lib.SSL_read
_ssl_write: Final = _lib.SSL_write

_ERRORS: Final[dict[int, type[SSL.Error]]] = {
    _lib.SSL_ERROR_WANT_READ: SSL.WantReadError,
    _lib.SSL_ERROR_WANT_WRITE: SSL.WantWriteError,
    _lib.SSL_ERROR_ZERO_RETURN: SSL.ZeroReturnError,
}


class DirectConnection(SSL.Connection):
    """For TLS 1.3, after the handshake: there are no callbacks any more that could fail."""

    def recv(self, bufsiz: int, flags: int | None = None) -> bytes:
        assert not flags, "nobody looks at what it does not take"
        buffer = _allocate(_bytes_type, bufsiz)
        count: int = _ssl_read(self._ssl, buffer, bufsiz)
        if count <= 0:
            raise self._error(count)
        data: bytes = _view(buffer, count)[:]
        return data

    def send(self, buf: bytes | bytearray | memoryview, flags: int = 0) -> int:
        assert isinstance(buf, bytes)
        count: int = _ssl_write(self._ssl, buf, len(buf))
        if count <= 0:
            raise self._error(count)
        return count

    def _error(self, result: int) -> SSL.Error:
        error = _ERRORS.get(_lib.SSL_get_error(self._ssl, result), SSL.Error)()
        # What is left of it would be taken for an error of the next call, on any connection.
        _lib.ERR_clear_error()
        return error


def _has_what_it_takes() -> bool:
    return hasattr(SSL.Connection(SSL.Context(SSL.TLS_METHOD)), "_ssl")


Connection: Final = DirectConnection if _has_what_it_takes() else SSL.Connection
