"""Locks between processes, and ports."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kubeloop.testing.cluster.errors import ClusterError
from kubeloop.testing.cluster.paths import free_ports, locked

_HOLDER = """
import sys
from pathlib import Path
from kubeloop.testing.cluster.paths import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_free_once_its_holder_has_ended(tmp_path: Path) -> None:
    lock, waited = tmp_path / "lock", list[float]()
    command = [sys.executable, "-c", _HOLDER, str(lock)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[4]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ClusterError, match="is held by another process"), locked(lock, timeout=0.3):
            pass

        def waiting(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 3:
                holder.kill()

        with pytest.raises(RuntimeError), locked(lock, timeout=60, waiting=waiting):
            raise RuntimeError
    assert len(waited) >= 3
    assert waited == sorted(waited)
    with locked(lock, timeout=0):
        pass


def test_no_port_is_given_twice_in_a_row_nor_to_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [*free_ports(20), *(free_ports(1)[0] for _ in range(30))]
    assert len(set(ports)) == 50
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw15")
    assert not {port % 16 for port in ports} & {port % 16 for port in free_ports(50)}


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        used = server.getsockname()[1]
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
        monkeypatch.setattr("kubeloop.testing.cluster.paths._PORTS", range(used, used + 1))
        with pytest.raises(ClusterError, match="fewer than 1 free ports"):
            free_ports(1)
