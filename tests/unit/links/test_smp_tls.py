"""Client certificates reach the library without lying around as files."""

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from syncline.certificates import make_service_credentials
from syncline.links.private_keys import PrivateKey
from syncline.links.smp_tls import client_context
from syncline.wire.smp.keys import KeyKind

CREDENTIALS = make_service_credentials(datetime.now(UTC))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_credentials_leave_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = open_files()
    client_context(("smp/1",), CREDENTIALS)
    assert (list(tmp_path.iterdir()), open_files()) == ([], before)


def test_credentials_leave_no_file_behind_where_memory_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delattr(os, "memfd_create")
    made: list[int] = []
    make = tempfile.mkstemp

    def mkstemp() -> tuple[int, str]:
        descriptor, path = make()
        made.append(os.stat(path).st_mode & 0o777)
        return descriptor, path

    monkeypatch.setattr(tempfile, "mkstemp", mkstemp)
    before = open_files()
    client_context(("smp/1",), CREDENTIALS)
    assert (list(tmp_path.iterdir()), open_files()) == ([], before)
    assert made == [0o600]


@pytest.mark.parametrize(
    ("kind", "raw"), [(KeyKind.ED25519, b"x"), (KeyKind.X448, b"x" * 56), (KeyKind.ED448, b"")]
)
def test_private_keys_have_the_length_of_their_kind(kind: KeyKind, raw: bytes) -> None:
    with pytest.raises(ValueError, match="private key"):
        PrivateKey(kind, raw)
