from __future__ import annotations

from pathlib import Path

import pytest

from pkg.testcluster.build import build, go_environment
from pkg.testcluster.errors import BuildError
from pkg.testcluster.versions import KUBERNETES, KUBERNETES_COMPONENT, KWOK_COMPONENT

from .fakes import Notes, environment


def _build(tmp_path: Path, notes: Notes, **more: str) -> Path:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environ = environment(tmp_path, **more)
    return build(KWOK_COMPONENT, "kwok", scratch, environ=environ, log_folder=tmp_path, progress=notes)


def test_the_binary_lies_in_the_scratch_folder_and_no_log_is_left(tmp_path: Path) -> None:
    assert _build(tmp_path, Notes()) == tmp_path / "scratch" / "kwok"
    assert not (tmp_path / "build-kwok.log").exists()


def test_a_build_tells_what_is_built_and_how_long_it_took(tmp_path: Path) -> None:
    notes = Notes()
    _build(tmp_path, notes)
    assert notes.steps[0].startswith("kwok: building sigs.k8s.io/kwok/cmd/kwok v0.7.0 with ")
    assert notes.steps[-1].startswith("kwok: built in ")


def test_a_long_build_counts_the_packages_that_are_compiled(tmp_path: Path) -> None:
    notes = Notes()
    _build(tmp_path, notes, FAKE_GO_SECONDS="1.2")
    assert any("2 packages compiled, example.org/second" in tick for tick in notes.ticks)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        pytest.param(
            "dial tcp: lookup modules.example: no such host", "no such host", id="the proxy is away"
        ),
        pytest.param("missing go.sum entry\n\n", "missing go.sum entry", id="the last line is empty"),
        pytest.param(
            "verifying k8s.io/x: checksum mismatch", "checksum mismatch", id="a module was tampered with"
        ),
    ],
)
def test_a_failed_build_says_why_and_what_to_do_in_one_line_when(
    output: str, reason: str, tmp_path: Path
) -> None:
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
    notes, settings = (
        Notes(),
        {"GOFLAGS": "-mod=mod", "GOOS": "plan9", "GOWORK": "/elsewhere", "GOPROXY": "http://p"},
    )
    _build(tmp_path, notes, **settings)
    seen = (tmp_path / "go.log.env").read_text().splitlines()
    assert "GOFLAGS=-mod=readonly" in seen
    assert {"GOWORK=off", "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOPROXY=http://p"} <= set(seen)
    assert not any(line.startswith("GOOS=") for line in seen)


def test_the_build_runs_in_the_folder_of_its_module_with_trimmed_paths(tmp_path: Path) -> None:
    _build(tmp_path, Notes())
    directory, command = (tmp_path / "go.log").read_text().split(" ", 1)
    assert directory == str(KWOK_COMPONENT.module_directory)
    assert "-trimpath" in command
    assert "-ldflags -s -w " in command


def test_kubernetes_is_told_its_version() -> None:
    assert f"-X k8s.io/component-base/version.gitVersion={KUBERNETES}" in KUBERNETES_COMPONENT.ldflags


def test_the_environment_of_a_build_keeps_what_does_not_change_the_result() -> None:
    environ = go_environment(
        {"HOME": "/h", "GOMODCACHE": "/m", "GOPROXY": "off", "GOARCH": "arm", "GOROOT": "/old"}
    )
    assert (environ["HOME"], environ["GOMODCACHE"], environ["GOPROXY"]) == ("/h", "/m", "off")
    assert not {"GOARCH", "GOROOT"} & set(environ)
