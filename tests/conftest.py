"""Rules for every test: how hypothesis searches, and that nothing is skipped in silence.

With `CI=true` a skipped test fails, unless `allowed_skips.toml` beside this file names it together
with the reason it gives. On a person's machine a skip stays a skip.
"""

import os
import re
import tomllib
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.toml")

# No test here measures time, so none may fail for being slow.
settings.register_profile("syncline", deadline=None, print_blob=True)
settings.load_profile("syncline")


@dataclass(frozen=True, slots=True)
class AllowedSkip:
    test: str  # a node id; `*` stands for anything
    reason: str  # part of the reason that the test gives

    def covers(self, node_id: str, reason: str) -> bool:
        pattern = re.escape(self.test).replace(r"\*", ".*")
        return re.fullmatch(pattern, node_id) is not None and self.reason in reason


def read_allowed_skips(path: Path) -> list[AllowedSkip]:
    if not path.exists():
        return []
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("skip", [])
    allowed = [AllowedSkip(entry["test"], entry["reason"]) for entry in entries]
    assert all(entry.reason.strip() for entry in allowed), f"{path.name}: a skip needs a reason"
    return allowed


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip that nobody allowed into a failure. An expected failure is no skip."""
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
    allowed = read_allowed_skips(ALLOWED_SKIPS)
    if not any(entry.covers(report.nodeid, reason) for entry in allowed):
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} was skipped ({reason.removeprefix('Skipped: ')}). "
            f"With CI=true that is a failure: install what it needs, or name the test and its "
            f"reason in tests/{ALLOWED_SKIPS.name}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    refuse_skip(report)
    return report
