"""Everything that README and docs/ mention exists."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from deploy.events import EVENTS
from kubeloop.testing.cluster.versions import KUBERNETES
from pkg.cmd.main import add_lab, application
from tests.pkg.util.quotacount.test_recorded import RELEASES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXT = "\n".join(page.read_text("utf-8") for page in PAGES)
OWN_PATHS = "\n".join(page.read_text("utf-8") for page in PAGES if page.name != "upstream.md")
"""Of pages whose paths are this repository's."""
PRODUCT, SOURCES = (
    "\n".join(path.read_text("utf-8") for room in rooms for path in sorted((ROOT / room).rglob("*.py")))
    for rooms in (["pkg"], ["kubeloop", "pkg", "lab"])
)
app = application()
add_lab(app)


def help_of(*words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}, prog_name="headroom")
    assert result.exit_code == 0, result.output
    return result.output


def commands_in(text: str) -> set[str]:
    return set(re.findall(r"^(?:\.venv/bin/)?headroom ([a-z]+)\b", code_of(text), re.MULTILINE))


def code_of(text: str) -> str:
    """Returns what stands between backticks, in blocks and in lines."""
    return "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text))


def flags_in(text: str) -> set[str]:
    """Returns the flags of headroom; other programs' command lines have flags of their own."""
    lines = [
        line
        for line in code_of(text).splitlines()
        if not line.lstrip().startswith(("helm", "kubectl", "pip", "cosign", "(cd"))
    ]
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(lines)))


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
    generator = subprocess.run(
        [sys.executable, "-m", "kubeloop.generate", "structs", "--help"], capture_output=True, text=True, check=True
    )
    listed = "\n".join([generator.stdout, *(help_of(*command.split()) for command in ("", *commands))])
    for flag in flags_in(TEXT) - {"--strict", "--help"}:
        assert re.search(rf"(?<![\w-]){flag}(?![\w-])", listed), flag


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """GitHub's of each heading."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def test_every_anchor_is_a_heading() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text("utf-8")):
            file = page.parent / target if target else page
            assert anchor in anchors(file), f"{page.name}: {target}#{anchor}"


CELL = 240
"""Two lines of a page 120 characters wide."""


def test_no_cell_of_a_table_is_longer_than_two_lines() -> None:
    for page in PAGES:
        cells = [
            cell.strip()
            for line in page.read_text("utf-8").splitlines()
            if line.startswith("| ")
            for cell in line.split(" | ")
        ]
        longest = max(cells, key=len, default="")
        assert len(longest) <= CELL, f"{page.name}: {longest}"


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"\bmake ([a-z][a-z-]*)", code_of(TEXT)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


REASON = re.compile(r'^ *(?:EVENT[A-Z_]*|reason)(?:: Final)? = "([A-Z][A-Za-z]+)"$', re.MULTILINE)
QUOTED = {"FailedCreate": "KubeVirt's own"}


def test_every_event_is_in_the_table_and_exists() -> None:
    """Each reason is a constant EVENT… or an attribute `reason` in the code."""
    assert {event.reason for event in EVENTS} == set(REASON.findall(PRODUCT)) - set(QUOTED)


def called_tested(row: str) -> list[str]:
    """The releases in the column *tested* of a row of the table of versions."""
    table = (ROOT / "docs" / "upgrade.md").read_text("utf-8")
    (line,) = [row_line for row_line in table.splitlines() if row_line.startswith(f"| {row} |")]
    return re.findall(r"\d+\.\d+", line.split("|")[2])


def test_only_what_a_test_runs_is_called_tested() -> None:
    """The embedded cluster runs each of its releases; pods and renderings are compared with recorded answers."""
    assert called_tested("Kubernetes, end to end") == list(KUBERNETES)
    assert called_tested("Kubernetes, what quota counts") == list(RELEASES)
    vectors = ROOT / "tests" / "vectors" / "rendered.jsonl.gz"
    with gzip.open(vectors, "rt", encoding="utf-8") as file:
        rendered = {re.sub(r"^v|\.\d+$", "", json.loads(line)["kubevirt"]) for line in file}
    oldest, newest = called_tested("KubeVirt, launcher pods")
    assert (oldest, newest, len(rendered)) == (min(rendered), max(rendered), 7)
    assert called_tested("Harvester") == called_tested("Rancher") == called_tested("KubeVirt, its controllers") == []


def test_every_key_on_objects_exists() -> None:
    for key in re.findall(r"headroom\.harvesterhci\.io/[a-z-]+", TEXT):
        assert f'"{key}"' in SOURCES, key


def test_every_package_of_the_layout_exists() -> None:
    names = re.findall(r"(?<!tests/)\b(?:kubeloop|pkg|lab)/[a-z]+(?:\.[a-z]+)?", OWN_PATHS)
    for name in {*names} - {"pkg/controller/master"}:
        assert (ROOT / name).exists(), name
