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
_NEEDED: Final = ("SSL_read", "SSL_write", "SSL_get_error", "ERR_clear_error")
_functions: Final[list[Any]] = [getattr(_lib, name, None) for name in _NEEDED]
_ssl_read, _ssl_write, _ssl_get_error, _clear_errors = _functions

# What OpenSSL has called these from the beginning (ssl.h).
_ERRORS: Final[dict[int, type[SSL.Error]]] = {
    2: SSL.WantReadError,
    3: SSL.WantWriteError,
    6: SSL.ZeroReturnError,
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
        error = _ERRORS.get(_ssl_get_error(self._ssl, result), SSL.Error)()
        # What is left of it would be taken for an error of the next call, on any connection.
        _clear_errors()
        return error


def _has_what_it_takes() -> bool:
    return None not in _functions and hasattr(SSL.Connection(SSL.Context(SSL.TLS_METHOD)), "_ssl")


Connection: Final = DirectConnection if _has_what_it_takes() else SSL.Connection
