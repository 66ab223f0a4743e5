"""`headroom testcluster` as programs of their own: what one leaves running, another one ends."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeloop.testing.cluster import cluster
from lab.headroom import COMMAND, ROOT

pytestmark = pytest.mark.cluster

SERVERS = ["etcd", "kube-apiserver", "kube-controller-manager"]


def _listening(url: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=1):
            return True
    except OSError:
        return False


def _command(*words: str) -> subprocess.CompletedProcess[str]:
    """`headroom testcluster …` as a program of its own."""
    return subprocess.run([*COMMAND, "testcluster", *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def commanded(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "a b"
    cluster.down(tmp_path / "a b")


def test_the_command_leaves_a_cluster_running_and_another_one_ends_it(commanded: Path) -> None:
    started = _command("up", "--dir", str(commanded), "--no-kubevirt", "--no-rancher", "--no-kwok")
    assert started.returncode == 0, started.stderr
    assert started.stdout == f"export KUBECONFIG={commanded}/kubeconfig\n"
    told = _command("status", "--dir", str(commanded), "-o", "json")
    assert told.returncode == 0
    status = json.loads(told.stdout)
    assert status["ready"]
    assert sorted(status["processes"]) == SERVERS
    ended = _command("down", "--dir", str(commanded))
    assert (ended.returncode, ended.stdout) == (0, "ended: etcd, kube-apiserver, kube-controller-manager\n")
    assert not _listening(status["url"])
    assert [pid for pid in status["processes"].values() if Path(f"/proc/{pid}").exists()] == []
    assert _command("status", "--dir", str(commanded)).returncode == 1
