"""Sizes that are refused, before anything was staged."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from syncline.errors import LimitExceededError, StoreBusyError
from syncline.storage.base import Snapshot, Store, StreamKind
from syncline.storage.options import STORE_KINDS, StoreOptions
from syncline.values import limits
from syncline.values.ids import StreamId
from tests.storage.under_test import StoreUnderTest, stream_id

# Segments that have room for the largest of everything.
LARGE = StoreOptions(segment_bytes=16 * limits.MIB)


@pytest.fixture(params=STORE_KINDS)
def roomy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreUnderTest]:
    opened = StoreUnderTest(request.param, tmp_path / "data", options=LARGE)
    yield opened
    opened.end()


TOO_MUCH: dict[str, tuple[Callable[[Store, StreamId], object], int]] = {
    "an entry": (
        lambda store, stream: store.append(stream, bytes(limits.entry_bytes_max + 1), 1),
        limits.entry_bytes_max,
    ),
    "a snapshot": (
        lambda store, stream: store.put_snapshot(
            stream, 0, bytes(limits.snapshot_bytes_max + 1), 1
        ),
        limits.snapshot_bytes_max,
    ),
    "a cursor name": (
        lambda store, stream: store.move_cursor(stream, bytes(limits.cursor_name_bytes_max + 1), 1),
        limits.cursor_name_bytes_max,
    ),
    "a cursor position": (lambda store, stream: store.move_cursor(stream, b"reader", 3), 2),
    "a quota": (
        lambda store, _: store.create(
            stream_id(2), StreamKind.QUEUE, limits.queue_quota_max + 1, 1
        ),
        limits.queue_quota_max,
    ),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_what_is_above_a_limit_is_refused_and_nothing_is_staged(
    roomy: StoreUnderTest, what: str
) -> None:
    document = roomy.create_document(1)
    roomy.append(document, b"kept")
    roomy.commit()
    attempt, limit = TOO_MUCH[what]
    before = roomy.store.state(document)

    with pytest.raises(LimitExceededError) as refused:
        attempt(roomy.store, document)
    assert (refused.value.value, refused.value.limit) == (limit + 1, limit)
    assert roomy.store.take_batch() is None
    assert roomy.store.waiting_bytes == 0
    assert roomy.store.state(document) == before
    assert list(roomy.store.streams()) == [document]
    assert roomy.append(document, b"next") == [2]


def test_the_largest_entry_and_snapshot_pass(roomy: StoreUnderTest) -> None:
    document = roomy.create_document(1)
    entry = bytes(range(256)) * (limits.entry_bytes_max // 256)
    state = bytes(range(256)) * (limits.snapshot_bytes_max // 256)
    roomy.append(document, entry, b"behind it")
    roomy.store.put_snapshot(document, 1, state, 1)
    roomy.commit()

    for _ in range(2):
        assert roomy.payloads(document) == [entry, b"behind it"]
        assert roomy.store.snapshot(document) == Snapshot(1, 1, state)
        roomy.reopen()


def test_the_largest_quota_passes(under_test: StoreUnderTest) -> None:
    queue = under_test.create_queue(1, quota=limits.queue_quota_max)
    under_test.reopen()
    assert under_test.store.state(queue).quota == limits.queue_quota_max


def test_more_than_may_wait_for_the_disk_is_refused_until_the_commit(
    under_test: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "waiting_bytes_max", 100_000)
    document = under_test.create_document(1)
    payload = b"x" * 10_000
    with pytest.raises(StoreBusyError) as refused:
        under_test.append(document, *[payload] * 11)
    assert refused.value.limit_bytes == 100_000
    taken = under_test.store.state(document).next - 1
    assert 5 <= taken <= 10, "what a record costs beside its payload may count"

    with pytest.raises(StoreBusyError):
        under_test.append(document, payload)
    assert under_test.store.state(document).next == taken + 1, "nothing was staged"
    under_test.store.truncate_before(document, 2)
    under_test.commit()
    assert under_test.append(document, payload) == [taken + 1]
    under_test.commit()
    assert under_test.payloads(document) == [payload] * taken


def test_a_stream_has_a_limited_number_of_cursors(
    under_test: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "cursors_per_stream_max", 3)
    document = under_test.create_document(1)
    for name in (b"a", b"b", b"c"):
        under_test.store.move_cursor(document, name, 0)
    with pytest.raises(LimitExceededError):
        under_test.store.move_cursor(document, b"d", 0)
    under_test.store.move_cursor(document, b"c", 1)
    under_test.store.drop_cursor(document, b"a")
    under_test.store.move_cursor(document, b"d", 1)
    under_test.commit()
    under_test.reopen()
    assert dict(under_test.store.cursors(document)) == {b"b": 0, b"c": 1, b"d": 1}


def test_a_document_has_no_quota(under_test: StoreUnderTest) -> None:
    with pytest.raises(ValueError, match="quota"):
        under_test.store.create(stream_id(1), StreamKind.DOCUMENT, 1, 1)
    assert list(under_test.store.streams()) == []


def test_a_quota_is_not_negative(under_test: StoreUnderTest) -> None:
    with pytest.raises((ValueError, LimitExceededError), match="-1"):
        under_test.store.create(stream_id(1), StreamKind.QUEUE, -1, 1)
    assert list(under_test.store.streams()) == []
