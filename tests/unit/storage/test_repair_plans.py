"""Repair plans: read as they were written, or refused before anything is done by them."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import ConfigError, NewerFormatError
from syncline.storage.drift import repair_plans
from syncline.storage.drift.repair_plans import (
    LINE_BYTES_MAX,
    PlanHead,
    encode_head,
    encode_repair,
    read_plan,
)
from syncline.storage.files import DiskFiles
from syncline.values.ids import StreamId
from syncline.values.queue_records import ServiceRole
from syncline.values.repairs import Action, Repair

ROUTER = "0123abcd-0123456789abcdef"
WANTED = "89ab0123-fedcba9876543210"

# Few different ones, so that they meet.
_ids = st.integers(0, 5).map(lambda number: StreamId(bytes([number]) * 24))
_repairs = st.builds(
    Repair,
    st.sampled_from(Action),
    _ids,
    st.sampled_from([ServiceRole.MESSAGING, ServiceRole.NOTIFIER]),
    _ids,
)
_plans = st.lists(
    _repairs, unique_by=lambda each: (each.service, each.role, each.id), max_size=12
).map(lambda found: sorted(found, key=lambda each: (each.service, each.role.value, each.id)))


def text_of(repairs: list[Repair]) -> bytes:
    head = encode_head(PlanHead(ROUTER, WANTED, len(repairs)))
    return (head + "".join(map(encode_repair, repairs))).encode()


def read(content: bytes) -> tuple[PlanHead, list[Repair], list[Repair]]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "plan.jsonl")
        path.write_bytes(content)
        with read_plan(str(path), DiskFiles()) as plan:
            return (
                plan.head,
                list(plan.repairs(Action.DISSOCIATE)),
                list(plan.repairs(Action.ASSOCIATE)),
            )


@given(_plans, st.integers(1, 300))
def test_a_plan_is_read_as_it_was_written(repairs: list[Repair], piece_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(repair_plans, "_PIECE_BYTES", piece_bytes)
        head, gone, come = read(text_of(repairs))
    assert head == PlanHead(ROUTER, WANTED, len(repairs))
    assert head.store == "0123abcd"
    assert gone == [each for each in repairs if each.action is Action.DISSOCIATE]
    assert come == [each for each in repairs if each.action is Action.ASSOCIATE]


@given(_plans, st.data())
def test_a_plan_that_is_cut_anywhere_is_refused(repairs: list[Repair], data: st.DataObject) -> None:
    whole = text_of(repairs)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ConfigError):
        read(whole[:cut])


@given(st.one_of(st.binary(max_size=200), _plans.map(text_of)), st.data())
def test_whatever_is_in_a_file_it_is_a_plan_or_refused(content: bytes, data: st.DataObject) -> None:
    if content:
        place = data.draw(st.integers(0, len(content) - 1))
        change = data.draw(st.binary(max_size=4))
        content = content[:place] + change + content[place + 1 :]
    try:
        head, gone, come = read(content)
    except (ConfigError, NewerFormatError):
        return
    assert head.count == len(gone) + len(come)


def service(number: int) -> StreamId:
    return StreamId(bytes([number]) * 24)


M = ServiceRole.MESSAGING
TWO = [
    Repair(Action.ASSOCIATE, service(1), M, service(1)),
    Repair(Action.DISSOCIATE, service(1), M, service(2)),
]


def changed_head(**changes: object) -> bytes:
    head, *lines = text_of(TWO).splitlines(keepends=True)
    return json.dumps(json.loads(head) | changes).encode() + b"\n" + b"".join(lines)


def changed_line(change: Callable[[dict[str, str]], object]) -> bytes:
    head, line, *rest = text_of(TWO).splitlines(keepends=True)
    facts = json.loads(line)
    change(facts)
    return head + json.dumps(facts).encode() + b"\n" + b"".join(rest)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "line 1"),
        (b"\n", "line 1"),
        (b'{"format": "syncline repair plan"}\n', "line 1"),
        (changed_head(format="something else"), "line 1: it is not the beginning"),
        (changed_head(version=0), "line 1: it is not the beginning"),
        (changed_head(count=-1), "line 1: it is not the beginning"),
        (changed_head(router="0123abcd"), "line 1: it is not the beginning"),
        (changed_head(router="0123ABCD-0123456789abcdef"), "line 1: it is not the beginning"),
        (changed_head(wanted=""), "line 1: it is not the beginning"),
        (changed_head(more=1), "line 1"),
        (changed_head(count=1), "there are 2 repairs and not 1"),
        (changed_head(count=3), "there are 2 repairs and not 3"),
        (text_of(TWO) + b"\n", "line 4: it is not a repair"),
        (text_of(TWO)[:-1], "line 3: it is cut short"),
        (text_of(TWO[::-1]), "line 3: it does not come behind"),
        (text_of([TWO[0], TWO[0]]), "line 3: it does not come behind"),
        (changed_line(lambda facts: facts.update(action="delete")), "line 2: it is not a repair"),
        (changed_line(lambda facts: facts.update(role="P")), "line 2: it is not a repair"),
        (changed_line(lambda facts: facts.update(id="AAAA")), "line 2: a queue id has 32"),
        (changed_line(lambda facts: facts.update(service="=" * 32)), "line 2"),
        (changed_line(lambda facts: facts.pop("id")), "line 2: it is not a repair"),
        (changed_line(lambda facts: facts.update(more="")), "line 2: it is not a repair"),
        (text_of(TWO) + b" " * (LINE_BYTES_MAX + 1) + b"\n", "line 4: it is longer"),
        (text_of(TWO) + b" " * (LINE_BYTES_MAX + 1), "line 4: it is longer"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_line(content: bytes, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read(content)


def test_a_plan_of_a_later_version_is_known_as_such() -> None:
    with pytest.raises(NewerFormatError, match="format 2"):
        read(changed_head(version=2))


def test_a_plan_that_is_not_there_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ConfigError, match="no repair plan"), read_plan(str(path), DiskFiles()):
            raise AssertionError


def test_a_plan_that_changes_while_it_is_carried_out_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "plan.jsonl"
    path.write_bytes(text_of(TWO))
    with read_plan(str(path), DiskFiles()) as plan:
        path.write_bytes(changed_head(wanted=ROUTER))
        with pytest.raises(ConfigError, match="changed"):
            list(plan.repairs(Action.ASSOCIATE))


def test_who_follows_hears_of_every_thousand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_plans, "_FOLLOWED_COUNT", 1)
    path = tmp_path / "plan.jsonl"
    path.write_bytes(text_of(TWO))
    heard: list[int] = []
    with read_plan(str(path), DiskFiles(), heard.append):
        assert heard == [1, 1]
