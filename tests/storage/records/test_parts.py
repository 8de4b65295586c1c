"""The cache, the layers and the rows, each by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import CorruptionError
from syncline.storage.records.cache import RecordCache
from syncline.storage.records.layers import Layers, without_services
from syncline.storage.records.operations import CreateQueue, DeleteService, Touched, UpdateQueue
from syncline.storage.records.rows import digest_from_row, digest_to_row, pack, unpack
from syncline.values.digests import EMPTY_DIGEST, SetDigest, digest_of
from syncline.values.queue_records import LinkRecord, QueueRecord
from tests.storage.records.under_test import (
    link_id,
    notifier,
    notifier_id,
    queue,
    queue_id,
    sender_id,
    service,
    service_id,
    whole_queue,
)

# ----------------------------------------------------------------------------------- cache


def test_a_record_is_forgotten_with_all_of_its_ids() -> None:
    cache = RecordCache(100_000)
    cache.put(whole_queue(1, None, None))
    assert cache.by_sender(sender_id(1)) is cache.by_notifier(notifier_id(1)) is not None
    assert cache.by_link(link_id(1)) is cache.queue(queue_id(1)) is not None
    cache.drop(queue_id(1))
    assert cache.by_sender(sender_id(1)) is cache.by_notifier(notifier_id(1)) is None
    assert cache.by_link(link_id(1)) is cache.queue(queue_id(1)) is None
    assert (len(cache), cache.byte_count) == (0, 0)
    cache.drop(queue_id(1))


def test_a_record_that_changes_is_not_found_by_what_it_had() -> None:
    cache = RecordCache(100_000)
    cache.put(whole_queue(1, None, None))
    cache.put(queue(2, notifier=notifier(1)))
    cache.put(queue(1))
    assert cache.by_link(link_id(1)) is None
    assert cache.by_notifier(notifier_id(1)) == queue(2, notifier=notifier(1))


def test_what_was_not_asked_for_the_longest_goes_first() -> None:
    cache = RecordCache(3 * 1024)
    for number in range(3):
        cache.put(queue(number))
    assert cache.by_sender(sender_id(0)) is not None
    cache.put(queue(3))
    assert [number for number in range(4) if cache.queue(queue_id(number))] == [0, 2, 3]


def test_data_of_links_counts() -> None:
    cache = RecordCache(20 * 1024)
    for number in range(20):
        cache.put(queue(number, link=LinkRecord(link_id(number), b"", bytes(4_000))))
        assert cache.byte_count <= 20 * 1024
    assert len(cache) == 4
    cache.put(queue(99, link=LinkRecord(link_id(99), b"", bytes(30_000))))
    assert len(cache) == 0, "too large to be kept"
    cache.put(queue(1))
    cache.clear()
    assert (len(cache), cache.byte_count) == (0, 0)
    assert cache.by_sender(sender_id(1)) is None


# ---------------------------------------------------------------------------------- layers


def looked_for(_: bytes) -> QueueRecord:
    return queue(1, service_id=service_id(1))


def test_a_record_below_loses_a_service_that_is_gone_above() -> None:
    layers = Layers()
    assert layers.queue(queue_id(1), looked_for) == looked_for(b"")
    layers.stage(DeleteService(service(1)), 1)
    assert layers.queue(queue_id(1), looked_for) == queue(1)
    layers.take()
    assert layers.queue(queue_id(1), looked_for) == queue(1)
    layers.stage(CreateQueue(queue(2)), 1)
    assert layers.queue(queue_id(1), looked_for) == queue(1)


def test_a_record_without_these_services_stays_itself() -> None:
    record = whole_queue(1, service_id(1), service_id(2))
    assert without_services(record, {service_id(3)}) is record
    assert without_services(record, {service_id(1)}) == whole_queue(1, None, service_id(2))
    assert without_services(record, {service_id(2)}) == whole_queue(1, service_id(1), None)


def test_many_queues_of_one_service_do_not_depend_on_one_another() -> None:
    """Else one full disk would refuse batch after batch of a busy service."""
    first = Touched([CreateQueue(queue(1, service_id=service_id(1)))], ())
    second = Touched([CreateQueue(queue(2, service_id=service_id(1)))], ())
    assert not second.depends_on(first)
    assert second.depends_on(Touched([DeleteService(service(1))], ()))
    assert not Touched([DeleteService(service(1))], ()).depends_on(second)
    assert Touched([UpdateQueue(queue(1), queue(1, used_day=1))], ()).depends_on(first)
    assert Touched([], [service_id(1)]).depends_on(Touched([DeleteService(service(1))], ()))


# ------------------------------------------------------------------------------------ rows


@given(st.lists(st.binary(max_size=70), max_size=5))
def test_a_list_comes_back(items: list[bytes]) -> None:
    assert unpack(pack(items)) == tuple(items)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_list_or_damage(packed: bytes) -> None:
    try:
        items = unpack(packed)
    except CorruptionError:
        return
    assert pack(items) == packed


@pytest.mark.parametrize("packed", [b"\x00", b"\x00\x01", b"\x00\x02x", b"\xff\xff" + bytes(99)])
def test_a_list_cut_short_is_damage(packed: bytes) -> None:
    with pytest.raises(CorruptionError):
        unpack(packed)


ANY_HASH = st.binary(min_size=16, max_size=16)


@given(st.integers(0, 1 << 40), ANY_HASH, ANY_HASH, ANY_HASH, st.integers(0, 1 << 40))
def test_a_digest_comes_back_from_its_row(
    count: int, md5: bytes, xxh3: bytes, total: bytes, version: int
) -> None:
    digest = SetDigest(count, md5, xxh3, total, version)
    row = digest_to_row(digest)
    assert all(-(1 << 63) <= value < 1 << 63 for value in row)
    assert digest_from_row(row) == digest


@given(st.lists(st.binary(min_size=24, max_size=24), unique=True, max_size=8))
def test_a_digest_ignores_order(ids: list[bytes]) -> None:
    assert digest_of(ids) == digest_of(reversed(ids))
    assert (digest_of(ids) == EMPTY_DIGEST) == (not ids)
