"""libsodium for what every block and every signature needs, without a detour (bench: queues).

PyNaCl clears a buffer of its own before each call, and copies what is signed to put the signature
before it. Here its library is called directly: 3 µs less for a block that is opened, 1 µs for one
that is sealed or a signature. Lengths are checked here, since the library trusts them.

Where a build of PyNaCl does not offer that, its own functions are used: the same results, slower.
"""

import ctypes
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from nacl.bindings import crypto_secretbox_easy, crypto_secretbox_open_easy, crypto_sign_open
from nacl.exceptions import CryptoError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 24
TAG_BYTES: Final = 16
SIGNATURE_BYTES: Final = 64

# Key, nonce and message; the box. Key, nonce and box; the message, or None.
Seal = Callable[[bytes, bytes, bytes], bytes]
Open = Callable[[bytes, bytes, bytes], bytes | None]
# Public key, signature and data.
Check = Callable[[bytes, bytes, bytes], bool]


def seal_with_pynacl(key: bytes, nonce: bytes, message: bytes) -> bytes:
    return crypto_secretbox_easy(message, nonce, key)


def open_with_pynacl(key: bytes, nonce: bytes, boxed: bytes) -> bytes | None:
    try:
        return crypto_secretbox_open_easy(boxed, nonce, key)
    except CryptoError:
        return None


def check_with_pynacl(public: bytes, signature: bytes, data: bytes) -> bool:
    try:
        crypto_sign_open(signature + data, public)
    except CryptoError:
        return False
    return True


def _boxes_of_libsodium() -> tuple[Seal, Open] | None:
    try:
        # The interface has no types: it is made from C.
        module: Any = import_module("nacl._sodium")
        ffi, lib = module.ffi, module.lib
        seal, open_, view = lib.crypto_secretbox_easy, lib.crypto_secretbox_open_easy, ffi.buffer
        allocate = ffi.new_allocator(should_clear_after_alloc=False)
        bytes_type = ffi.typeof("unsigned char[]")
    except (ImportError, AttributeError):
        return None

    def seal_directly(key: bytes, nonce: bytes, message: bytes) -> bytes:
        if len(key) != KEY_BYTES or len(nonce) != NONCE_BYTES:
            raise ValueError("a key has 32 bytes, a nonce 24")
        byte_count = len(message)
        boxed = allocate(bytes_type, byte_count + TAG_BYTES)
        seal(boxed, message, byte_count, nonce, key)
        sealed: bytes = view(boxed)[:]
        return sealed

    def open_directly(key: bytes, nonce: bytes, boxed: bytes) -> bytes | None:
        if len(key) != KEY_BYTES or len(nonce) != NONCE_BYTES:
            raise ValueError("a key has 32 bytes, a nonce 24")
        byte_count = len(boxed)
        if byte_count < TAG_BYTES:
            return None
        message = allocate(bytes_type, byte_count - TAG_BYTES)
        if open_(message, boxed, byte_count, nonce, key):
            return None
        opened: bytes = view(message)[:]
        return opened

    return seal_directly, open_directly


def _check_of_libsodium() -> Check | None:
    spec = find_spec("nacl._sodium")
    if spec is None or spec.origin is None:
        return None
    try:
        function = ctypes.CDLL(spec.origin).crypto_sign_verify_detached
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulonglong, ctypes.c_char_p]

    def check_directly(public: bytes, signature: bytes, data: bytes) -> bool:
        if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
            return False
        failed: int = function(signature, data, len(data), public)
        return not failed

    return check_directly


boxes_of_libsodium: Final = _boxes_of_libsodium()
check_of_libsodium: Final = _check_of_libsodium()
seal, open_sealed = boxes_of_libsodium or (seal_with_pynacl, open_with_pynacl)
is_signed: Final = check_of_libsodium or check_with_pynacl
