"""The lab's commands are there with the lab; without it one line says what to install."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from pkg.cmd import main


@pytest.fixture
def without_lab(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.setattr(main, "entry_points", lambda group: ())
    app = typer.Typer(rich_markup_mode=None)
    main.add_lab(app)
    return app


@pytest.mark.parametrize(
    "words", [["testcluster", "up", "--dir", "/d"], ["demo", "--help"], ["scale", "--vms=3"], ["demo"]]
)
def test_without_the_lab_its_commands_say_what_to_install(words: list[str], without_lab: typer.Typer) -> None:
    result = CliRunner().invoke(without_lab, words)
    assert isinstance(result.exception, main.NotInstalled)
    assert result.exception.exit_code == 2
    assert "pip install ./lab" in str(result.exception)


def test_with_the_lab_they_are_there() -> None:
    app = typer.Typer(rich_markup_mode=None)
    main.add_lab(app)
    listed = CliRunner().invoke(app, ["--help"]).output
    assert all(name in listed for name in main.LAB_COMMANDS)
    assert "not installed" not in listed
