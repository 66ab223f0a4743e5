"""The page of `status --html` and `collect --html`, as a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pkg.cmd.options import WrongCall
from pkg.report.page import page
from pkg.report.snapshot import Snapshot
from pkg.report.status import QuotaStatus, headline


def write_page(target: Path, snapshot: Snapshot, quotas: Sequence[QuotaStatus], *, told: bool = True) -> None:
    """Write the page to a file, which may be there, and print its name if that is to be told. Raises OSError, WrongCall
    for a folder."""
    if target.is_dir():
        raise WrongCall(f"{target} is a folder: name a file")
    target.write_text(page(snapshot, quotas, headline(snapshot, quotas)), "utf-8")
    if told:
        print(target)
