"""`headroom scale`: how it is called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.scale import run as module
from lab.scale.plan import Settings, Strategy
from pkg.cmd.main import run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Stands where the run is, and remembers how it was wanted."""
    seen: list[Settings] = []
    monkeypatch.setattr(module, "run_scale", lambda settings: seen.append(settings) or 0)
    return seen


def test_defaults(asked: list[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["scale"]) == run(["scale", "--out", "new/out"]) == 0
    assert str(asked[0].out).startswith("headroom-scale-2")
    assert asked[1] == Settings(out=Path("new/out")) == replace(asked[0], out=Path("new/out"))
    assert Path("new/out").is_dir()


def test_every_flag(asked: list[Settings], tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.touch()
    words = "--nodes 10 --vms 150 --namespaces 10 --evacuate 2 --rate 2.5/s --strategy vmmrq --external --seed 3"
    given = ["--allow-real-nodes", "--kubeconfig", str(config), "--out", str(tmp_path)]
    assert run(["scale", *words.split(), *given]) == 0
    size: dict[str, Any] = {"nodes": 10, "vms": 150, "namespaces": 10, "evacuate": 2, "rate": "2.5/s", "seed": 3}
    how = Settings(kubeconfig=config, strategy=Strategy.VMMRQ, external=True, allow_real_nodes=True, out=tmp_path)
    assert asked == [replace(how, **size)]
    assert asked[0].per_second == 2.5


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("--evacuate 50", id="every node"),
        pytest.param("--nodes 1", id="one node"),
        pytest.param("--vms 3", id="fewer VMs than namespaces"),
        pytest.param("--rate fast", id="a rate that is no number"),
        pytest.param("--rate 0/s", id="a rate of none"),
        pytest.param("--rate nan", id="a rate that is not a number"),
        pytest.param("--vms many", id="VMs that are no number"),
        pytest.param("--strategy none", id="no such strategy"),
        pytest.param("--kubeconfig /nowhere/at/all", id="no such file"),
        pytest.param("--out /dev/null", id="a folder that is a file"),
        pytest.param("--wrong", id="no such flag"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_2(
    words: str,
    asked: list[Settings],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["scale", *words.split()]) == 2
    assert asked == []
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
