"""`headroom testcluster`: how it is called; and, as programs of their own, that another one ends what one leaves
running."""

import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lab.cluster
from kubeloop.testing.cluster import cluster
from lab.cmd.testcluster import app
from lab.headroom import COMMAND, ROOT
from pkg.cmd.main import run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of `cluster.up`, which starts nothing here."""
    arguments: list[dict[str, Any]] = []

    def up(directory: Path, options: lab.cluster.Options, _progress: object) -> cluster.Cluster:
        arguments.append({"directory": directory, **asdict(options)})
        return cluster.Cluster(directory, directory / "kubeconfig", "https://127.0.0.1:1", cluster.Options())

    monkeypatch.setattr(lab.cluster, "up", up)
    return arguments


ALL = {"kwok": True, "kubevirt": True, "rancher": True, "nodes": 3, "kubernetes": "", "rancher_version": "2.13"}
LOCKED = ALL | {"rancher_version": "2.15.2"}


@pytest.mark.parametrize(
    ("words", "environ", "expected"),
    [
        pytest.param(["--dir", "/d"], {}, ALL, id="runs everything unless told"),
        pytest.param(["--dir", "/d", "--no-kubevirt"], {}, ALL | {"kubevirt": False}, id="leaves KubeVirt out"),
        pytest.param(["--dir", "/d", "--no-rancher"], {}, ALL | {"rancher": False}, id="leaves Rancher out"),
        pytest.param(["--rancher", "--dir", "/d"], {}, ALL, id="runs Rancher without a release"),
        pytest.param(["--rancher", "2.15.2", "--dir", "/d"], {}, LOCKED, id="takes Rancher's release as a value"),
        pytest.param(
            ["--rancher=2.15.2", "--dir", "/d"], {}, LOCKED, id="takes Rancher's release after an equals sign"
        ),
        pytest.param(
            ["--dir", "/d", "--rancher-version", "2.15.2"], {}, LOCKED, id="takes Rancher's release as a flag"
        ),
        pytest.param(["--dir", "/d", "--kubernetes", "1.37"], {}, ALL | {"kubernetes": "1.37"}, id="takes a release"),
        pytest.param(
            [],
            {
                "HEADROOM_DIR": "/d",
                "HEADROOM_KUBEVIRT": "false",
                "HEADROOM_RANCHER": "0",
                "HEADROOM_RANCHER_VERSION": "2.15.2",
                "HEADROOM_KWOK": "no",
                "HEADROOM_NODES": "1",
                "HEADROOM_KUBERNETES": "1.30",
            },
            LOCKED | dict.fromkeys(("kwok", "kubevirt", "rancher"), False) | {"nodes": 1, "kubernetes": "1.30"},
            id="takes every flag from the environment",
        ),
    ],
)
def test_up(words: list[str], environ: dict[str, str], expected: dict[str, Any], calls: list[Any]) -> None:
    result = CliRunner().invoke(app, ["up", *words], env=environ)
    assert result.exit_code == 0, result.output
    assert calls == [{"directory": Path("/d"), **expected}]
    assert result.stdout == "export KUBECONFIG=/d/kubeconfig\n"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["up"], id="no directory"),
        pytest.param(["up", "--dir", "/d", "--nodes", "many"], id="a number that is none"),
        pytest.param(["up", "--dir", "/d", "--nodes", "-1"], id="fewer nodes than none"),
        pytest.param(["up", "--dir", "/d", "--frobnicate"], id="an unknown flag"),
        pytest.param(["up", "--dir", "/d", "--rancher", "2.7"], id="a release of Rancher that is not played"),
        pytest.param(["up", "--dir", __file__], id="a directory that is a file"),
        pytest.param(["status", "--dir", "/d", "-o", "xml"], id="an unknown format"),
        pytest.param(["explode"], id="an unknown command"),
    ],
)
def test_a_wrong_call_exits_2(words: list[str], calls: list[Any]) -> None:
    assert CliRunner().invoke(app, words).exit_code == 2
    assert calls == []


@pytest.mark.parametrize("words", [["build"], ["up", "--dir"]])
def test_a_release_that_is_not_there_is_a_wrong_call(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = [str(tmp_path)] if words[-1] == "--dir" else []
    assert run(["testcluster", *words, *directory, "--kubernetes", "1.29"]) == 2
    output, err = capfd.readouterr()
    assert (output, err.count("\n")) == ("", 1)
    assert err.startswith("headroom: there is no Kubernetes 1.29 here: choose one of 1.30, 1.34, 1.36, 1.37")


@pytest.mark.parametrize(("ready", "code"), [(True, 0), (False, 1)])
def test_status_exits_by_readiness(ready: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = cluster.ClusterStatus(
        str(tmp_path), ready, "https://127.0.0.1:1", "/d/kubeconfig", {"etcd": 7, "kwok": 0}, {"kubernetes": "v1.36.3"}
    )
    monkeypatch.setattr(cluster, "status", lambda directory: state)
    result = CliRunner().invoke(app, ["status", "--dir", str(tmp_path)])
    assert result.exit_code == code
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["kubernetes", "v1.36.3"] in lines
    assert ["etcd", "pid", "7"] in lines
    assert ["kwok", "not", "running"] in lines


# ---- as programs of their own

SERVERS = ["etcd", "kube-apiserver", "kube-controller-manager"]


def _command(*words: str) -> subprocess.CompletedProcess[str]:
    """`headroom testcluster …` as a program of its own."""
    return subprocess.run([*COMMAND, "testcluster", *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def cluster_folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "a b"
    cluster.down(tmp_path / "a b")


@pytest.mark.cluster
def test_up_leaves_a_cluster_running_and_down_ends_it(cluster_folder: Path) -> None:
    started = _command("up", "--dir", str(cluster_folder), "--no-kubevirt", "--no-rancher", "--no-kwok")
    assert started.returncode == 0, started.stderr
    assert started.stdout == f"export KUBECONFIG={cluster_folder}/kubeconfig\n"
    shown_status = _command("status", "--dir", str(cluster_folder), "-o", "json")
    assert shown_status.returncode == 0
    status = json.loads(shown_status.stdout)
    assert status["ready"]
    assert sorted(status["processes"]) == SERVERS
    down = _command("down", "--dir", str(cluster_folder))
    assert (down.returncode, down.stdout) == (0, "ended: etcd, kube-apiserver, kube-controller-manager\n")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(status["url"].rpartition(":")[2])), timeout=1)
    assert [pid for pid in status["processes"].values() if Path(f"/proc/{pid}").exists()] == []
    assert _command("status", "--dir", str(cluster_folder)).returncode == 1
    assert _command("down", "--dir", str(cluster_folder)).stdout == "nothing was running\n"
