"""The pins in versions.py and those in the Go modules are the same."""

from __future__ import annotations

import re

import pytest

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


@pytest.mark.parametrize(("machine", "go"), [("AMD64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64")])
def test_the_architecture_is_spelled_as_go_does(machine: str, go: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert go_architecture() == go
