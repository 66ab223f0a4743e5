from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kubeloop.testing.cluster.binaries import (
    cache_directory,
    cache_folder,
    components_of,
    ensure_binaries,
    ensure_helm,
    find_binaries,
    said_version,
)
from kubeloop.testing.cluster.errors import BuildError, ClusterError, UnknownRelease
from kubeloop.testing.cluster.versions import HELM_COMPONENT, KUBERNETES, KUBERNETES_DEFAULT, KWOK, KWOK_COMPONENT
from kubeloop.testing.polling import eventually

from .fakes import Notes, environment, go_calls, kwok_site, serve, sha256, versioned, write_executable

NAMES = ["etcd", "kube-apiserver", "kube-controller-manager", "kwok"]
PACKAGES = [package for component in components_of(environ={}) for package in component.packages.values()]
ROOT = Path(__file__).parents[4]


def _assets(folder: Path, names: list[str], version: str = KUBERNETES[KUBERNETES_DEFAULT]) -> Path:
    for name in names:
        write_executable(folder / name, versioned(version))
    return folder


def test_everything_comes_from_kubebuilder_assets_when_they_hold_everything(tmp_path: Path) -> None:
    assets = _assets(tmp_path / "assets", NAMES)
    environ = environment(tmp_path, KUBEBUILDER_ASSETS=str(assets))
    binaries = ensure_binaries(environ=environ)
    assert binaries.kube_controller_manager == assets / "kube-controller-manager"
    assert {binaries.etcd.parent, binaries.kube_apiserver.parent, binaries.kwok.parent} == {assets}
    assert go_calls(environ) == []


def test_what_kubebuilder_assets_lack_is_built(tmp_path: Path) -> None:
    assets = _assets(tmp_path / "assets", NAMES)
    (assets / "kwok").chmod(0o644)  # what cannot be run does not count
    environ = environment(tmp_path, KUBEBUILDER_ASSETS=str(assets))
    binaries = ensure_binaries(environ=environ)
    assert binaries.etcd == assets / "etcd"
    assert binaries.kwok == cache_folder(KWOK_COMPONENT, environ) / "kwok"
    assert go_calls(environ) == ["sigs.k8s.io/kwok/cmd/kwok"]


SERVERS = NAMES[1:3]
ASSETS, CACHE = "assets", "cache"


@pytest.mark.parametrize(
    ("asked", "variable", "assets", "names", "version", "places"),
    [
        pytest.param("", "", "", [], KUBERNETES_DEFAULT, [CACHE, CACHE], id="nothing asked: the default"),
        pytest.param("1.30", "", "", [], "1.30", [CACHE, CACHE], id="asked for"),
        pytest.param("", "1.37", "", [], "1.37", [CACHE, CACHE], id="asked for by the variable"),
        pytest.param("1.30", "1.37", "", [], "1.30", [CACHE, CACHE], id="asked for, over the variable"),
        pytest.param(KUBERNETES["1.30"], "", "", [], "1.30", [CACHE, CACHE], id="a version that is pinned"),
        pytest.param("", "", "v1.37.0", SERVERS, "1.37", [ASSETS, ASSETS], id="the assets' release"),
        pytest.param("", "", "v1.33.9", SERVERS, "v1.33.9", [ASSETS, ASSETS], id="the assets' unknown one"),
        pytest.param("1.37", "", "v1.37.0", SERVERS, "1.37", [ASSETS, ASSETS], id="asked for, and in the assets"),
        pytest.param("1.30", "", "v1.37.0", SERVERS, "1.30", [CACHE, CACHE], id="asked for, not in the assets"),
        pytest.param("", "", "v1.30.1", SERVERS[:1], "1.30", [ASSETS, CACHE], id="one server in the assets: both"),
    ],
)  # fmt: skip
def test_the_kubernetes_that_runs(
    asked: str, variable: str, assets: str, names: list[str], version: str, places: list[str], tmp_path: Path
) -> None:
    environ = environment(tmp_path, KUBELOOP_KUBERNETES=variable)
    if assets:
        environ["KUBEBUILDER_ASSETS"] = str(_assets(tmp_path / "assets", names, assets))
    binaries = ensure_binaries(release=asked, environ=environ)
    _, kubernetes, _ = components_of(asked, environ)
    assert kubernetes.version == KUBERNETES.get(version, version)
    folders = {ASSETS: tmp_path / "assets", CACHE: cache_folder(kubernetes, environ)}
    found = [binaries.kube_apiserver.parent, binaries.kube_controller_manager.parent]
    assert found == [folders[place] for place in places]
    built = [line.split()[0] for line in _go_log(environ) if "k8s.io/kubernetes" in line]
    assert built == [str(kubernetes.module_directory)] * places.count(CACHE)


def _go_log(environ: dict[str, str]) -> list[str]:
    log = Path(environ["FAKE_GO_LOG"])
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("release", ["1.29", "v1.36.99", "latest", "1"])
@pytest.mark.parametrize("variable", [False, True])
def test_a_release_that_is_not_there_is_one_clear_error(release: str, variable: bool, tmp_path: Path) -> None:
    environ = environment(tmp_path) | ({"KUBELOOP_KUBERNETES": release} if variable else {})
    with pytest.raises(UnknownRelease, match=rf"there is no Kubernetes {release} here: choose one of 1\.30, "):
        ensure_binaries(release="" if variable else release, environ=environ)


def test_what_is_lacking_of_a_release_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    assets = _assets(tmp_path / "assets", NAMES[:2], "v1.33.9")
    with pytest.raises(BuildError, match=r"kube-controller-manager v1\.33\.9 is not built here: put it into"):
        ensure_binaries(environ=environment(tmp_path, KUBEBUILDER_ASSETS=str(assets)))


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("Kubernetes v1.36.3", "v1.36.3"),
        ("Kubernetes v1.34.4+rke2r1", "v1.34.4+rke2r1"),
        ("etcd Version: 3.6.5\nGo Version: go1.26.8", "v3.6.5"),
        ("kwok version v0.7.0 go1.26.8 (linux/amd64)", "v0.7.0"),
        ("go version go1.26.8", ""),
        ("", ""),
    ],
)
def test_the_version_of_a_binary_that_says(said: str, version: str, tmp_path: Path) -> None:
    assert said_version(write_executable(tmp_path / "binary", f"#!/bin/sh\necho '{said}'\n")) == version


@pytest.mark.parametrize("text", [None, "no program", "#!/bin/sh\nexit 1\n"])
def test_a_binary_that_does_not_run_has_no_version(text: str | None, tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    if text is not None:
        write_executable(binary, text)
    assert said_version(binary) == ""


def test_helm_is_built_like_the_others(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    assert ensure_helm(environ=environ) == cache_folder(HELM_COMPONENT, environ) / "helm"
    assert go_calls(environ) == ["helm.sh/helm/v3/cmd/helm"]


def test_on_an_empty_machine_all_four_are_built_into_the_cache_and_run_and_found_there_later(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    binaries = ensure_binaries(environ=environ)
    said = subprocess.run([binaries.etcd], capture_output=True, text=True, check=True).stdout
    assert said == "built go.etcd.io/etcd/server/v3\n"
    assert ensure_binaries(environ=environ) == binaries
    assert sorted(go_calls(environ)) == sorted(PACKAGES)
    files = [p.name for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.name != ".lock"]
    assert sorted(files) == NAMES


def test_the_cache_is_keyed_by_version_and_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    folder = cache_folder(KWOK_COMPONENT, {"XDG_CACHE_HOME": str(tmp_path)})
    assert folder == tmp_path / "kubeloop" / "bin" / f"kwok-{KWOK}-linux-arm64"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/kubeloop", id="XDG_CACHE_HOME"),
        pytest.param({"HOME": "/h"}, "/h/.cache/kubeloop", id="HOME without XDG_CACHE_HOME"),
        pytest.param({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/kubeloop", id="HOME when the other is empty"),
        pytest.param({"XDG_CACHE_HOME": "c", "HOME": "/h"}, "/h/.cache/kubeloop", id="HOME when the other is relative"),
    ],
)
def test_the_cache_lies_under(environ: dict[str, str], expected: str) -> None:
    assert cache_directory(environ) == Path(expected)


def test_without_home_and_cache_folder_the_error_says_what_to_set() -> None:
    with pytest.raises(ClusterError, match="set XDG_CACHE_HOME"):
        cache_directory({})


def test_a_cache_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ClusterError, match=r"cannot be made .*: set XDG_CACHE_HOME"):
        ensure_binaries(environ=environment(tmp_path))


def test_what_a_killed_build_left_is_removed_by_the_next(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    left_over = cache_folder(KWOK_COMPONENT, environ) / ".unfinished-old" / "kwok"
    left_over.parent.mkdir(parents=True)
    left_over.write_bytes(b"half a binary")
    binaries = ensure_binaries(environ=environ)
    assert not left_over.parent.exists()
    assert binaries.kwok.read_bytes() != b"half a binary"


def test_a_failed_build_leaves_no_binary_and_the_next_one_starts_afresh(tmp_path: Path) -> None:
    with pytest.raises(BuildError):
        ensure_binaries(environ=environment(tmp_path, FAKE_GO_FAILS="no network"))
    assert find_binaries(environment(tmp_path)) == {}
    assert ensure_binaries(environ=environment(tmp_path)).kwok.is_file()


def _download_world(tmp_path: Path, address: str) -> dict[str, str]:
    """etcd and Kubernetes are there already, kwok's releases are at `address`."""
    assets = _assets(tmp_path / "assets", NAMES[:3])
    return environment(tmp_path, KUBEBUILDER_ASSETS=str(assets), KUBELOOP_DOWNLOAD="on", KUBELOOP_DOWNLOAD_KWOK=address)


@pytest.fixture
def amd64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.mark.usefixtures("amd64")
def test_a_release_that_can_be_reached_is_downloaded_and_executable(tmp_path: Path) -> None:
    program = b"#!/bin/sh\necho released\n"
    with serve(kwok_site(program)) as (address, _):
        environ = _download_world(tmp_path, address)
        binaries = ensure_binaries(environ=environ)
    assert subprocess.run([binaries.kwok], capture_output=True, text=True, check=True).stdout == "released\n"
    assert go_calls(environ) == []


@pytest.mark.usefixtures("amd64")
def test_a_release_with_a_wrong_checksum_is_never_used_but_built(tmp_path: Path) -> None:
    notes = Notes()
    with serve(kwok_site(b"tampered", sha256(b"program").encode())) as (address, _):
        environ = _download_world(tmp_path, address)
        binaries = ensure_binaries(notes, environ=environ)
    assert binaries.kwok.read_text().startswith("#!/bin/sh\necho built")
    assert any("has SHA-256" in step and "building it instead" in step for step in notes.steps)


@pytest.mark.usefixtures("amd64")
def test_only_sites_of_missing_binaries_are_asked(tmp_path: Path) -> None:
    with serve(kwok_site(b"x")) as (address, asked):
        environ = _download_world(tmp_path, address) | {"KUBELOOP_DOWNLOAD_ETCD": address}
        ensure_binaries(environ=environ)
    assert all("kwok" in path for path in asked)


def test_two_processes_that_need_binaries_at_once_build_each_one_once(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    environ = environment(tmp_path, FAKE_GO_GATE=str(gate), PYTHONPATH=str(ROOT))
    imported = "from kubeloop.testing.cluster.binaries import ensure_binaries"
    program = f"{imported}; print('asking', flush=True); print(ensure_binaries())"
    running = [
        subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "asking\n"
    gate.touch()
    answers = [process.communicate(timeout=60)[0] for process in running]
    assert answers[0] == answers[1] != ""
    assert sorted(go_calls(environ)) == sorted(PACKAGES)


def test_a_process_that_waits_for_another_ones_build_says_so(tmp_path: Path) -> None:
    gate, said = tmp_path / "gate", "another process builds it"
    environ, notes = environment(tmp_path, FAKE_GO_GATE=str(gate)), Notes(gate, said)
    first = threading.Thread(target=ensure_binaries, kwargs={"environ": environ})
    first.start()
    assert eventually(lambda: bool(go_calls(environ)))
    ensure_binaries(notes, environ=environ)
    first.join()
    assert any(said in tick for tick in notes.ticks)
    assert len(go_calls(environ)) == len(PACKAGES)


def test_a_builder_killed_half_way_neither_blocks_nor_spoils_the_next(tmp_path: Path) -> None:
    environ = environment(tmp_path, FAKE_GO_GATE=str(tmp_path / "gate"), PYTHONPATH=str(ROOT))
    program = "from kubeloop.testing.cluster.binaries import ensure_binaries; ensure_binaries()"
    killed = subprocess.Popen([sys.executable, "-c", program], env=environ, start_new_session=True)
    assert eventually(lambda: bool(go_calls(environ)))
    os.killpg(killed.pid, 9)
    killed.wait()
    assert ensure_binaries(environ=environ | {"FAKE_GO_GATE": ""}).etcd.is_file()
