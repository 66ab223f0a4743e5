"""Some stories, and that a story can be told again. `make simulate` tells others for hours."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def simulate(*arguments: str) -> list[str]:
    """The lines that `python -m tests.simulation` prints."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert not process.stderr, process.stderr
    return process.stdout.splitlines()


def test_every_promise_is_kept_and_a_story_can_be_told_again() -> None:
    *lines, last_line = simulate("--seeds", "5", "--first", "1", "--digests", "--processes", "2")
    assert " 0 broken" in last_line, "\n".join(lines)
    *again, _ = simulate("--seeds", "1", "--first", "1", "--digests", "--processes", "1")
    assert again
    assert set(again) < set(lines)


def test_a_planted_fault_is_found() -> None:
    lines = simulate("--planted", "dry_run", "--seeds", "1", "--first", "1", "--processes", "1")
    assert "BROKEN: --dry-run writes nothing" in lines[0]
