"""Verbs in the process of a test, as the script would run them."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from syncline.cli import main


@dataclass
class Result:
    code: int
    out: str
    error: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        return " ".join(self.error.split())


class Cli:
    """Runs a verb in this process, as the script would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def __call__(self, *arguments: str | Path) -> Result:
        self._monkeypatch.setattr(sys, "argv", ["syncline", *map(str, arguments)])
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main()
        found = self._capfd.readouterr()
        code = exit_info.value.code
        return Result(code if isinstance(code, int) else 0, found.out, found.err)
