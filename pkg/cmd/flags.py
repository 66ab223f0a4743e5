"""Flags from dataclasses: one dataclass a group, one field a flag.

To add a flag: add a field `name: type = option(default, "What it does.")` to its group
(pkg/cmd/options.py, or the command's own module) and read the field where the command uses the group. The flag's
spelling and its environment variable HEADROOM_<FLAG> follow from the field; a float is SECONDS, a Path a FILE."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

_FLAG = "headroom.flag"
_BY_TYPE: dict[type, dict[str, Any]] = {
    float: {"metavar": "SECONDS", "min": 0.0, "max": 1e9},
    Path: {"metavar": "FILE"},
}
_Function = Callable[..., int | None]


def option(default: Any, help: str, *names: str, **settings: Any) -> Any:
    """A dataclass field that is a flag; `...` as default makes it required.

    `names` replaces the spelling that follows from the field's name (`--a-field`, of a bool `--a-field/--no-a-field`);
    `settings` are typer's: metavar, min, max, file_okay; `envvar=None` for a flag that no environment variable sets."""
    info = {"names": names, "help": help, **settings}
    return field(default=MISSING if default is ... else default, metadata={_FLAG: info}, kw_only=True)


def optional(help: str, *names: str, **settings: Any) -> Any:
    """A field of a flag that may be left out: None."""
    return option(None, help, *names, **settings)


def add_command(app: typer.Typer, function: _Function, cls: type[TyperCommand] | None = None) -> None:
    """Adds a subcommand whose parameters may be groups of flags; `cls` is a Command of its own."""
    app.command(function.__name__, cls=cls or Command)(_flattened(function))


class Command(TyperCommand):
    """Plain help text with a section for each group of flags."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Returns the whole first sentence, however long."""
        return super().get_short_help_str(limit=1000)


def _flattened(function: _Function) -> _Function:
    """Returns the function with each parameter that is a group replaced by the group's flags."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    flat: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if parameter.name in groups:
            types, title = get_type_hints(kind), getattr(kind, "title", "Options")
            flat += [_flag(flag, types[flag.name], title) for flag in fields(kind)]
        else:
            flat.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

    def call(**values: Any) -> int | None:
        for name, kind in groups.items():
            values[name] = kind(**{flag.name: values.pop(flag.name) for flag in fields(kind)})
        return function(**values)

    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call


def _flag(flag: Field[Any], kind: Any, title: str) -> inspect.Parameter:
    """Returns the parameter of a field. Raises KeyError for one that `option` did not make."""
    info = dict(flag.metadata[_FLAG])
    names = info.pop("names")
    long = next((name for name in names if name.startswith("--")), flag.name).removeprefix("--")
    variable = f"HEADROOM_{long.partition('/')[0].replace('-', '_').upper()}"
    by_type = next((_BY_TYPE[part] for part in (kind, *get_args(kind)) if part in _BY_TYPE), {})
    typer_option = typer.Option(*names, rich_help_panel=title, **{"envvar": variable, **by_type, **info})
    return inspect.Parameter(
        flag.name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind, typer_option],
        default=inspect.Parameter.empty if flag.default is MISSING else flag.default,
    )
