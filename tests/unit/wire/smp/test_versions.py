"""What came with which version."""

import pytest

from syncline.wire.smp import versions


def test_gates_are_those_of_the_page() -> None:
    assert (versions.VERSION_MIN, versions.VERSION_MAX) == (6, 20)
    gates = {
        name: value
        for name, value in vars(versions).items()
        if isinstance(value, int) and not name.startswith("VERSION")
    }
    assert gates == {
        "SESSION_KEYS": 7,
        "PROXYING": 8,
        "SENDER_KEYS": 9,
        "DELETION_EVENTS": 10,
        "BLOCK_ENCRYPTION": 11,
        "BLOCKED_QUEUES": 12,
        "PROXY_HELLO": 14,
        "SHORT_LINKS": 15,
        "SERVICES": 16,
        "NOTIFIER_KEYS": 17,
        "BLOCK_NOTICES": 18,
        "SERVICE_DIGESTS": 19,
        "WEB_PROOFS": 19,
        "NAMES": 20,
        "EXTENDED": 0x7FFF,
    }


@pytest.mark.parametrize("version", range(6, 21))
def test_how_much_a_message_may_hold(version: int) -> None:
    limit = 16_088 if version < 8 else 16_064 if version < 11 else 16_048
    assert versions.body_bytes_max(version) == limit
