"""The one place where the versions of the embedded cluster, of helm and of Prometheus are pinned.

A new version needs three edits: here, the go.mod of its folder under gomod/, and `go mod tidy` there (which rewrites
go.sum). The Kubernetes staging modules follow the release: Kubernetes 1.34.N is built with k8s.io/X v0.34.N.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "v1.34.4"
ETCD = "v3.6.5"
KWOK = "v0.7.0"
HELM = "v3.19.5"
PROMETHEUS = "v3.9.1"

#: The lowest Go release that the modules under gomod/ ask for (their `go` directive).
GO_MINIMUM = (1, 24)

#: Our own Go modules, shipped as package data.
GOMOD = Path(__file__).parent / "gomod"

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class Component:
    """One upstream project: what it is called, which release is used, and the Go packages its binaries come from.

    `packages` maps a binary's file name to its Go main package.
    """

    name: str
    version: str
    packages: dict[str, str]
    ldflags: str = "-s -w"

    @property
    def module_directory(self) -> Path:
        return GOMOD / self.name


KUBERNETES_COMPONENT = Component(
    "kubernetes",
    KUBERNETES,
    {
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    },
    # Without it the API server calls itself v0.0.0-master and switches off what it takes for unreleased.
    f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES}",
)
ETCD_COMPONENT = Component("etcd", ETCD, {"etcd": "go.etcd.io/etcd/server/v3"})
KWOK_COMPONENT = Component("kwok", KWOK, {"kwok": "sigs.k8s.io/kwok/cmd/kwok"})

#: What the embedded cluster runs.
COMPONENTS = (ETCD_COMPONENT, KUBERNETES_COMPONENT, KWOK_COMPONENT)

_KUBERNETES_MAJOR, _KUBERNETES_MINOR, _ = KUBERNETES.removeprefix("v").split(".")
#: No part of the cluster: what the chart is rendered, linted and installed with.
HELM_COMPONENT = Component(
    "helm",
    HELM,
    {"helm": "helm.sh/helm/v3/cmd/helm"},
    # As helm's own Makefile does: its version, and the Kubernetes release that it renders for without a cluster.
    f"-s -w -X helm.sh/helm/v3/internal/version.version={HELM}"
    f" -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor={_KUBERNETES_MAJOR}"
    f" -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor={_KUBERNETES_MINOR}"
    f" -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor={_KUBERNETES_MAJOR}"
    f" -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor={_KUBERNETES_MINOR}",
)

#: What `make observability` scrapes with, and checks the alerts by. Its Go module counts v0.309.1 for v3.9.1.
PROMETHEUS_COMPONENT = Component(
    "prometheus",
    PROMETHEUS,
    {
        "prometheus": "github.com/prometheus/prometheus/cmd/prometheus",
        "promtool": "github.com/prometheus/prometheus/cmd/promtool",
    },
    f"-s -w -X github.com/prometheus/common/version.Version={PROMETHEUS.removeprefix('v')}",
)


def go_architecture() -> str:
    """This machine's architecture as Go and the download sites spell it, e.g. "amd64"."""
    machine = platform.machine().lower()
    return _ARCHITECTURES.get(machine, machine)


def go_operating_system() -> str:
    """This machine's operating system as Go spells it, e.g. "linux"."""
    return platform.system().lower()
