"""What a start of `headroom controller` costs before it asks the API server anything, as a ratio: machines differ."""

from __future__ import annotations

import os
import subprocess
import sys

START = "import pkg.cmd.main, pkg.cmd.replica, kubeloop.client.loading, kubeloop.controllers.run"
"""All that a controller in a pod imports, without webhooks."""
HTTP = "import aiohttp.web"
MOST = 2.8
"""Times the CPU of importing the HTTP library alone; measured: 1.8 to 2.0."""


def cpu(code: str) -> float:
    """Seconds of CPU of a process that runs this, the least of three."""

    def once() -> float:
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True)
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    once()  # the first one may compile
    return min(once() for _ in range(3))


def test_a_start_imports_little_beside_the_http_library() -> None:
    assert cpu(START) < MOST * cpu(HTTP)


def test_what_is_imported_is_what_a_controller_needs() -> None:
    needless = ("kubernetes", "cryptography", "rich", "pkg.webhook.server", "pkg.report", "lab.demo")
    code = f"{START}; import sys; sys.exit(', '.join(n for n in {needless!r} if n in sys.modules) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
