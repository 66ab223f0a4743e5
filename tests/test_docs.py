"""What README and docs/ mention exists."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from pkg.cmd.lab import add_lab
from pkg.cmd.main import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = "\n".join(page.read_text("utf-8") for page in PAGES)
SOURCES = "\n".join(
    path.read_text("utf-8")
    for room in ("kubeloop", "pkg", "lab")
    for path in sorted((ROOT / room).rglob("*.py"))
)
add_lab(app)


def help_of(*words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}, prog_name="headroom")
    assert done.exit_code == 0, done.output
    return done.output


def commands_in(text: str) -> set[str]:
    return set(re.findall(r"^(?:\.venv/bin/)?headroom ([a-z]+)\b", code_of(text), re.MULTILINE))


def code_of(text: str) -> str:
    """What stands between backticks, in blocks and in lines."""
    return "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text))


def flags_in(text: str) -> set[str]:
    """Those of headroom; other programs' command lines have flags of their own."""
    ours = [
        line
        for line in code_of(text).splitlines()
        if not line.lstrip().startswith(("helm", "kubectl", "pip"))
    ]
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(ours)))


def test_there_is_something_to_check() -> None:
    assert len(flags_in(TEXT)) > 15
    assert len(commands_in(TEXT)) > 5


def test_every_command_exists() -> None:
    listed = help_of()
    for command in commands_in(TEXT):
        assert re.search(rf"^  {command}\b", listed, re.MULTILINE), command


def test_every_flag_exists() -> None:
    commands = (
        "controller",
        "webhook",
        "release",
        "status",
        "explain",
        "collect",
        "plan",
        "delta",
        "usage",
        "quantity",
        "demo",
        "scale",
        "testcluster up",
    )
    listed = "\n".join(help_of(*command.split()) for command in commands)
    for flag in flags_in(TEXT) - {"--strict", "--help"}:
        assert re.search(rf"(?<![\w-]){flag}(?![\w-])", listed), flag


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"\bmake ([a-z][a-z-]*)", code_of(TEXT)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_event_exists() -> None:
    section = (
        (ROOT / "docs" / "operations.md").read_text("utf-8").partition("## Events")[2].partition("\n## ")[0]
    )
    names = set(re.findall(r"`([A-Z][A-Za-z]+)`", section))
    assert names
    for name in names - {"ResourceQuota"}:
        assert f'"{name}"' in SOURCES, name


def test_every_key_on_objects_exists() -> None:
    for key in re.findall(r"headroom\.harvesterhci\.io/[a-z-]+", TEXT):
        assert f'"{key}"' in SOURCES, key


def test_every_package_of_the_layout_exists() -> None:
    named = set(re.findall(r"\b(?:kubeloop|pkg|lab)/[a-z]+(?:\.[a-z]+)?", TEXT)) - {"pkg/controller/master"}
    for name in named:
        assert (ROOT / name).exists(), name
