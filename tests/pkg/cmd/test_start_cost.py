"""Imports of a start of `headroom controller` before it asks the API server anything."""

from __future__ import annotations

import subprocess
import sys

START = "import pkg.cmd.main, pkg.cmd.controller"
"""All that a controller in a pod imports, without webhooks."""
HTTP = "import aiohttp.web"
MOST = 1.55
"""Times the source of the HTTP library alone; measured: 1.43."""
_BYTES = """
import os, sys
files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
print(sum(os.path.getsize(file) for file in files if file.endswith(".py")))
"""


def source(code: str) -> int:
    """Bytes of the modules that a process has which runs this."""
    command = [sys.executable, "-c", f"{code}\n{_BYTES}"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_a_start_imports_little_beside_the_http_library() -> None:
    assert source(START) < MOST * source(HTTP)


def test_what_is_imported_is_what_a_controller_needs() -> None:
    needless = ("kubernetes", "cryptography", "rich", "kubeloop.webhook.server", "pkg.report.reader", "lab.demo")
    code = f"{START}; import sys; sys.exit(', '.join(n for n in {needless!r} if n in sys.modules) or None)"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
