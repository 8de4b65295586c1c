"""Compiled forms are made when somebody asks, kept on the disk, and never needed."""

import importlib
import subprocess
import sys
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace

import pytest
import xxhash

from bench.support.processes import child_environment
from syncline.kernels import cell_places, compiled, md5, xxh3

# Whoever compiles waits for it.
pytestmark = pytest.mark.timeout(240)

LOOPS = (xxh3.HASHING, xxh3.SUMMING, md5.HASHING, cell_places.ADDING)
DATA = Random(1).randbytes(24 * 5)

# What a fresh process does; the kernels must give the same bits in each.
KERNELS = """
import sys, hashlib, xxhash
import numpy as np
from syncline.kernels import cells, compiled, md5, xxh3
def check(count):
    ids = np.random.default_rng(1).integers(0, 256, (count, 24), dtype=np.uint8)
    first = ids[0].tobytes()
    high, low = xxh3.xxh3_128(ids)
    assert int(high[0]) << 64 | int(low[0]) == xxhash.xxh3_128_intdigest(first)
    assert md5.md5(ids[:9])[0].tobytes() == hashlib.md5(first).digest()
    assert len(cells.sketch(low >> np.uint64(16), 40)) == 40
"""
# Some of them, which take less time.
HASHES = """
from syncline.kernels import compiled, xxh3
is_ready = compiled.prepare()
hits = sum(sum(loop._compiled.stats.cache_hits.values()) for loop in compiled._loops)
print(is_ready, hits, len(xxh3.xxh3_128(bytes(48))[0]))
"""


def run(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=child_environment() | environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def needs_numba() -> None:
    if not compiled.is_installed():
        pytest.skip("numba is missing; install the extra fast")


# ------------------------------------------------------------------------------------ never unasked


def test_kernels_load_nothing_by_themselves_however_much_there_is_to_do() -> None:
    script = "check(compiled.ROWS_WORTHWHILE); print('numba' in sys.modules, compiled.is_ready())"
    assert run(KERNELS + script) == "False False"


def test_the_command_line_does_not_load_it() -> None:
    script = """
import sys
import syncline.cli
import syncline.storage.id_sets
try:
    sys.argv = ["syncline", "--version"]
    syncline.cli.main()
except SystemExit:
    pass
print('numba' in sys.modules)
"""
    assert run(script).splitlines()[-1] == "False"


def test_few_ids_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> str:
        raise AssertionError("nobody should compile for these")

    monkeypatch.setattr(compiled, "_prepare", refused)
    ready = compiled.is_ready()
    assert compiled.prepare(compiled.ROWS_WORTHWHILE - 1) is ready


def test_switched_off_is_numpy_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    for loop in LOOPS:
        monkeypatch.setattr(loop, "_compiled", loop.plain)
    assert compiled.is_ready()
    with compiled.switched_off():
        assert not compiled.is_ready()
        assert xxh3.HASHING.compiled is None
        assert compiled.prepare() is False
        with compiled.switched_off():
            pass
        assert not compiled.is_ready()
    assert compiled.is_ready()


# ------------------------------------------------------------------------------------ without numba


@pytest.fixture
def not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not asked yet."""
    monkeypatch.setattr(compiled._switch, "reason", "")
    for loop in LOOPS:
        monkeypatch.setattr(loop, "_compiled", None)


def still_right() -> bool:
    high, low = xxh3.xxh3_128(DATA)
    return int(high[0]) << 64 | int(low[0]) == xxhash.xxh3_128_intdigest(DATA[:24])


@pytest.mark.usefixtures("not_tried")
def test_without_numba_it_says_so_and_numpy_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "find_spec", lambda _: None)
    assert compiled.prepare() is False
    assert compiled.why_not() == "numba is not installed"
    assert still_right()


@pytest.mark.usefixtures("not_tried")
@pytest.mark.parametrize("error", [ImportError("not here"), PermissionError("not here")])
def test_a_numba_that_cannot_be_loaded_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    asked: list[str] = []

    def refuse(name: str) -> ModuleType:
        asked.append(name)
        raise error

    monkeypatch.setattr(compiled, "is_installed", lambda: True)
    monkeypatch.setattr(importlib, "import_module", refuse)
    assert not compiled.prepare()
    assert not compiled.prepare()
    assert asked == ["numba"]
    assert compiled.why_not() == "numba cannot be loaded: not here"
    assert still_right()


class FakeNumba(SimpleNamespace):
    """Has what is asked of numba; `njit` is what the test says."""

    class CannotCompileError(Exception):
        pass

    def __init__(self, njit: object) -> None:
        names = ("uint64", "int64", "uint32")
        super().__init__(
            __version__="9",
            config=SimpleNamespace(DISABLE_JIT=False),
            core=SimpleNamespace(errors=SimpleNamespace(NumbaError=self.CannotCompileError)),
            types=SimpleNamespace(
                void=lambda *_: "signature",
                Array=lambda *_, **__: "array",
                **{name: name for name in names},
            ),
            njit=njit,
        )


def use_fake(monkeypatch: pytest.MonkeyPatch, njit: object) -> None:
    monkeypatch.setattr(compiled, "is_installed", lambda: True)
    monkeypatch.setattr(importlib, "import_module", lambda _: FakeNumba(njit))


@pytest.mark.usefixtures("not_tried")
def test_a_numba_that_cannot_compile_leaves_all_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def njit(*_: object, **__: object) -> object:
        raise FakeNumba.CannotCompileError("unknown type")

    use_fake(monkeypatch, njit)
    assert not compiled.prepare()
    assert compiled.why_not() == "numba 9 cannot compile: unknown type"
    assert still_right()


@pytest.mark.usefixtures("not_tried")
@pytest.mark.parametrize("error", [OSError("disk is full"), EOFError(), RuntimeError("no locator")])
def test_what_cannot_be_kept_on_the_disk_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    caches: list[bool] = []

    def njit(_: object, *, nogil: bool, cache: bool = False) -> object:
        assert nogil
        caches.append(cache)
        if cache:
            raise error
        return lambda loop: loop

    use_fake(monkeypatch, njit)
    assert compiled.prepare()
    assert caches == [True, False] * len(LOOPS)


# --------------------------------------------------------------------------------------- with numba


@pytest.mark.usefixtures("needs_numba")
def test_the_environment_can_switch_it_off() -> None:
    script = "print(compiled.prepare(), compiled.why_not()); check(100)"
    assert run(KERNELS + script, NUMBA_DISABLE_JIT="1") == "False NUMBA_DISABLE_JIT is set"


@pytest.mark.usefixtures("needs_numba")
def test_what_was_compiled_is_taken_from_the_disk_even_if_that_is_damaged(tmp_path: Path) -> None:
    place = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert run(HASHES, **place) == "True 0 2"
    kept = sorted(tmp_path.rglob("*.nbi"))
    assert len(kept) == 2
    assert run(HASHES, **place) == "True 2 2"
    for file in kept:
        file.write_bytes(file.read_bytes()[:20])
    assert run(HASHES, **place) == "True 0 2"


@pytest.mark.usefixtures("needs_numba")
def test_an_installation_that_cannot_be_written_is_no_hindrance(tmp_path: Path) -> None:
    # A file where folders should be: not even root can write there.
    file = tmp_path / "file"
    file.write_bytes(b"")
    script = """
import numba.core.caching as caching
caching.InTreeCacheLocator.ensure_cache_path = lambda self: open("/dev/null/x", "wb")
"""
    nowhere = {"HOME": str(file), "XDG_CACHE_HOME": str(file), "NUMBA_CACHE_DIR": ""}
    assert run(script + HASHES, **nowhere) == "True 0 2"


@pytest.mark.usefixtures("needs_numba")
def test_no_call_compiles_anything_for_other_kinds_of_arguments() -> None:
    assert compiled.prepare(), compiled.why_not()
    hash_rows = xxh3.SUMMING.compiled
    assert hash_rows is not None
    with pytest.raises(TypeError, match="No matching definition"):
        hash_rows([1, 2], [0, 0, 0])  # type: ignore[arg-type]
