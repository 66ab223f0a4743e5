import dataclasses
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kubeloop.testing.cluster.binaries import (
    Binaries,
    cache_directory,
    cache_folder,
    components_of,
    ensure_binaries,
    ensure_helm,
    reported_version,
)
from kubeloop.testing.cluster.reporting import ClusterError, UnknownRelease
from kubeloop.testing.cluster.versions import (
    ETCD,
    ETCD_COMPONENT,
    GO_MINIMUM,
    HELM,
    HELM_COMPONENT,
    KUBERNETES,
    KUBERNETES_DEFAULT,
    KWOK,
    KWOK_COMPONENT,
    PROMETHEUS,
    PROMETHEUS_COMPONENT,
    Component,
    go_architecture,
    kubernetes,
    minor_release,
)
from kubeloop.testing.polling import eventually

from .fakes import Notes, environment, go_calls, kwok_site, serve, sha256, versioned, write_executable

NAMES = ["etcd", "kube-apiserver", "kube-controller-manager", "kwok"]
PACKAGES = [package for component in components_of(environ={}) for package in component.packages.values()]
ROOT = Path(__file__).parents[4]


def _assets(folder: Path, names: list[str], version: str = KUBERNETES[KUBERNETES_DEFAULT]) -> Path:
    for name in names:
        write_executable(folder / name, versioned(version))
    return folder


def test_what_kubebuilder_assets_lack_or_cannot_run_is_built(tmp_path: Path) -> None:
    assets = _assets(tmp_path / "assets", NAMES)
    environ = environment(tmp_path, KUBEBUILDER_ASSETS=str(assets))
    in_assets = Binaries(*(assets / name for name in NAMES))
    assert ensure_binaries(environ=environ) == in_assets
    assert go_calls(environ) == []
    (assets / "kwok").chmod(0o644)
    in_cache = cache_folder(KWOK_COMPONENT, environ) / "kwok"
    assert ensure_binaries(environ=environ) == dataclasses.replace(in_assets, kwok=in_cache)
    assert go_calls(environ) == ["sigs.k8s.io/kwok/cmd/kwok"]


SERVERS = NAMES[1:3]
ASSETS, CACHE = "assets", "cache"


@pytest.mark.parametrize(
    ("release", "variable", "assets", "names", "version", "places"),
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
    release: str, variable: str, assets: str, names: list[str], version: str, places: list[str], tmp_path: Path
) -> None:
    environ = environment(tmp_path, KUBELOOP_KUBERNETES=variable)
    if assets:
        environ["KUBEBUILDER_ASSETS"] = str(_assets(tmp_path / "assets", names, assets))
    binaries = ensure_binaries(release=release, environ=environ)
    _, kubernetes, _ = components_of(release, environ)
    assert kubernetes.version == KUBERNETES.get(version, version)
    folders = {ASSETS: tmp_path / "assets", CACHE: cache_folder(kubernetes, environ)}
    binary_folders = [binaries.kube_apiserver.parent, binaries.kube_controller_manager.parent]
    assert binary_folders == [folders[place] for place in places]
    calls = Path(environ["FAKE_GO_LOG"]).read_text().splitlines()  # at least etcd's
    built = [line.split()[0] for line in calls if "k8s.io/kubernetes" in line]
    assert built == [str(kubernetes.module_directory)] * places.count(CACHE)


@pytest.mark.parametrize("release", ["1.29", "v1.36.99", "latest", "1"])
@pytest.mark.parametrize("variable", [False, True])
def test_a_release_that_is_not_there_is_one_clear_error(release: str, variable: bool, tmp_path: Path) -> None:
    environ = environment(tmp_path) | ({"KUBELOOP_KUBERNETES": release} if variable else {})
    with pytest.raises(UnknownRelease, match=rf"there is no Kubernetes {release} here: choose one of 1\.30, "):
        ensure_binaries(release="" if variable else release, environ=environ)


def test_what_a_missing_release_lacks_is_one_clear_error(tmp_path: Path) -> None:
    assets = _assets(tmp_path / "assets", NAMES[:2], "v1.33.9")
    with pytest.raises(ClusterError, match=r"kube-controller-manager v1\.33\.9 is not built here: put it into"):
        ensure_binaries(environ=environment(tmp_path, KUBEBUILDER_ASSETS=str(assets)))
    assert not list((tmp_path / "cache").rglob(".unfinished"))


@pytest.mark.parametrize(
    ("program", "version"),
    [
        ("#!/bin/sh\necho Kubernetes v1.36.3", "v1.36.3"),
        ("#!/bin/sh\necho Kubernetes v1.34.4+rke2r1", "v1.34.4+rke2r1"),
        ("#!/bin/sh\necho etcd Version: 3.6.5\necho Go Version: go1.26.8", "v3.6.5"),
        ("#!/bin/sh\necho 'kwok version v0.7.0 go1.26.8 (linux/amd64)'", "v0.7.0"),
        ("#!/bin/sh\necho go version go1.26.8", ""),
        ("#!/bin/sh\nexit 1\n", ""),
        ("no program", ""),
    ],
)
def test_the_version_that_a_binary_says(program: str, version: str, tmp_path: Path) -> None:
    assert reported_version(tmp_path / "missing") == ""
    assert reported_version(write_executable(tmp_path / "binary", program)) == version


def test_a_binary_that_is_asked_its_version_reads_nothing_of_this_program(tmp_path: Path) -> None:
    binary = write_executable(tmp_path / "binary", "#!/bin/sh\nread line\necho version v1.2.3 $line")
    program = (
        f"from kubeloop.testing.cluster.binaries import *; print(reported_version(Path({str(binary)!r})), input())"
    )
    asked = subprocess.run([sys.executable, "-c", program], input="mine", capture_output=True, text=True, cwd=ROOT)
    assert asked.stdout == "v1.2.3 mine\n"


def test_on_an_empty_machine_all_are_built_into_the_cache(tmp_path: Path) -> None:
    with pytest.raises(ClusterError):
        ensure_binaries(environ=environment(tmp_path, FAKE_GO_FAILS="no network"))
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.name in NAMES]
    environ = environment(tmp_path, FAKE_GO_LOG=str(tmp_path / "second.log"))
    binaries = ensure_binaries(environ=environ)
    output = subprocess.run([binaries.etcd], capture_output=True, text=True, check=True).stdout
    assert output == "built go.etcd.io/etcd/server/v3\n"
    assert ensure_binaries(environ=environ) == binaries
    assert ensure_helm(environ=environ) == cache_folder(HELM_COMPONENT, environ) / "helm"
    assert sorted(go_calls(environ)) == sorted([*PACKAGES, "helm.sh/helm/v3/cmd/helm"])
    files = [p.name for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.name != ".lock"]
    assert sorted(files) == sorted([*NAMES, "helm"])


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c"),
        ({"HOME": "/h"}, "/h/.cache"),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache"),
    ],
)
def test_the_cache_lies_by_version_and_platform_under(
    environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert cache_folder(KWOK_COMPONENT, environ) == Path(expected, "kubeloop", "bin", f"kwok-{KWOK}-linux-arm64")


def test_without_a_cache_folder_the_error_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="set XDG_CACHE_HOME"):
        cache_directory({})
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ClusterError, match=r"cannot be made .*: set XDG_CACHE_HOME"):
        ensure_binaries(environ=environment(tmp_path))


def _download_world(tmp_path: Path, address: str) -> dict[str, str]:
    """etcd and Kubernetes are there already, kwok's releases are at `address`."""
    assets = _assets(tmp_path / "assets", NAMES[:3])
    return environment(tmp_path, KUBEBUILDER_ASSETS=str(assets), KUBELOOP_DOWNLOAD="on", KUBELOOP_DOWNLOAD_KWOK=address)


@pytest.fixture
def amd64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.mark.usefixtures("amd64")
def test_a_release_in_reach_is_downloaded_from_its_site_alone(tmp_path: Path) -> None:
    with serve(kwok_site(b"#!/bin/sh\necho released\n")) as (address, requests):
        environ = _download_world(tmp_path, address) | {"KUBELOOP_DOWNLOAD_ETCD": address}
        binaries = ensure_binaries(environ=environ)
    assert subprocess.run([binaries.kwok], capture_output=True, text=True, check=True).stdout == "released\n"
    assert all("kwok" in path for path in requests)
    assert go_calls(environ) == []


@pytest.mark.usefixtures("amd64")
def test_a_release_with_a_wrong_checksum_is_never_used_but_built(tmp_path: Path) -> None:
    notes = Notes()
    with serve(kwok_site(b"tampered", sha256(b"program").encode())) as (address, _):
        environ = _download_world(tmp_path, address)
        binaries = ensure_binaries(notes, environ=environ)
    assert binaries.kwok.read_text().startswith("#!/bin/sh\necho built")
    assert not list((tmp_path / "cache").rglob("*.download"))
    assert any("has SHA-256" in step and "building it instead" in step for step in notes.steps)


def test_a_second_process_waits_for_a_build_and_builds_none(tmp_path: Path) -> None:
    gate, message = tmp_path / "gate", "another process builds it"
    environ, notes = environment(tmp_path, FAKE_GO_GATE=str(gate)), Notes(gate, message)
    thread = threading.Thread(target=ensure_binaries, kwargs={"environ": environ})
    thread.start()
    assert eventually(lambda: bool(go_calls(environ)))
    ensure_binaries(notes, environ=environ)
    thread.join()
    assert any(message in tick for tick in notes.ticks)
    assert len(go_calls(environ)) == len(PACKAGES)


def test_a_builder_killed_half_way_does_not_spoil_the_next(tmp_path: Path) -> None:
    environ = environment(tmp_path, FAKE_GO_GATE=str(tmp_path / "gate"), PYTHONPATH=str(ROOT))
    program = "from kubeloop.testing.cluster.binaries import ensure_binaries; ensure_binaries()"
    killed = subprocess.Popen([sys.executable, "-c", program], env=environ, start_new_session=True)
    assert eventually(lambda: bool(go_calls(environ)))
    (left_over,) = (tmp_path / "cache").rglob(".unfinished")
    os.killpg(killed.pid, 9)
    killed.wait()
    (left_over / "etcd").write_bytes(b"half a binary")
    assert ensure_binaries(environ=environ | {"FAKE_GO_GATE": ""}).etcd.read_bytes() != b"half a binary"
    assert not left_over.exists()


RELEASES = [kubernetes(minor) for minor in KUBERNETES]


def _go_mod(component: Component) -> str:
    return (component.module_directory / "go.mod").read_text()


_MAJOR, _MINOR, _PATCH = map(int, PROMETHEUS.removeprefix("v").split("."))
_MODULE_OF_PROMETHEUS = f"v0.{_MAJOR}{_MINOR:02}.{_PATCH}"
"""Prometheus' own rule: 3.9.1 is the Go module v0.309.1."""


@pytest.mark.parametrize(
    ("component", "module", "version"),
    [
        (ETCD_COMPONENT, "go.etcd.io/etcd/server/v3", ETCD),
        *((component, "k8s.io/kubernetes", component.version) for component in RELEASES),
        (KWOK_COMPONENT, "sigs.k8s.io/kwok", KWOK),
        (HELM_COMPONENT, "helm.sh/helm/v3", HELM),
        (PROMETHEUS_COMPONENT, "github.com/prometheus/prometheus", _MODULE_OF_PROMETHEUS),
    ],
)
def test_the_go_module_of(component: Component, module: str, version: str) -> None:
    """It requires the pinned release, has our binaries as its tools and its checksums, and our Go is new enough."""
    text = _go_mod(component)
    assert re.search(rf"\s{re.escape(module)} {re.escape(version)}( //.*)?$", text, re.MULTILINE)
    for package in component.packages.values():
        assert re.search(rf"^(tool )?\s*{re.escape(package)}$", text, re.MULTILINE)
    assert (component.module_directory / "go.sum").read_text().count("h1:") > 50
    go = re.search(r"^go (\d+)\.(\d+)", text, re.MULTILINE)
    assert go is not None
    assert (int(go[1]), int(go[2])) <= GO_MINIMUM


@pytest.mark.parametrize("component", RELEASES, ids=lambda component: component.version)
def test_all_staging_modules_follow_the_kubernetes_release(component: Component) -> None:
    text = _go_mod(component)
    replaced = re.findall(r"^\s+(k8s\.io/\S+) => (\S+) (\S+)$", text, re.MULTILINE)
    assert all(name == target for name, target, _ in replaced)
    assert {version for _, _, version in replaced} == {component.version.replace("v1.", "v0.", 1)}
    unreplaced = set(re.findall(r"^\s+(k8s\.io/\S+) v0\.0\.0 ", text, re.MULTILINE))
    assert unreplaced < {name for name, _, _ in replaced}


def test_each_row_is_a_version_of_its_minor_release() -> None:
    assert [minor_release(version) for version in KUBERNETES.values()] == list(KUBERNETES)
    assert KUBERNETES_DEFAULT in KUBERNETES


def test_helm_renders_for_the_kubernetes_that_it_is_built_with() -> None:
    built_with = re.search(r"\sk8s\.io/client-go v0\.(\d+)\.", _go_mod(HELM_COMPONENT))
    assert built_with is not None
    assert HELM_COMPONENT.ldflags.count(f"k8sVersionMinor={built_with[1]}") == 2


@pytest.mark.parametrize("version", ["v1.36.3", "1.36.3", "v1.36.0-rc.1", "v1.36.4+rke2r1", "1.36"])
def test_the_minor_release_of(version: str) -> None:
    assert minor_release(version) == "1.36"


@pytest.mark.parametrize("text", ["1", "1.36beta", "latest", ""])
def test_what_is_not_a_version_has_no_minor_release(text: str) -> None:
    assert minor_release(text) == ""


@pytest.mark.parametrize(("machine", "go"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64")])
def test_the_architecture_is_spelled_as_go_does(machine: str, go: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert go_architecture() == go
