"""The versions of SMP that are spoken, and what came with each (docs/formats/smp.md).

A name stands for the first version that has it: `version >= SERVICES`. 13 changed nothing.
"""

from typing import Final

VERSION_MIN: Final = 6
VERSION_MAX: Final = 20

# X25519 authenticators; keys in the hellos; the session id is signed but no longer sent.
SESSION_KEYS: Final = 7
# PRXY, PFWD, RFWD and their answers.
PROXYING: Final = 8
# SKEY; a queue says whether its sender may secure it.
SENDER_KEYS: Final = 9
# DELD; before, END.
DELETION_EVENTS: Final = 10
BLOCK_ENCRYPTION: Final = 11
# ERR BLOCKED; before, ERR AUTH.
BLOCKED_QUEUES: Final = 12
# A client says in its hello whether it is a proxy.
PROXY_HELLO: Final = 14
# LSET, LDEL, LKEY, LGET; NEW has a request, IDS has a mode and a link.
SHORT_LINKS: Final = 15
# Service certificates and everything about services but messaging services' digests.
SERVICES: Final = 16
# NEW may make a notifier.
NOTIFIER_KEYS: Final = 17
# ERR BLOCKED may carry a notice.
BLOCK_NOTICES: Final = 18
# SUBS, NSUBS, SOKS, ENDS carry a count and the hash of ids.
SERVICE_DIGESTS: Final = 19
# The router hello may carry a proof for browsers; every other reader ignores it.
WEB_PROOFS: Final = 19
# RSLV and RNAME.
NAMES: Final = 20

# Between two Syncline peers: the newest version, and on top of it what docs/formats/smp.md calls
# extended. It is agreed on by the protocol of TLS and never sent as a number, so nobody can claim
# it inside of another's command.
EXTENDED: Final = 0x7FFF


def body_bytes_max(version: int) -> int:
    """What SEND may carry; more is LARGE_MSG."""
    if version >= BLOCK_ENCRYPTION:
        return 16_048
    return 16_064 if version >= PROXYING else 16_088


def session_version(agreed: int, *, is_syncline: bool) -> int:
    """What a session speaks that agreed on this version; `is_syncline`: so says TLS."""
    return EXTENDED if is_syncline and agreed == VERSION_MAX else agreed
