"""Flags from dataclasses: what a field says is what the command line takes and gives back."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from pkg.cmd.flags import add_command, option
from pkg.cmd.main import add_lab, application


@dataclass(frozen=True)
class Group:
    title: ClassVar = "Some flags"

    a_number: float = option(1.5, "A number.", metavar="SECONDS", min=0.0)
    on: bool = option(False, "A switch.")
    short: str | None = option(None, "A text.", "--long-name", "-s")
    names: list[str] | None = option(None, "Several.")


GIVEN = {
    "nothing": ([], {}, Group()),
    "flags": (["--a-number", "2", "--on", "-s", "x"], {}, Group(a_number=2.0, on=True, short="x")),
    "a switch off": (["--no-on"], {"HEADROOM_ON": "true"}, Group()),
    "the environment": ([], {"HEADROOM_A_NUMBER": "3", "HEADROOM_LONG_NAME": "y"}, Group(a_number=3.0, short="y")),
    "a flag several times": (["--names", "a", "--names", "b"], {}, Group(names=["a", "b"])),
}


@pytest.mark.parametrize("case", GIVEN.values(), ids=GIVEN)
def test_a_group_is_rebuilt(case: tuple[list[str], dict[str, str], Group]) -> None:
    arguments, environment, expected = case
    groups: list[Group] = []

    def command(group: Group) -> None:
        groups.append(group)

    assert _invoke(command, arguments, environment).exit_code == 0
    assert {option_field.name: getattr(groups[0], option_field.name) or None for option_field in fields(Group)} == {
        option_field.name: getattr(expected, option_field.name) or None for option_field in fields(Group)
    }


def test_the_help_has_a_section_for_the_group() -> None:
    def command(group: Group) -> None:
        """Does it."""

    help = _invoke(command, ["--help"]).output
    assert "Some flags:" in help
    assert "--a-number SECONDS" in help
    assert "HEADROOM_A_NUMBER" in help
    assert "default: 1.5" in help


def test_a_required_flag_is_asked_for() -> None:
    @dataclass(frozen=True)
    class Needed:
        value: str = option(..., "What is needed.")

    globals()["Needed"] = Needed

    def command(group: Needed) -> None:
        raise AssertionError

    result = _invoke(command, [])
    assert result.exit_code == 2
    assert "--value" in result.output


def _invoke(command: Any, arguments: list[str], environment: dict[str, str] | None = None) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    add_command(app, command)
    return CliRunner().invoke(app, arguments, env=environment or {})


def _parameters() -> Iterator[Any]:
    headroom = application()
    add_lab(headroom)
    commands: dict[str, Any] = dict(get_command(headroom).commands)  # type: ignore[attr-defined]
    commands |= {f"testcluster {name}": subcommand for name, subcommand in commands.pop("testcluster").commands.items()}
    for name, command in commands.items():
        for subcommand in command.params:
            yield pytest.param(subcommand, id=f"{name} {subcommand.name}")


@pytest.mark.parametrize("parameter", list(_parameters()))
def test_every_flag_has_a_text_and_an_environment_variable(parameter: Any) -> None:
    assert parameter.help
    long = next((opt for opt in parameter.opts if opt.startswith("--")), parameter.name).removeprefix("--")
    variable = f"HEADROOM_{long.replace('-', '_').upper()}"
    # In every command HEADROOM_NAMESPACE is headroom's own namespace, not the one that a report is about.
    special_variables = {"--headroom-namespace": "HEADROOM_NAMESPACE", "-n": None}
    assert parameter.envvar == next(
        (special_variables[opt] for opt in parameter.opts if opt in special_variables), variable
    )
    assert parameter.help.endswith(".")
