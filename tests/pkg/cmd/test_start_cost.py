"""Imports of a start of `headroom controller` before it asks the API server anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

START = "import pkg.cmd.main, pkg.cmd.controller"
"""All that a controller in a pod imports, without webhooks."""
HTTP = "import aiohttp.web"
MOST = 1.55
"""Times the source of the HTTP library alone; measured: 1.43."""
NEEDLESS = {"kubernetes", "cryptography", "rich", "kubeloop.webhook.server", "pkg.report.reader", "lab.demo"}
_FILES = """
import json, sys
print(json.dumps({name: getattr(module, "__file__", None) or "" for name, module in list(sys.modules.items())}))
"""


def imported(code: str) -> dict[str, str]:
    """Returns the modules that a process has which runs this, with their files."""
    command = [sys.executable, "-c", f"{code}\n{_FILES}"]
    files: dict[str, str] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return files


def test_a_start_imports_little_and_nothing_needless() -> None:
    of_start, of_http = (imported(code) for code in (START, HTTP))
    start, http = (
        sum(Path(file).stat().st_size for file in set(files.values()) if file.endswith(".py"))
        for files in (of_start, of_http)
    )
    assert start < MOST * http
    assert not NEEDLESS & of_start.keys()
