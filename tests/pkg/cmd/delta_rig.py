"""`headroom delta`, `usage` and `quantity` called in this process."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from kubeloop.errors import ReportedError
from pkg.cmd.delta import DeltaOptions, delta


class Call:
    """The command, with stdin given and its output read."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        command: Callable[[Any], int | None] = delta,
        options: Any = DeltaOptions,
    ) -> None:
        self._command, self._options = command, options
        self._file = {option.name for option in fields(options)} & {"file"}
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.code = 0
        self.stderr = ""

    def __call__(self, stdin: str | bytes = b"", **flags: Any) -> list[dict[str, Any]]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        self._monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        self.code, self.stderr = 0, ""
        try:
            self.code = self._command(self._options(**dict.fromkeys(self._file, "-") | flags)) or 0
        except ReportedError as error:
            self.code, self.stderr = error.exit_code, f"headroom: {error}\n"
        except OSError as error:
            self.code, self.stderr = 1, f"headroom: {error.filename}: {error.strerror}\n"
        printed = self._capsys.readouterr()
        self.stderr = printed.err + self.stderr
        return [json.loads(line) for line in printed.out.splitlines()]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(monkeypatch, capsys)
