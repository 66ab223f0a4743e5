"""Commands of etcd, kube-apiserver, kube-controller-manager and kwok: certificates, flags, environment.

Tuned for a cluster that lives for minutes on two cores: nothing is synced to disk, the controller manager runs only the
controllers that quota, namespaces, service accounts and garbage collection need, and no client-side rate limits.
Admission, quota, RBAC, priority and fairness are as in any cluster."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kubeloop.errors import needs_extra
from kubeloop.testing.cluster.binaries import Binaries
from kubeloop.testing.cluster.paths import Paths, free_ports
from kubeloop.testing.cluster.processes import write_private

with needs_extra("testing"):
    import trustme

STAGES = Path(__file__).parent / "kwok"
SERVERS = ("etcd", "kube-apiserver", "kube-controller-manager", "kwok")
"""Names of their processes; every other process of a cluster is a program."""

_ACCOUNTS, _MANAGER = "service-accounts", "kube-controller-manager"
_LOOPBACK = "127.0.0.1"
_SERVICE_RANGE = "10.96.0.0/16"
_ISSUER = "https://kubernetes.default.svc.cluster.local"
_API_HOSTS = (
    _LOOPBACK, "localhost", "10.96.0.1",
    "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
)  # fmt: skip
_CONTROLLERS = (
    "resourcequota-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "garbage-collector-controller",
    "pod-garbage-collector-controller",
    "persistentvolumeclaim-protection-controller",
    "clusterrole-aggregation-controller",
)
# Beyond what any test fills.
_CAPACITY = {"cpu": "1000", "memory": "16Ti", "ephemeral-storage": "16Ti", "pods": "1000"}
# Fewer collections for some more memory: of the two cores, one is busy with Go's collector otherwise.
_GO_TUNING = {"GOGC": "200"}


@dataclass(frozen=True)
class Command:
    """A process to start: name, argv, additional environment."""

    name: str
    argv: list[str]
    env: Mapping[str, str]


class KeyPairFiles(NamedTuple):
    """PEM files."""

    certificate: Path
    key: Path


def _issue(
    folder: Path, authority: trustme.CA, file_name: str, user: str, group: str | None = None, hosts: Sequence[str] = ()
) -> KeyPairFiles:
    """A certificate that serves `hosts` (names, IP addresses) and that Kubernetes reads as `user` (common name) in
    `group` (organization)."""
    # A critical list of alternative names that is empty is not taken by Go.
    certificate = authority.issue_cert(*hosts or [file_name], common_name=user, organization_name=group)
    pair = _pair(folder, file_name)
    write_private(pair.certificate, certificate.cert_chain_pems[0].bytes())
    write_private(pair.key, certificate.private_key_pem.bytes())
    return pair


def _pair(folder: Path, name: str) -> KeyPairFiles:
    return KeyPairFiles(folder / f"{name}.crt", folder / f"{name}.key")


@dataclass(frozen=True)
class ControlPlane:
    """A cluster's addresses, files and commands."""

    paths: Paths
    binaries: Binaries
    etcd_port: int
    etcd_peer_port: int
    api_port: int
    audit_policy: Path | None

    @property
    def url(self) -> str:
        return f"https://{_LOOPBACK}:{self.api_port}"

    @property
    def etcd_address(self) -> tuple[str, int]:
        return _LOOPBACK, self.etcd_port

    def _keys(self, name: str) -> KeyPairFiles:
        return _pair(self.paths.pki, name)

    def etcd(self) -> Command:
        client = f"https://{_LOOPBACK}:{self.etcd_port}"
        peer = f"https://{_LOOPBACK}:{self.etcd_peer_port}"
        argv = [
            str(self.binaries.etcd),
            "--name=default",
            f"--data-dir={self.paths.etcd_data}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            *_etcd_tls("", self._keys("etcd"), self.paths.authority),
            *_etcd_tls("peer-", self._keys("etcd"), self.paths.authority),
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        return Command("etcd", argv, _GO_TUNING)

    def kube_apiserver(self) -> Command:
        serving, etcd_client, accounts = map(self._keys, ("kube-apiserver", "etcd-client", _ACCOUNTS))
        argv = [
            str(self.binaries.kube_apiserver),
            f"--bind-address={_LOOPBACK}",
            f"--advertise-address={_LOOPBACK}",
            f"--secure-port={self.api_port}",
            # An Endpoints object may not hold a loopback address: the reconciler would only log errors.
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.paths.authority}",
            f"--etcd-servers=https://{_LOOPBACK}:{self.etcd_port}",
            f"--etcd-cafile={self.paths.authority}",
            f"--etcd-certfile={etcd_client.certificate}",
            f"--etcd-keyfile={etcd_client.key}",
            "--etcd-count-metric-poll-period=0",
            "--authorization-mode=RBAC",
            # It taints every new node as not ready, and waits for the node controller, which does not run here.
            "--disable-admission-plugins=TaintNodesByCondition",
            f"--service-cluster-ip-range={_SERVICE_RANGE}",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={accounts.certificate}",
            f"--service-account-signing-key-file={accounts.key}",
            "--allow-privileged=true",
            "--profiling=false",
        ]
        if self.audit_policy is not None:
            argv += [f"--audit-policy-file={self.audit_policy}", f"--audit-log-path={self.paths.audit_log}"]
        return Command("kube-apiserver", argv, _GO_TUNING)

    def kube_controller_manager(self) -> Command:
        config = self.paths.pki / f"{_MANAGER}.kubeconfig"
        argv = [
            str(self.binaries.kube_controller_manager),
            f"--kubeconfig={config}",
            f"--controllers={','.join(_CONTROLLERS)}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._keys(_ACCOUNTS).key}",
            f"--root-ca-file={self.paths.authority}",
            "--leader-elect=false",
            # It serves nothing that is needed here.
            "--secure-port=0",
            "--concurrent-resource-quota-syncs=5",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            "--profiling=false",
        ]
        return Command("kube-controller-manager", argv, _GO_TUNING)

    def kwok(self) -> Command:
        # There is no node lifecycle controller, so no node needs a heartbeat.
        return kwok(
            self.binaries, self.paths.kubeconfig, self.paths.pki / "kwok", "annotation", "kwok.x-k8s.io/node=fake"
        )


def kwok(binaries: Binaries, kubeconfig: Path, home: Path, by: str, nodes: str, *, lease: int = 0) -> Command:
    """Returns the command of kwok for the nodes of a selector by label or annotation. `lease`: seconds of their
    heartbeats, 0 for none; `home` holds nothing: a kwok.yaml of the person who runs this must not get in."""
    argv = [
        str(binaries.kwok),
        f"--kubeconfig={kubeconfig}",
        *(f"--config={path}" for path in sorted(STAGES.glob("*.yaml"))),
        "--manage-all-nodes=false",
        f"--manage-nodes-with-{by}-selector={nodes}",
        f"--node-lease-duration-seconds={lease}",
        "--cidr=10.128.0.1/16",
        "--node-ip=10.127.0.1",
        "--v=WARN",
    ]
    return Command("kwok", argv, {**_GO_TUNING, "KWOK_WORKDIR": str(home)})


def node_names(count: int) -> list[str]:
    return [f"node-{number}" for number in range(1, count + 1)]


def fake_node(name: str) -> dict[str, Any]:
    """A Node that kwok keeps Ready, and on which it runs pods. There is no scheduler: a pod is created with its node's
    name."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "type": "kwok",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "kubernetes.io/hostname": name,
                "node-role.kubernetes.io/worker": "",
            },
        },
        "status": {
            "capacity": dict(_CAPACITY),
            "allocatable": dict(_CAPACITY),
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kubeletVersion": "fake",
                **dict.fromkeys(("bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion"), ""),
                **dict.fromkeys(("machineID", "osImage", "systemUUID"), ""),
            },
        },
    }


def prepare(paths: Paths, binaries: Binaries, audit_policy: Path | None = None) -> ControlPlane:
    """Chooses ports, makes certificates and kubeconfigs."""
    etcd_port, peer_port, api_port = free_ports(3)
    paths.pki.mkdir(parents=True, exist_ok=True, mode=0o700)
    # One CA signs every server and client certificate of the cluster; its own key is never written.
    authority = trustme.CA()
    write_private(paths.authority, authority.cert_pem.bytes())
    issue = partial(_issue, paths.pki, authority)
    issue("etcd", "etcd", hosts=(_LOOPBACK, "localhost"))
    issue("etcd-client", "kube-apiserver")
    issue("kube-apiserver", "kube-apiserver", hosts=_API_HOSTS)
    issue(_ACCOUNTS, _ACCOUNTS)
    admin = issue("admin", "kubernetes-admin", "system:masters")
    manager = issue(_MANAGER, f"system:{_MANAGER}")
    plane = ControlPlane(paths, binaries, etcd_port, peer_port, api_port, audit_policy)
    write_kubeconfig(paths.pki / f"{_MANAGER}.kubeconfig", plane.url, paths.authority, manager)
    write_kubeconfig(paths.kubeconfig, plane.url, paths.authority, admin)
    return plane


def _etcd_tls(prefix: str, keys: KeyPairFiles, authority: Path) -> list[str]:
    return [
        f"--{prefix}cert-file={keys.certificate}",
        f"--{prefix}key-file={keys.key}",
        f"--{prefix}trusted-ca-file={authority}",
        f"--{prefix}client-cert-auth",
    ]


NAME = "kubeloop-cluster"


def write_kubeconfig(path: Path, url: str, authority: Path, user: KeyPairFiles) -> None:
    """Writes `path`, at once or not at all: `user`'s client certificate at the API server `url`."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "clusters": [{"name": NAME, "cluster": {"server": url, "certificate-authority-data": _data(authority)}}],
        "users": [
            {
                "name": NAME,
                "user": {"client-certificate-data": _data(user.certificate), "client-key-data": _data(user.key)},
            }
        ],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
    }
    # JSON is YAML, and every kubeconfig reader takes it.
    write_private(path, json.dumps(content, indent=2).encode())


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")
