"""What an agent makes of the answers about its service."""

from dataclasses import replace

import pytest

from syncline.client.smp.service_decisions import (
    DriftKind,
    ServiceChange,
    change_of,
    drift_of,
    is_refusal_of_service,
    is_temporary,
)
from syncline.client.smp.session_subscriptions import ServiceSub, hash_of
from syncline.values.reconciliation import SetState
from syncline.wire.smp import failures
from syncline.wire.smp.failures import Failure

A, B, C = (bytes([value]) * 24 for value in b"abc")


@pytest.mark.parametrize(
    ("stored", "told", "change"),
    [
        (None, None, ServiceChange.NONE),
        (None, A, ServiceChange.FIRST),
        (A, A, ServiceChange.SAME),
        (A, B, ServiceChange.CHANGED),
        (A, None, ServiceChange.LOST),
    ],
)
def test_service_of_a_connection_is_compared_with_the_stored_one(
    stored: bytes | None, told: bytes | None, change: ServiceChange
) -> None:
    assert change_of(stored, told) is change


OURS = ServiceSub(A).with_queues([A, B])


@pytest.mark.parametrize(
    ("count", "ids_hash", "kind"),
    [
        (2, OURS.ids_hash, None),
        (2, None, None),
        (0, bytes(16), DriftKind.LOST),
        (0, None, DriftKind.LOST),
        (1, hash_of(A), DriftKind.COUNT),
        (3, OURS.ids_hash, DriftKind.COUNT),
        (3, None, DriftKind.COUNT),
        (2, hash_of(C), DriftKind.HASH),
    ],
)
def test_drift_is_named_by_its_kind(
    count: int, ids_hash: bytes | None, kind: DriftKind | None
) -> None:
    drift = drift_of(OURS, count, ids_hash)
    assert (drift and drift.kind) == kind


STATE = SetState(7, 2, b"x" * 16, b"s" * 16)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (STATE, None),
        # Each side counts its own changes.
        (replace(STATE, version=99), None),
        (None, None),
        (replace(STATE, xor128=b"y" * 16), DriftKind.HASH),
        (replace(STATE, sum128=b"y" * 16), DriftKind.HASH),
        (replace(STATE, count=3), DriftKind.HASH),
    ],
)
def test_drift_is_seen_by_every_hash_that_is_known(
    found: SetState | None, kind: DriftKind | None
) -> None:
    drift = drift_of(OURS, OURS.count, OURS.ids_hash, STATE, found)
    assert (drift and drift.kind) == kind


def test_nothing_on_both_sides_is_no_drift() -> None:
    assert drift_of(ServiceSub(A), 0, bytes(16)) is None


def test_difference_is_that_of_the_queues_that_differ() -> None:
    more = ServiceSub(A).with_queues([A, B, C])
    fewer = drift_of(ServiceSub(A), 1, hash_of(C))
    drift = drift_of(OURS, more.count, more.ids_hash)
    assert drift is not None
    assert fewer is not None
    assert drift.difference == fewer.difference == (1, hash_of(C))


def test_failures_are_told_apart() -> None:
    assert is_refusal_of_service(failures.SERVICE)
    assert is_refusal_of_service(failures.BROKER_NO_SERVICE)
    assert not is_refusal_of_service(failures.AUTH)
    assert is_temporary(failures.INTERNAL)
    assert is_temporary(failures.store("full"))
    assert not is_temporary(failures.AUTH)
    assert not is_temporary(Failure("BLOCKED", b"reason=spam"))
