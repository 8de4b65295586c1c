"""Verbs that are told to end: what they began goes with them."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from syncline.cli.interrupting import terminated_as_interrupted
from syncline.cli.output import Output
from syncline.cli.pipeline_session import open_jobs
from syncline.pipeline import session


def test_sigterm_is_an_interrupt_inside_and_what_it_was_outside() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_thread_that_has_no_signals_goes_on_without_them() -> None:
    reached: list[str] = []

    def work() -> None:
        with terminated_as_interrupted():
            reached.append("inside")

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert reached == ["inside"]


def test_jobs_that_are_terminated_leave_no_scratch_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch: list[Path] = []

    @contextmanager
    def opened(work_folder: Path, **_: object) -> Generator[object]:
        scratch.append(work_folder)
        (work_folder / "file").write_text("of Spark")
        yield None

    monkeypatch.setattr(session, "open_session", opened)
    # Without a handler of ours it would end the test.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            open_jobs(tmp_path / "tables", "local[1]", None, Output(is_json=True)),
        ):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(scratch) == 1
    assert not scratch[0].exists()
