"""With CI=true a skipped test is a failure, unless the list allows it for the reason it gives."""

from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")

SKIPPING = """
    import pytest

    def test_passes():
        assert 1 + 1 == 2

    @pytest.mark.parametrize("size", [1, 2])
    @pytest.mark.skipif(True, reason="no loop device here")
    def test_skips_by_mark(size):
        raise AssertionError("never runs")

    def test_skips_by_call():
        pytest.skip("no browser here")
"""

# A mark skips before the test is set up, so pytest calls its failure an error.
UNALLOWED = {"passed": 1, "errors": 2, "failed": 1}


@pytest.fixture
def run_tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> "RunTests":
    return RunTests(pytester, monkeypatch)


class RunTests:
    """Runs a small suite of its own under the real conftest."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self._pytester = pytester
        self._monkeypatch = monkeypatch
        pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
        pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")

    def __call__(
        self, source: str, *, ci: str, allowed: str = "", workers: int = 0
    ) -> dict[str, int]:
        self._monkeypatch.setenv("CI", ci)
        self._pytester.makepyfile(test_some=source)
        (self._pytester.path / "allowed_skips.toml").write_text(allowed)
        arguments = ["-p", "no:cacheprovider", "-n", str(workers)]
        self.result = self._pytester.runpytest_inprocess(*arguments)
        return self.result.parseoutcomes()


def test_skip_on_a_persons_machine_stays_a_skip(run_tests: RunTests) -> None:
    assert run_tests(SKIPPING, ci="") == {"passed": 1, "skipped": 3}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [0, 2])
def test_skip_in_ci_is_a_failure(run_tests: RunTests, workers: int) -> None:
    assert run_tests(SKIPPING, ci="true", workers=workers) == UNALLOWED
    assert run_tests.result.ret == pytest.ExitCode.TESTS_FAILED
    run_tests.result.stdout.fnmatch_lines(["*test_skips_by_call was skipped (no browser here)*"])


def test_listed_skip_in_ci_stays_a_skip(run_tests: RunTests) -> None:
    allowed = """
        [[skip]]
        test = "test_some.py::test_skips_by_mark[*]"
        reason = "no loop device"

        [[skip]]
        test = "test_some.py::test_skips_by_call"
        reason = "no browser"
    """
    assert run_tests(SKIPPING, ci="true", allowed=allowed) == {"passed": 1, "skipped": 3}
    assert run_tests.result.ret == pytest.ExitCode.OK


def test_listed_skip_with_another_reason_is_a_failure(run_tests: RunTests) -> None:
    allowed = """
        [[skip]]
        test = "*"
        reason = "no browser"
    """
    assert run_tests(SKIPPING, ci="true", allowed=allowed) == {
        "passed": 1,
        "skipped": 1,
        "errors": 2,
    }


def test_skip_of_a_whole_module_in_ci_is_a_failure(run_tests: RunTests) -> None:
    source = """
        import pytest
        pytest.importorskip("a_package_that_nobody_has")

        def test_never_collected():
            pass
    """
    assert run_tests(source, ci="true") == {"errors": 1}


def test_expected_failure_is_no_skip(run_tests: RunTests) -> None:
    source = """
        import pytest

        @pytest.mark.xfail(strict=True, reason="known")
        def test_expected_to_fail():
            assert 1 == 2
    """
    assert run_tests(source, ci="true") == {"xfailed": 1}
