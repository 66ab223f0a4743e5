"""Fixtures of the tests of commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pkg.cmd.rig import Call, ThreadedServer, calls, kubeconfig_for, threaded_server


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`headroom` in this process."""
    return calls(capfd, monkeypatch)


@pytest.fixture
def server() -> Iterator[ThreadedServer]:
    """Every kind that is not scripted is not installed."""
    with threaded_server() as server:
        yield server


@pytest.fixture
def kubeconfig(server: ThreadedServer, tmp_path: Path) -> str:
    return kubeconfig_for(server.server.url, tmp_path)
