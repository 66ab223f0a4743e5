"""The pins in versions.py and those in the Go modules are the same."""

from __future__ import annotations

import re

import pytest

from kubeloop.testing.cluster.versions import (
    COMPONENTS,
    ETCD,
    GO_MINIMUM,
    HELM,
    HELM_COMPONENT,
    KUBERNETES,
    KWOK,
    PROMETHEUS,
    PROMETHEUS_COMPONENT,
    Component,
    go_architecture,
)


def _go_mod(component: Component) -> str:
    return (component.module_directory / "go.mod").read_text()


@pytest.mark.parametrize(
    "component",
    [*COMPONENTS, HELM_COMPONENT, PROMETHEUS_COMPONENT],
    ids=lambda component: component.name,
)
class TestModuleOf:
    def test_it_asks_for_a_go_release_that_the_toolchain_check_lets_pass(self, component: Component) -> None:
        match = re.search(r"^go (\d+)\.(\d+)", _go_mod(component), re.MULTILINE)
        assert match is not None
        assert (int(match[1]), int(match[2])) <= GO_MINIMUM

    def test_its_binaries_are_its_tools(self, component: Component) -> None:
        text = _go_mod(component)
        for package in component.packages.values():
            assert re.search(rf"^(tool )?\s*{re.escape(package)}$", text, re.MULTILINE)

    def test_its_checksums_are_committed(self, component: Component) -> None:
        assert (component.module_directory / "go.sum").read_text().count("h1:") > 50


_MAJOR, _MINOR, _PATCH = map(int, PROMETHEUS.removeprefix("v").split("."))
_MODULE_OF_PROMETHEUS = f"v0.{_MAJOR}{_MINOR:02}.{_PATCH}"
"""Prometheus' own rule: 3.9.1 is the Go module v0.309.1."""


@pytest.mark.parametrize(
    ("component", "module", "version"),
    [
        (COMPONENTS[0], "go.etcd.io/etcd/server/v3", ETCD),
        (COMPONENTS[1], "k8s.io/kubernetes", KUBERNETES),
        (COMPONENTS[2], "sigs.k8s.io/kwok", KWOK),
        (HELM_COMPONENT, "helm.sh/helm/v3", HELM),
        (PROMETHEUS_COMPONENT, "github.com/prometheus/prometheus", _MODULE_OF_PROMETHEUS),
    ],
)
def test_the_required_release_is_the_pinned_one(component: Component, module: str, version: str) -> None:
    assert re.search(
        rf"\s{re.escape(module)} {re.escape(version)}( //.*)?$", _go_mod(component), re.MULTILINE
    )


def test_all_31_staging_modules_follow_the_kubernetes_release() -> None:
    replaced = re.findall(r"^\s+(k8s\.io/\S+) => (\S+) (\S+)$", _go_mod(COMPONENTS[1]), re.MULTILINE)
    assert len(replaced) == 31
    assert all(name == target for name, target, _ in replaced)
    assert {version for _, _, version in replaced} == {KUBERNETES.replace("v1.", "v0.", 1)}


@pytest.mark.parametrize(
    ("machine", "go"), [("x86_64", "amd64"), ("AMD64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64")]
)
def test_the_architecture_is_spelled_as_go_does(
    machine: str, go: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert go_architecture() == go
