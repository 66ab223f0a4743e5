"""Writes the page of `status --html` and `collect --html` to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pkg.cmd.options import WrongCall
from pkg.report.page import page
from pkg.report.snapshot import Snapshot
from pkg.report.status import QuotaStatus, headline


def write_page(target: Path, snapshot: Snapshot, quotas: Sequence[QuotaStatus], *, prints_name: bool = True) -> None:
    """Writes the page to a file, which may exist, and prints its name if `prints_name`. Raises OSError, WrongCall for a
    folder."""
    if target.is_dir():
        raise WrongCall(f"{target} is a folder: name a file")
    target.write_text(page(snapshot, quotas, headline(snapshot, quotas)), "utf-8")
    if prints_name:
        print(target)
