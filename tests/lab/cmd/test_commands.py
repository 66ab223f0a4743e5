"""`headroom demo` and `headroom scale`: how they are called; and the demo as a program of its own."""

import os
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubeloop.testing.polling import eventually
from lab.demo import run as demo_run
from lab.headroom import COMMAND
from lab.scale import run as scale_run
from lab.scale.plan import Settings, Strategy
from pkg.cmd.main import run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Stands where the runs are, and remembers how they were wanted; in a folder of its own."""
    arguments: list[Any] = []
    monkeypatch.setattr(demo_run, "run_demo", lambda speed, record: arguments.append((speed, record)) or 0)
    monkeypatch.setattr(scale_run, "run_scale", lambda settings: arguments.append(settings) or 0)
    monkeypatch.chdir(tmp_path)
    return arguments


def test_a_demo_as_wanted(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["demo"]) == 0
    monkeypatch.setenv("HEADROOM_SPEED", "3")
    assert run(["demo", "--record", "x.svg"]) == 0
    assert calls == [(1.0, None), (3.0, Path("x.svg"))]


def test_a_scale_run_as_wanted(calls: list[Any]) -> None:
    assert run(["scale"]) == run(["scale", "--out", "new/out"]) == 0
    assert str(calls[0].out).startswith("headroom-scale-2")
    assert calls[1] == Settings(out=Path("new/out")) == replace(calls[0], out=Path("new/out"))
    assert Path("new/out").is_dir()
    Path("config").touch()
    words = "--nodes 10 --vms 150 --namespaces 10 --evacuate 2 --rate 2.5/s --strategy vmmrq --external --seed 3"
    assert run(["scale", *words.split(), *["--allow-real-nodes", "--kubeconfig", "config", "--out", "new"]]) == 0
    size: dict[str, Any] = {"nodes": 10, "vms": 150, "namespaces": 10, "evacuate": 2, "rate": "2.5/s", "seed": 3}
    modes: dict[str, Any] = {"strategy": Strategy.VMMRQ, "external": True, "allow_real_nodes": True}
    assert calls[2] == Settings(kubeconfig=Path("config"), out=Path("new"), **size, **modes)
    assert calls[2].per_second == 2.5


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("demo --speed 0", id="no speed at all"),
        pytest.param("demo --speed -1", id="backwards"),
        pytest.param("demo --speed nan", id="a speed that is no number"),
        pytest.param("demo --speed inf", id="a speed without end"),
        pytest.param("demo --speed 1000", id="too fast to see anything"),
        pytest.param("demo --speed fast", id="a word"),
        pytest.param("demo --record missing/x.svg", id="a picture in a folder that is not there"),
        pytest.param("demo --record .", id="a picture that is a folder"),
        pytest.param("demo --frobnicate", id="an unknown flag"),
        pytest.param("scale --evacuate 50", id="every node"),
        pytest.param("scale --nodes 1", id="one node"),
        pytest.param("scale --vms 3", id="fewer VMs than namespaces"),
        pytest.param("scale --rate fast", id="a rate that is no number"),
        pytest.param("scale --rate 0/s", id="a rate of none"),
        pytest.param("scale --rate nan", id="a rate that is not a number"),
        pytest.param("scale --vms many", id="VMs that are no number"),
        pytest.param("scale --strategy none", id="no such strategy"),
        pytest.param("scale --kubeconfig /nowhere/at/all", id="no such file"),
        pytest.param("scale --out /dev/null", id="a folder that is a file"),
        pytest.param("scale --wrong", id="no such flag"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_2_and_starts_nothing(
    words: str, calls: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"headroom: .+\n", captured.err)
    assert calls == []
    assert not list(tmp_path.iterdir())


def environment(tmp_path: Path, **variables: str) -> dict[str, Any]:
    """Temporary files of our own: what is left behind is seen."""
    return {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1", **variables}


def processes_of(tmp_path: Path) -> list[str]:
    """The command lines that name the folder."""
    command_lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(tmp_path) in words:
            command_lines.append(words)
    return command_lines


@pytest.mark.cluster
def test_the_whole_demo(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # Choices for other clusters are not for this one.
    variables = {"HEADROOM_ESTIMATE": "harvester", "HEADROOM_MODE": "assist", "HEADROOM_KUBECONFIG": "/nowhere"}
    result = subprocess.run(
        [*COMMAND, "demo", "--speed", "3", "--record", str(picture)],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(scratch, **variables),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    passed = sum(line.startswith("ok ") for line in lines)
    assert passed > 25
    assert lines[-1] == f"demo: {passed} passed, 0 failed"
    assert "FAILED" not in result.stdout
    for text in ("9980344313", "10040344313", "10000Mi", "exceeded quota: default-", "refused after the raise: "):
        assert text in result.stdout
    assert "\x1b" not in result.stdout + result.stderr
    assert "\r" not in result.stdout + result.stderr
    assert f"demo: {passed} passed, 0 failed".replace(" ", "&#160;") in picture.read_text("utf-8")
    assert eventually(lambda: not processes_of(scratch))
    assert list(scratch.iterdir()) == []


def demo(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "demo", "--speed", "10"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder),
    )


@pytest.mark.cluster
def test_ended_in_the_middle_it_leaves_nothing_behind(tmp_path: Path) -> None:
    with demo(tmp_path) as playing:
        assert playing.stdout is not None
        line = next((line for line in playing.stdout if "with headroom" in line), "")
        assert line, playing.communicate(timeout=60)
        assert eventually(lambda: any("controller" in words for words in processes_of(tmp_path)))
        playing.terminate()
        _, errors = playing.communicate(timeout=60)
    assert playing.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in errors
    assert eventually(lambda: not processes_of(tmp_path))
    assert eventually(lambda: list(tmp_path.iterdir()) == [])


@pytest.mark.cluster
def test_when_its_output_is_closed_it_ends(tmp_path: Path) -> None:
    with demo(tmp_path) as playing:
        assert playing.stdout is not None
        playing.stdout.readline()
        playing.stdout.close()
        assert playing.stderr is not None
        errors = playing.stderr.read()
        assert playing.wait(timeout=60) == 1
    assert "Traceback" not in errors
    assert eventually(lambda: not processes_of(tmp_path))
