"""docs/upstream.md names modules that exist, and every module of the product that says what it was read from."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "upstream.md").read_text("utf-8")
UPSTREAM = re.compile(r"^ *Sources?: [^\n]*(?i:rancher|harvester|kubevirt|kubernetes)", re.MULTILINE)


def rows() -> list[list[str]]:
    """The cells of each row, without the heads."""
    table = [line[1:-1].split("|") for line in PAGE.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in table if row[0].strip() != "fact"]


def named() -> set[str]:
    return {path for row in rows() for path in re.findall(r"`([^`]+)`", row[-1])}


def test_each_fact_has_a_last_version_and_a_module() -> None:
    assert len(rows()) > 30
    for fact, _source, _oldest, newest, modules in rows():
        assert newest or fact.startswith("Next to come"), fact
        assert modules, fact


def test_every_module_that_is_named_exists() -> None:
    assert [path for path in sorted(named()) if not (ROOT / path).exists()] == []


def test_every_module_that_says_what_it_was_read_from_is_named() -> None:
    read = [path for path in (ROOT / "pkg").rglob("*.py") if UPSTREAM.search(path.read_text("utf-8"))]
    missing = sorted(str(path.relative_to(ROOT)) for path in read if path.name != "__init__.py")
    assert len(missing) > 10
    assert [path for path in missing if path not in named()] == []
