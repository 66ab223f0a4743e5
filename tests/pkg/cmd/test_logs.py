"""Log lines for programs."""

from __future__ import annotations

import json
import logging

import pytest

from pkg.cmd import logs
from pkg.cmd.options import LogFormat, LogOptions
from tests.pkg.cmd.rig import logging_as_it_was


def test_a_line_of_json_has_the_whole_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_it_was():
        logs.set_up(LogOptions(log_format=LogFormat.JSON))
        try:
            {}["name"]
        except KeyError:
            logging.getLogger("a.part").exception("%s failed", "it")
    (line,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["level"], line["logger"], line["message"]) == ("error", "a.part", "it failed")
    assert line["error"] == "KeyError('name')"
    assert line["traceback"].startswith("Traceback (most recent call last):")
    assert '{}["name"]' in line["traceback"]
