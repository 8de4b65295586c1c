"""Reconciling finds exactly the difference or says that it failed, whatever happens meanwhile."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.core.reconciliation.initiator import ROUND_TRIP_COUNT_MAX, Initiator, Mode
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import digest_of, rows_between
from syncline.errors import ProtocolError
from syncline.kernels.xxh3 import as_rows
from syncline.values.reconciliation import Answer, Difference, Result
from syncline.wire.reconciliation.answers import decode_answer, encode_answer
from syncline.wire.reconciliation.requests import decode_request, encode_request
from tests.reconciliation import (
    ChangingSet,
    Drift,
    Session,
    check_result,
    joined,
    pieces,
    random_drift,
    random_ids,
    snapshot,
)

CASES = 250
CASES_LONG = 10_000
seeds = st.integers(0, 2**32)
modes = st.sampled_from(list(Mode))


def salts(random: Random) -> Callable[[], bytes]:
    return lambda: random.randbytes(8)


def joined_session(drift: Drift, random: Random, mode: Mode) -> Session:
    responder = Responder(snapshot(drift.theirs, random.randrange(9)), random.randbytes(8))
    cell_count = random.choice([1, 4, 8, 40])
    initiator = Initiator(snapshot(drift.mine), salts(random), mode=mode, opening_cells=cell_count)
    return Session(initiator, responder)


def check_any_drift(seed: int, size_max: int) -> None:
    random = Random(seed)
    drift = random_drift(random, size_max)
    session = joined_session(drift, random, random.choice(list(Mode)))
    check_result(session.run(), drift)
    assert session.initiator.round_trips <= ROUND_TRIP_COUNT_MAX


def check_changing(seed: int, size_max: int) -> None:
    """Both the lists and the version they are said to be of."""
    random = Random(seed)
    drift = random_drift(random, size_max)
    theirs = ChangingSet(drift.theirs)
    spare = sorted(drift.mine | drift.theirs) + random_ids(random, 40)

    def change() -> None:
        for _ in range(random.choice([0, 0, 1, 3, 20])):
            theirs.change(random.choice(spare))

    keeps_changes = random.random() < 0.5
    responder = Responder(
        theirs,
        random.randbytes(8),
        changes_since=theirs.recent.since if keeps_changes else lambda _version: None,
    )
    mode = random.choice(list(Mode))
    session = Session(Initiator(snapshot(drift.mine), salts(random), mode=mode), responder, change)
    result = session.run()
    assert isinstance(result, Difference), result
    then = theirs.history[result.state.version]
    check_result(result, Drift(drift.mine, frozenset(then)))
    assert session.initiator.round_trips <= ROUND_TRIP_COUNT_MAX


def check_hostile(seed: int, size_max: int) -> None:
    """Answers with changed bytes are refused, or lead to lists that fit what was claimed."""
    random = Random(seed)
    drift = random_drift(random, size_max)
    session = joined_session(drift, random, random.choice(list(Mode)))
    session.carry = lambda answer: damaged(answer, random)
    try:
        result = session.run()
    except ProtocolError:
        return
    check_not_silently_wrong(result, drift)


def damaged(answer: Answer, random: Random) -> Answer:
    kind, body = joined(encode_answer(answer))
    if random.random() < 0.5:
        changed = bytearray(body)
        for _ in range(random.randint(1, 3)):
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        body = bytes(changed)
    return decode_answer(kind, body)


def check_not_silently_wrong(result: Result, drift: Drift) -> None:
    if not isinstance(result, Difference):
        return
    claimed = (drift.mine - pieces(result.extra)) | pieces(result.missing)
    digest = digest_of(as_rows(b"".join(sorted(claimed))))
    assert result.state.count == digest.count
    assert result.state.xor128 == digest.xor128.to_bytes(16, "big")
    assert result.state.sum128 == digest.sum128.to_bytes(16, "big")
    truth = digest_of(as_rows(b"".join(sorted(drift.theirs))))
    if digest == truth:
        check_result(result, drift)


@pytest.mark.parametrize("block", range(5))
def test_the_difference_is_found_exactly(block: int) -> None:
    for seed in range(block * CASES // 5, (block + 1) * CASES // 5):
        check_any_drift(seed, 1_500)


@given(seeds)
@settings(max_examples=60)
def test_any_interleaving_of_changes_ends_with_the_lists_of_some_version(seed: int) -> None:
    check_changing(seed, 400)


@given(seeds)
@settings(max_examples=100)
def test_a_lying_responder_never_leads_to_a_silent_error(seed: int) -> None:
    check_hostile(seed, 300)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", range(10))
def test_ten_thousand_random_and_hostile_cases(block: int) -> None:
    for seed in range(block * CASES_LONG // 10, (block + 1) * CASES_LONG // 10):
        check = (check_any_drift, check_changing, check_hostile)[seed % 3]
        check(1_000_000 + seed, 3_000 if seed % 30 == 0 else 500)


# ----------------------------------------------------------------------------------- hostile bytes


@given(st.integers(0, 255), st.binary(max_size=200))
@settings(max_examples=300)
def test_bytes_of_a_hostile_peer_are_a_request_or_refused(kind: int, body: bytes) -> None:
    check_hostile_request(kind, body)


@given(seeds)
@settings(max_examples=80)
def test_requests_with_changed_bytes_are_answered_or_refused(seed: int) -> None:
    random = Random(seed)
    drift = random_drift(random, 200)
    session = joined_session(drift, random, random.choice(list(Mode)))
    session.run()
    for request in session.requests:
        kind, body = joined(encode_request(request))
        changed = bytearray(body)
        changed[random.randrange(len(changed))] = random.randrange(256)
        check_hostile_request(kind, bytes(changed))


def check_hostile_request(kind: int, body: bytes) -> None:
    try:
        request = decode_request(kind, body)
    except ProtocolError:
        return
    assert decode_request(*joined(encode_request(request))) == request
    ids = snapshot(random_ids(Random(1), 50), 3)
    try:
        answer = Responder(ids, bytes(8)).answer(request)
    except ProtocolError:
        return
    rows = rows_between(ids, b"", b"\xff" * 25)
    # However much is asked for, no more than there is.
    assert sum(len(part) for part in encode_answer(answer)) < 16 * len(rows) * 24 + 2_000_000


@given(st.integers(0, 255), st.binary(max_size=300))
@settings(max_examples=300)
def test_bytes_of_a_hostile_responder_are_an_answer_or_refused(kind: int, body: bytes) -> None:
    try:
        answer = decode_answer(kind, body)
    except ProtocolError:
        return
    assert decode_answer(*joined(encode_answer(answer))) == answer
