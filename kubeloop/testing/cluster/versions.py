"""The one place where the versions of the embedded cluster, of helm and of Prometheus are pinned.

A new version needs three edits: here, the go.mod of its folder under gomod/, and `GOFLAGS=-mod=mod go mod tidy` there
(which rewrites go.sum). A further Kubernetes release is a row of KUBERNETES and a folder gomod/kubernetes/<minor>. Its
go.mod replaces the modules that k8s.io/kubernetes' own go.mod replaces by folders under staging/ with their published
releases: Kubernetes 1.36.N is built with k8s.io/X v0.36.N. etcd and kwok are the same for all of them."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: The releases that the cluster runs: the version of each minor release.
KUBERNETES = {"1.30": "v1.30.14", "1.34": "v1.34.4", "1.36": "v1.36.3", "1.37": "v1.37.2"}
#: What runs unless another one is asked for.
KUBERNETES_DEFAULT = "1.36"
ETCD = "v3.6.5"
KWOK = "v0.7.0"
HELM = "v3.19.5"
PROMETHEUS = "v3.9.1"

#: The lowest Go release that the modules under gomod/ ask for (their `go` directive).
GO_MINIMUM = (1, 26)

#: Our own Go modules, shipped as package data.
GOMOD = Path(__file__).parent / "gomod"

Environ = Mapping[str, str]
"""The variables of a process."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Component:
    """An upstream project in the release in use. `packages` maps a binary's file name to its Go main package; `module`
    is the folder of its Go module under gomod/, where that is not its name."""

    name: str
    version: str
    packages: dict[str, str]
    ldflags: str = "-s -w"
    module: str = ""

    @property
    def module_directory(self) -> Path:
        return GOMOD / (self.module or self.name)


def minor_release(version: str) -> str:
    """Returns "1.36" of "v1.36.3", "1.36.3" or "1.36", and "" for a text that is not a version."""
    match = re.match(r"v?(\d+)\.(\d+)(\.|$)", version)
    return f"{match[1]}.{match[2]}" if match else ""


def kubernetes(version: str) -> Component:
    """The pinned version of the minor release of `version`; where none is pinned, `version`, which cannot be built."""
    minor = minor_release(version)
    version = KUBERNETES.get(minor, version)
    major, _, number = minor.partition(".")
    stamp = "k8s.io/component-base/version"
    return Component(
        "kubernetes",
        version,
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-apiserver", "kube-controller-manager")},
        # Without it the API server calls itself v0.0.0-master and switches off what it takes for unreleased.
        f"-s -w -X {stamp}.gitVersion={version} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={number}",
        f"kubernetes/{minor}",
    )


ETCD_COMPONENT = Component("etcd", ETCD, {"etcd": "go.etcd.io/etcd/server/v3"})
KWOK_COMPONENT = Component("kwok", KWOK, {"kwok": "sigs.k8s.io/kwok/cmd/kwok"})

#: No part of the cluster: what the chart is rendered, linted and installed with. As helm's own Makefile does: its
#: version, and the Kubernetes release that it renders for without a cluster, that of its k8s.io/client-go.
HELM_COMPONENT = Component(
    "helm",
    HELM,
    {"helm": "helm.sh/helm/v3/cmd/helm"},
    f"-s -w -X helm.sh/helm/v3/internal/version.version={HELM}"
    " -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=34"
    " -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34",
)

#: What `make observability` scrapes with, and checks the alerts by. Its Go module counts v0.309.1 for v3.9.1.
PROMETHEUS_COMPONENT = Component(
    "prometheus",
    PROMETHEUS,
    {name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool")},
    f"-s -w -X github.com/prometheus/common/version.Version={PROMETHEUS.removeprefix('v')}",
)


def go_architecture() -> str:
    """Returns this machine's architecture as Go and the download sites spell it, e.g. "amd64"."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())
