"""What goes wrong on purpose goes wrong as it says, and is accounted for."""

from typing import Any

from syncline.demo.faults import Honest, LosesAcknowledgements, LosesChanges, RepeatsChanges
from syncline.demo.ledger import Ledger, Place


def change(document: str, **others: Any) -> dict[str, Any]:
    return {"type": "mutation", "document": document, **others}


def test_a_change_gets_lost_once_and_passes_when_it_is_sent_again() -> None:
    fault = LosesChanges(["plan"], is_on=True)
    assert [fault.to_client(change("plan", seq=seq)) for seq in (4, 5, 4, 5)] == [0, 0, 1, 1]
    assert fault.lost == {("plan", 4), ("plan", 5)}


def test_other_documents_and_other_words_do_not_get_lost() -> None:
    fault = LosesChanges(["plan"], is_on=True)
    assert fault.to_client(change("notes", seq=1)) == 1
    assert fault.to_client({"type": "state", "document": "plan", "seq": 3}) == 1
    assert fault.to_router(change("plan", clock=1)) == 1
    fault.is_on = False
    assert fault.to_client(change("plan", seq=4)) == 1
    assert not fault.lost


def test_a_change_comes_twice_while_the_fault_is_on() -> None:
    fault = RepeatsChanges()
    assert fault.to_router(change("plan", clock=1)) == 1
    fault.is_on = True
    assert fault.to_router(change("plan", clock=2)) == 2
    assert fault.to_router({"type": "ack", "document": "plan", "seq": 1}) == 1
    assert fault.to_client(change("plan", seq=1)) == 1
    assert fault.repeated == {("plan", 2)}


def test_acknowledgements_get_lost_until_the_place_is_given_up() -> None:
    fault = LosesAcknowledgements(["plan"], is_on=True)
    ack = {"type": "ack", "document": "plan", "seq": 3}
    assert fault.to_router(ack) == 0
    assert fault.to_router({**ack, "document": "notes"}) == 1
    assert fault.to_client({"type": "evicted", "document": "plan", "seq": 2}) == 1
    assert fault.to_router(ack) == 1
    assert fault.evicted == [("plan", 2)]


def test_an_honest_line_passes_everything_once() -> None:
    for frame in (change("plan", seq=1), {"type": "ack"}, {"type": "evicted"}):
        assert (Honest().to_router(frame), Honest().to_client(frame)) == (1, 1)


def test_a_ledger_counts_the_clocks_of_each_document() -> None:
    ledger = Ledger()
    for document, seq, author in (
        ("a", 1, "ann"),
        ("b", 1, "ann"),
        ("a", 2, "bob"),
        ("a", 3, "ann"),
    ):
        ledger.save(document, seq, author)
    assert ledger.clocks("ann") == {
        ("a", 1): Place(0, "a", 1),
        ("b", 1): Place(0, "b", 1),
        ("a", 2): Place(0, "a", 3),
    }


def test_lives_are_told_apart() -> None:
    ledger = Ledger()
    ledger.save("a", 1, "ann")
    ledger.apply("a", 1, "bob")
    ledger.life += 1
    ledger.save("a", 1, "ann")
    assert [place.life for place, _ in ledger.saved] == [0, 1]
    assert ledger.applied == [(Place(0, "a", 1), "bob")]
