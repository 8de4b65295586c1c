"""What each side of a reconciliation does, step by step."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from random import Random

import numpy as np
import pytest

from syncline.core.reconciliation import clusters, estimate
from syncline.core.reconciliation.changes import RecentChanges
from syncline.core.reconciliation.choosing import Comparing, ListingAll, Sifting, choose
from syncline.core.reconciliation.initiator import Initiator, Mode
from syncline.core.reconciliation.kept import CELL_COUNT_DEFAULT, KeptSketch
from syncline.core.reconciliation.plain import FAN, plain_parts
from syncline.core.reconciliation.responder import Responder
from syncline.core.reconciliation.sets import END, SetView, Snapshot, bucket_counts, sketch_hashes
from syncline.errors import LimitExceededError, MalformedMessageError, UnexpectedMessageError
from syncline.kernels import cells
from syncline.kernels.cell_places import CELL_COUNT_MAX
from syncline.kernels.xxh3 import Ids, salted
from syncline.values.reconciliation import (
    BUCKET_COUNT,
    CHANGE_COUNT_MAX,
    SET_COUNT_MAX,
    Answer,
    Change,
    Compare,
    CountParts,
    Counts,
    Difference,
    Failure,
    Fetch,
    Fetched,
    Found,
    HashFilter,
    ListIds,
    Listing,
    Open,
    Opening,
    Parts,
    PlainRanges,
    Prefixes,
    Request,
    Restart,
    Sift,
    Sifted,
    Split,
    TooFew,
)
from tests.reconciliation import (
    ChangingSet,
    Drift,
    Session,
    check_result,
    pieces,
    random_ids,
    snapshot,
)

SALT = b"saltsalt"
IDS = sorted(random_ids(Random(1), 3_000))


def new_salts() -> Iterator[bytes]:
    return (number.to_bytes(8, "big") for number in count(1))


def initiator(
    ids: list[bytes], mode: Mode = Mode.SKETCH, kept: KeptSketch | None = None
) -> Initiator:
    drawn = new_salts()
    return Initiator(snapshot(ids), lambda: next(drawn), mode=mode, kept=kept)


def session(mine: list[bytes], theirs: list[bytes], mode: Mode = Mode.SKETCH) -> Session:
    return Session(initiator(mine, mode), Responder(snapshot(theirs, 5), SALT))


# ---------------------------------------------------------------------------------- whole sessions


def test_equal_sets_need_the_opening_alone() -> None:
    played = session(IDS, IDS)
    check_result(played.run(), Drift(frozenset(IDS), frozenset(IDS)))
    assert played.asked == ["Open"]


def test_one_lost_id_is_found_in_one_round_trip() -> None:
    played = session(IDS, IDS[1:])
    check_result(played.run(), Drift(frozenset(IDS), frozenset(IDS[1:])))
    assert played.asked == ["Open"]


def test_an_empty_other_side_needs_no_further_question() -> None:
    played = session(IDS, [])
    check_result(played.run(), Drift(frozenset(IDS), frozenset()))
    assert played.asked == ["Open"]


def test_an_empty_side_asks_for_the_list() -> None:
    played = session([], IDS)
    check_result(played.run(), Drift(frozenset(), frozenset(IDS)))
    assert played.asked == ["Open", "ListIds"]


def test_a_prefix_that_they_lost_needs_no_further_question() -> None:
    rest = [id_ for id_ in IDS if id_[0] >> 2 != 5]
    played = session(IDS, rest)
    check_result(played.run(), Drift(frozenset(IDS), frozenset(rest)))
    assert played.asked == ["Open"]


def test_two_sided_drift_takes_two_round_trips() -> None:
    played = session(IDS[40:], IDS[:-40])
    check_result(played.run(), Drift(frozenset(IDS[40:]), frozenset(IDS[:-40])))
    assert len(played.asked) <= 4
    mixed = Random(2).sample(IDS, len(IDS))
    played = session(mixed[30:], mixed[:-30])
    check_result(played.run(), Drift(frozenset(mixed[30:]), frozenset(mixed[:-30])))
    assert played.asked == ["Open", "Compare"]


def test_a_lost_half_is_sifted() -> None:
    mixed = Random(3).sample(IDS, len(IDS))
    half = mixed[: len(mixed) // 2]
    played = session(mixed, half)
    check_result(played.run(), Drift(frozenset(mixed), frozenset(half)))
    assert played.asked[:2] == ["Open", "Sift"]


def test_a_contiguous_loss_is_counted() -> None:
    ids = sorted(random_ids(Random(4), 20_000))
    rest = ids[:5_210] + ids[7_210:]
    played = session(ids, rest)
    check_result(played.run(), Drift(frozenset(ids), frozenset(rest)))
    assert played.asked[1] == "CountParts"


def test_a_contiguous_surplus_of_theirs_is_listed() -> None:
    ids = sorted(random_ids(Random(4), 20_000))
    rest = ids[:5_210] + ids[7_210:]
    played = session(rest, ids)
    check_result(played.run(), Drift(frozenset(rest), frozenset(ids)))
    assert played.asked[1:3] == ["CountParts", "ListIds"]


def test_an_unasked_opening_may_have_any_number_of_cells() -> None:
    asking = initiator(IDS)
    answering = Responder(snapshot(IDS[100:]), SALT)
    result = asking.receive(answering.opening(CELL_COUNT_DEFAULT))
    check_result(result, Drift(frozenset(IDS), frozenset(IDS[100:])))  # type: ignore[arg-type]
    assert asking.round_trips == 1


@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_finds_the_same(mode: Mode) -> None:
    mine, theirs = IDS[7:-400], IDS[:1_500] + IDS[1_600:]
    played = session(mine, theirs, mode)
    check_result(played.run(), Drift(frozenset(mine), frozenset(theirs)))


# ---------------------------------------------------------------------------------- failed checks


def test_a_failed_check_takes_a_new_salt_and_then_the_list() -> None:
    mixed = Random(2).sample(IDS, len(IDS))
    played = session(mixed[30:], mixed[:-30])

    def hide_an_id(answer: Answer) -> Answer:
        if isinstance(answer, Found | Fetched):
            return replace(answer, ids=answer.ids[24:])
        return answer

    played.carry = hide_an_id
    check_result(played.run(), Drift(frozenset(mixed[30:]), frozenset(mixed[:-30])))
    assert played.asked[:3] == ["Open", "Compare", "Open"]
    assert played.asked[-1] == "ListIds"
    openings = [request for request in played.requests if isinstance(request, Open)]
    assert [opening.salt for opening in openings] == [None, (1).to_bytes(8, "big")]
    assert played.initiator.round_trips <= 6


def test_a_list_that_does_not_fit_its_digest_is_a_failure() -> None:
    played = session([], IDS)

    def hide_an_id(answer: Answer) -> Answer:
        return replace(answer, ids=answer.ids[24:]) if isinstance(answer, Listing) else answer

    played.carry = hide_an_id
    assert isinstance(played.run(), Failure)


def test_a_digest_that_is_wrong_on_their_side_is_a_failure() -> None:
    played = session(IDS, IDS[1:])

    def break_sum(answer: Answer) -> Answer:
        if isinstance(answer, Opening):
            return replace(answer, state=replace(answer.state, sum128=bytes(16)))
        return answer

    played.carry = break_sum
    assert isinstance(played.run(), Failure)
    assert played.initiator.round_trips <= 6


def test_equal_xor_and_count_with_another_sum_is_no_equality() -> None:
    # What XOR cannot see: ids that were counted twice on one side.
    played = session(IDS, IDS)

    def break_sum(answer: Answer) -> Answer:
        state = answer.state
        return answer if state is None else replace(answer, state=replace(state, sum128=bytes(16)))

    played.carry = break_sum
    assert isinstance(played.run(), Failure)


def test_too_few_cells_are_followed_by_more() -> None:
    mixed = Random(2).sample(IDS, len(IDS))
    played = session(mixed[30:], mixed[:-30])
    refused: list[Answer] = []

    def refuse_first(answer: Answer) -> Answer:
        if isinstance(answer, Found) and not refused:
            refused.append(answer)
            # A guess that is far too low must not lead to as few cells again.
            return TooFew(None, 1)
        return answer

    played.carry = refuse_first
    check_result(played.run(), Drift(frozenset(mixed[30:]), frozenset(mixed[:-30])))
    sent = [len(request.cells) for request in played.requests if isinstance(request, Compare)]
    assert len(sent) == 2
    assert sent[0] * 1.05 < sent[1]


def test_the_sixth_answer_ends_it() -> None:
    mixed = Random(2).sample(IDS, len(IDS))
    played = session(mixed[30:], mixed[:-30])
    played.carry = lambda answer: TooFew(None, 50) if isinstance(answer, Found) else answer
    check_result(played.run(), Drift(frozenset(mixed[30:]), frozenset(mixed[:-30])))
    assert played.initiator.round_trips == 6
    assert played.asked[-1] == "ListIds"


@pytest.mark.parametrize(
    "answer",
    [TooFew(None, 3), Listing(None, b""), Restart(Responder(snapshot(IDS), SALT).opening(8).state)],
)
def test_an_answer_to_something_else_is_refused(answer: Answer) -> None:
    with pytest.raises(UnexpectedMessageError):
        initiator(IDS).receive(answer)


def test_an_opening_of_another_shape_or_salt_is_refused() -> None:
    opening = Responder(snapshot(IDS[5:]), SALT).opening(8)
    for wrong in (
        replace(opening, bucket_counts=opening.bucket_counts[1:]),
        replace(opening, prefix_counts=()),
        replace(opening, cells=b"", prefix_counts=(), bucket_counts=()),
    ):
        with pytest.raises(MalformedMessageError):
            initiator(IDS).receive(wrong)


def test_answers_of_another_size_than_asked_for_are_refused() -> None:
    ids = sorted(random_ids(Random(4), 20_000))
    played = session(ids, ids[:5_210] + ids[7_210:])
    played.carry = lambda answer: Counts(None, (1,)) if isinstance(answer, Counts) else answer
    with pytest.raises(MalformedMessageError):
        played.run()
    played = session(IDS, IDS[1:], Mode.RANGES)
    played.carry = lambda answer: Parts(None, ()) if isinstance(answer, Parts) else answer
    with pytest.raises(MalformedMessageError):
        played.run()


# --------------------------------------------------------------------------------- while it changes


def changing_session(keeps_changes: bool) -> tuple[Session, ChangingSet]:
    theirs = ChangingSet(IDS)
    responder = Responder(
        theirs,
        SALT,
        changes_since=theirs.recent.since if keeps_changes else lambda _version: None,
    )
    return Session(initiator(IDS[1:]), responder), theirs


def test_a_change_before_ids_are_fetched_comes_with_them() -> None:
    played, theirs = changing_session(keeps_changes=True)
    new_id = b"\x77" * 24

    def change_late() -> None:
        if isinstance(played.requests[-1], Fetch):
            theirs.change(new_id)
            theirs.change(IDS[9])

    played.between = change_late
    result = played.run()
    assert played.asked == ["Open", "Fetch"]
    assert isinstance(result, Difference)
    assert pieces(result.missing) == {IDS[0], new_id}
    assert pieces(result.extra) == {IDS[9]}
    assert result.state.version == 2


def test_without_the_changes_it_starts_again_under_the_same_salt() -> None:
    played, theirs = changing_session(keeps_changes=False)

    def change_once() -> None:
        if isinstance(played.requests[-1], Fetch) and theirs.version() == 0:
            theirs.change(b"\x77" * 24)

    played.between = change_once
    result = played.run()
    assert played.asked[:3] == ["Open", "Fetch", "Open"]
    assert played.requests[2] == Open(SALT, 8)
    assert isinstance(result, Difference)
    assert pieces(result.missing) == {IDS[0], b"\x77" * 24}


def test_more_changes_than_are_told_are_a_restart() -> None:
    theirs = ChangingSet(IDS)
    every = tuple(Change(True, IDS[0]) for _ in range(CHANGE_COUNT_MAX + 1))
    responder = Responder(theirs, SALT, changes_since=lambda _version: every)
    theirs.change(IDS[0])
    answer = responder.answer(Fetch(0, SALT, b""))
    assert isinstance(answer, Restart)


def test_recent_changes_are_known_as_far_back_as_they_go() -> None:
    recent = RecentChanges(version=10, count_max=3)
    changes = [Change(True, bytes([number]) * 24) for number in range(5)]
    for change in changes:
        recent.add(change)
    assert recent.version == 15
    assert recent.since(15) == ()
    assert recent.since(13) == tuple(changes[3:])
    assert recent.since(12) == tuple(changes[2:])
    assert recent.since(11) is None
    assert recent.since(16) is None


# ------------------------------------------------------------------------------------ the responder


@pytest.mark.parametrize(
    "request_",
    [
        Open(None, CELL_COUNT_MAX + 1),
        Compare(0, SALT, bytes(9 * (CELL_COUNT_MAX + 1))),
        Sift(0, SALT, None, 0, CELL_COUNT_MAX + 1),
        Sift(0, SALT, None, SET_COUNT_MAX + 1, 0),
        CountParts(0, Prefixes(16, tuple(range(257))), 8),
        CountParts(0, Prefixes(60, (0,)), 5),
        Split(0, SALT, Prefixes(16, tuple(range(257))), 8),
        ListIds(0, Prefixes(17, tuple(range(65_537)))),
        PlainRanges(0, (), FAN + 1),
        PlainRanges(0, ((IDS[0], IDS[0]),) * 4_097, FAN),
    ],
)
def test_the_responder_refuses_what_nobody_needs(request_: Request) -> None:
    with pytest.raises(LimitExceededError):
        Responder(snapshot(IDS), SALT).answer(request_)


def test_the_state_is_sent_only_if_it_is_news() -> None:
    responder = Responder(snapshot(IDS, 5), SALT)
    everything = Prefixes(0, (0,))
    assert responder.answer(ListIds(5, everything)).state is None
    state = responder.answer(ListIds(4, everything)).state
    assert state is not None
    assert (state.version, state.count) == (5, len(IDS))


def test_garbage_cells_are_answered_with_too_few() -> None:
    answer = Responder(snapshot(IDS), SALT).answer(Compare(0, SALT, Random(1).randbytes(9 * 300)))
    assert isinstance(answer, TooFew)


def test_cells_of_ids_that_nobody_has_name_only_hashes() -> None:
    foreign = np.array([77], np.uint64)
    mine = SetView(snapshot(IDS)).cells(SALT, 20)
    answer = Responder(snapshot(IDS), SALT).answer(
        Compare(0, SALT, (mine - cells.sketch(foreign, 20)).encode())
    )
    # "You have an id with this hash, and I have not": it has none.
    assert isinstance(answer, TooFew)


def test_an_empty_filter_lets_nothing_pass() -> None:
    answer = Responder(snapshot(IDS), SALT).answer(Sift(0, SALT, HashFilter(8, b""), 0, 0))
    assert isinstance(answer, Sifted)
    assert answer.ids == b"".join(IDS)


def test_ids_are_fetched_only_from_the_ranges_given() -> None:
    rows = Snapshot(b"".join(IDS[:2]))
    hashes = b"".join(
        int(hashed).to_bytes(6, "big") for hashed in np.sort(sketch_hashes(salted(rows.rows, SALT)))
    )
    responder = Responder(snapshot(IDS), SALT)
    every = responder.answer(Fetch(0, SALT, hashes))
    assert isinstance(every, Fetched)
    assert pieces(every.ids) == set(IDS[:2])
    first = int.from_bytes(IDS[0][:8], "big")
    one = responder.answer(Fetch(0, SALT, hashes, Prefixes(64, (first,))))
    assert isinstance(one, Fetched)
    assert one.ids == IDS[0]


def test_small_ranges_are_listed_and_large_ones_have_fingerprints() -> None:
    responder = Responder(snapshot(IDS), SALT)
    answer = responder.answer(Split(0, SALT, Prefixes(0, (0,)), 0))
    assert isinstance(answer, Parts)
    assert answer.parts[0].fingerprint is not None
    small = responder.answer(Split(0, SALT, Prefixes(64, (int.from_bytes(IDS[9][:8], "big"),)), 0))
    assert isinstance(small, Parts)
    assert small.parts[0].fingerprint is None
    assert len(small.parts[0].hashes) == 6


# ---------------------------------------------------------------------------------------- the modes


class CountingSet(Snapshot):
    """Says which ranges were read."""

    def __init__(self, ids: list[bytes]) -> None:
        super().__init__(b"".join(ids))
        self.rows_read = 0

    def iterate(self, start: bytes, end: bytes) -> Iterator[Ids]:
        for piece in super().iterate(start, end):
            self.rows_read += len(piece)
            yield piece


def test_ranges_mode_reads_only_where_something_differs() -> None:
    theirs = CountingSet(IDS)
    played = Session(initiator(IDS[:900] + IDS[901:], Mode.RANGES), Responder(theirs, SALT))
    result = played.run()
    assert isinstance(result, Difference)
    assert pieces(result.missing) == {IDS[900]}
    assert theirs.rows_read < 100


def test_ranges_that_are_still_open_late_are_listed_alone() -> None:
    ids = sorted(random_ids(Random(4), 60_000))
    rest = ids[:20_000] + ids[26_000:]
    played = session(rest, ids, Mode.RANGES)
    check_result(played.run(), Drift(frozenset(rest), frozenset(ids)))
    assert played.asked[-1] == "ListIds"
    assert ListIds(5, Prefixes(0, (0,))) not in played.requests
    assert played.initiator.round_trips <= 5


def test_plain_ranges_are_never_more_than_fit_a_block() -> None:
    # With the count of a range rounded down there would be up to twice as many.
    for size in (1, FAN - 1, FAN, FAN + 1, 2 * FAN - 1, 2 * FAN + 1, 3_000):
        parts = list(plain_parts(snapshot(IDS[:size]), b"", END, FAN))
        assert len(parts) <= FAN
        assert (parts[0].first, parts[-1].last or parts[-1].first) == (IDS[0], IDS[size - 1])
    assert list(plain_parts(snapshot([]), b"", END, FAN)) == []


@pytest.mark.parametrize("mode", [Mode.RANGES, Mode.PLAIN])
def test_modes_of_ranges_find_few_without_the_whole_list(mode: Mode) -> None:
    # Before, between and after what the other side has.
    mine = [*IDS[:-1], bytes(24), b"\xff" * 24]
    theirs = IDS[1:1_700] + IDS[1_701:]
    played = session(mine, theirs, mode)
    check_result(played.run(), Drift(frozenset(mine), frozenset(theirs)))
    assert played.asked.count("Open") == 1
    assert ListIds(5, Prefixes(0, (0,))) not in played.requests


def test_plain_mode_asks_for_all_once_half_of_its_ranges_differ() -> None:
    mixed = Random(5).sample(IDS, len(IDS))
    few = session(mixed, mixed[5:], Mode.PLAIN)
    few.run()
    assert "ListIds" not in few.asked
    many = session(mixed, mixed[400:], Mode.PLAIN)
    many.run()
    assert many.asked == ["Open", "PlainRanges", "ListIds"]
    half = session(mixed, mixed[1_600:], Mode.PLAIN)
    half.run()
    assert half.asked == ["Open", "ListIds"]


# -------------------------------------------------------------------------------------- kept sketch


def test_a_kept_sketch_is_what_a_scan_makes() -> None:
    kept = KeptSketch(SALT, 60, IDS)
    for id_ in IDS[:500]:
        kept.remove(id_)
    kept.add(IDS[3])
    view = SetView(snapshot([IDS[3], *IDS[500:]]))
    assert kept.cells(60).encode() == view.cells(SALT, 60).encode()
    assert kept.bucket_counts == view.bucket_counts(SALT).tolist()
    assert kept.prefix_counts == view.prefix_counts().tolist()
    assert kept.version == len(IDS) + 501


def test_a_kept_sketch_opens_and_compares_without_reading_ids() -> None:
    theirs = CountingSet(IDS[20:])
    kept = KeptSketch(SALT, 400, IDS[20:])
    theirs._version = kept.version
    opening = Responder(theirs, SALT, kept=kept).opening(100)
    assert theirs.rows_read == 0
    assert opening == Responder(snapshot(IDS[20:], kept.version), SALT).opening(100)
    mine = KeptSketch(SALT, 400, IDS)
    own = Snapshot(b"".join(IDS), mine.version)
    result = Initiator(own, lambda: bytes(8), kept=mine).receive(opening)
    check_result(result, Drift(frozenset(IDS), frozenset(IDS[20:])))  # type: ignore[arg-type]


def test_a_kept_sketch_of_another_version_or_salt_is_not_used() -> None:
    stale = KeptSketch(SALT, 400, IDS[50:])
    responder = Responder(snapshot(IDS[20:], stale.version + 1), SALT, kept=stale)
    expected = Responder(snapshot(IDS[20:], stale.version + 1), SALT)
    assert responder.opening(40) == expected.opening(40)
    other = b"pepper!!"
    fresh = KeptSketch(SALT, 400, IDS[20:])
    responder = Responder(snapshot(IDS[20:], fresh.version), SALT, kept=fresh)
    assert responder.opening(40, other) == Responder(
        snapshot(IDS[20:], fresh.version), other
    ).opening(40)


def test_a_double_change_is_no_silent_error() -> None:
    kept = KeptSketch(SALT, 400, IDS)
    kept.add(IDS[0])
    kept.version -= 1
    responder = Responder(snapshot(IDS, kept.version), SALT, kept=kept)
    played = Session(initiator(IDS[5:]), responder)
    result = played.run()
    check_result(result, Drift(frozenset(IDS[5:]), frozenset(IDS)))


@pytest.mark.parametrize("cell_count", [0, 4_097])
def test_a_kept_sketch_has_a_bounded_size(cell_count: int) -> None:
    with pytest.raises(ValueError, match="cells"):
        KeptSketch(SALT, cell_count)


# ------------------------------------------------------------------------------------------ guesses


def hashes_of(
    random: np.random.Generator, size: int
) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return random.integers(0, 2**64, size, dtype=np.uint64)


@pytest.mark.parametrize("size", [20, 1_000, 60_000, 300_000])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_bucket_counts_tell_how_much_differs(size: int, share: float) -> None:
    random = np.random.default_rng(size)
    drawn = hashes_of(random, size)
    cut = int(size * share)
    mine = bucket_counts(drawn[cut:]) + 5_000
    theirs = (bucket_counts(drawn[:cut]) + 5_000) % 128
    guess = estimate.from_buckets(mine, theirs.tolist(), size - 2 * cut)
    assert guess == pytest.approx(size, rel=4 * estimate.BUCKET_ERROR)


def test_more_than_bucket_counts_can_tell_is_told_by_prefixes() -> None:
    random = np.random.default_rng(1)
    sizes = (
        random.multinomial(3_000_000, [1 / 64] * 64),
        random.multinomial(3_000_000, [1 / 64] * 64),
    )
    buckets = random.integers(0, 128, BUCKET_COUNT), random.integers(0, 128, BUCKET_COUNT)
    guess = estimate.from_counts(
        buckets[0], buckets[1].tolist(), sizes[0], [int(size) for size in sizes[1]]
    )
    assert 3_000_000 < guess < 12_000_000


def test_the_surplus_is_the_least_that_differs() -> None:
    counts = np.zeros(BUCKET_COUNT, np.int64)
    prefixes = np.full(64, 10, np.int64)
    guess = estimate.from_counts(counts, counts.tolist(), prefixes, [0] * 64)
    assert guess >= 640


@pytest.mark.parametrize("size", [300, 3_000])
def test_cells_that_cannot_be_read_tell_how_much_differs(size: int) -> None:
    drawn = hashes_of(np.random.default_rng(size), size) >> np.uint64(16)
    guess = estimate.from_cells(cells.sketch(drawn, int(size * 1.1)))
    assert guess == pytest.approx(size, rel=0.25)


def test_full_cells_tell_nothing() -> None:
    drawn = hashes_of(np.random.default_rng(1), 10_000) >> np.uint64(16)
    assert estimate.from_cells(cells.sketch(drawn, 20)) is None


# ------------------------------------------------------------------------------------------ choices


def test_little_drift_is_compared() -> None:
    plan = choose(1_000_000, 1_000_000, 100)
    assert isinstance(plan, Comparing)
    assert 120 < plan.cell_count < 250


def test_a_surer_guess_needs_fewer_cells() -> None:
    guessed, sure = choose(10**6, 10**6, 9_000), choose(10**6, 10**6, 9_000, is_sure=True)
    assert isinstance(guessed, Comparing)
    assert isinstance(sure, Comparing)
    assert sure.cell_count < guessed.cell_count


def test_a_loss_on_one_side_is_sifted_in_one_direction() -> None:
    theirs_lost = choose(1_000_000, 500_000, 500_000)
    assert isinstance(theirs_lost, Sifting)
    assert (theirs_lost.up_scale, theirs_lost.down_scale > 0) == (0, True)
    mine_lost = choose(500_000, 1_000_000, 500_000)
    assert isinstance(mine_lost, Sifting)
    assert (mine_lost.up_scale > 0, mine_lost.down_scale) == (True, 0)


def test_nearly_disjoint_sets_are_listed() -> None:
    assert choose(10, 1_000, 1_005) == ListingAll()


def test_a_late_plan_saves_a_question() -> None:
    early = choose(10_000, 10_000, 6_000)
    late = choose(10_000, 10_000, 6_000, is_late=True)
    assert isinstance(early, Sifting)
    assert not isinstance(late, Sifting) or late.up_scale > early.up_scale


# ----------------------------------------------------------------------------------------- clusters


def test_random_drift_is_no_cluster() -> None:
    random = np.random.default_rng(2)
    for skew in (np.ones(64), np.arange(64) ** 3.0):
        size = random.multinomial(4_000_000, skew / skew.sum())
        lost = random.binomial(size, 0.1)
        assert clusters.clustered(size, size - lost, float(lost.sum())) == []


def test_neighbours_lost_are_a_cluster_in_their_prefix() -> None:
    size = np.full(64, 1_000)
    lost = np.zeros(64, np.int64)
    lost[[7, 8]] = 600, 150
    assert clusters.clustered(size, size - lost, 750.0) == [7, 8]


def test_a_handful_is_not_worth_a_question() -> None:
    size = np.full(64, 1_000)
    lost = np.zeros(64, np.int64)
    lost[7] = 10
    assert clusters.clustered(size, size - lost, 10.0) == []


def test_parts_that_one_side_lacks_are_settled() -> None:
    parts = np.arange(4, dtype=np.uint64)
    mine, theirs = np.array([5, 0, 3, 0]), np.array([0, 300, 3, 0])
    settled = clusters.settle(parts, mine, theirs)
    assert settled.only_mine.tolist() == [0]
    assert settled.only_theirs.tolist() == [1]
    few = clusters.settle(parts, mine, np.array([0, 3, 3, 0]))
    assert few.only_theirs.tolist() == []


@pytest.mark.parametrize("guess", [500_000.0, 650_000.0, 750_000.0])
def test_a_large_loss_is_taken_for_one_sided_though_the_guess_is_off_by_half(guess: float) -> None:
    exact = choose(1_000_000, 500_000, 500_000.0)
    assert isinstance(exact, Sifting)
    assert exact.up_scale == 0
    assert choose(1_000_000, 500_000, guess) == exact
