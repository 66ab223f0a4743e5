"""Commands of etcd, kube-apiserver, kube-controller-manager and kwok: certificates, flags, environment.

Tuned for a cluster that lives for minutes on two cores: nothing is synced to disk, the controller manager runs only the
controllers that quota, namespaces, service accounts and garbage collection need, and no client-side rate limits.
Admission, quota, RBAC, priority and fairness are as in any cluster."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
_API_HOSTS = (
    _LOOPBACK, "localhost", "10.96.0.1",
    "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
)  # fmt: skip
_CONTROLLERS = (
    "resourcequota", "namespace", "serviceaccount", "serviceaccount-token", "garbage-collector",
    "pod-garbage-collector", "persistentvolumeclaim-protection", "clusterrole-aggregation",
)  # fmt: skip
# Beyond what any test fills.
_CAPACITY = {"cpu": "1000", "memory": "16Ti", "ephemeral-storage": "16Ti", "pods": "1000"}
# Fewer collections for some more memory: of the two cores, one is busy with Go's collector otherwise.
_GO_TUNING = {"GOGC": "200"}


@dataclass(frozen=True)
class Program:
    """A process to start: name, argv, additional environment."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


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

    def etcd(self) -> Program:
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
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        for side in ("", "peer-"):
            argv += [f"--{side}cert-file={self.paths.pki}/etcd.crt", f"--{side}key-file={self.paths.pki}/etcd.key"]
            argv += [f"--{side}trusted-ca-file={self.paths.authority}", f"--{side}client-cert-auth"]
        return Program("etcd", argv, _GO_TUNING)

    def kube_apiserver(self) -> Program:
        pki = self.paths.pki
        serving, etcd_client, accounts = pki / "kube-apiserver", pki / "etcd-client", pki / _ACCOUNTS
        argv = [
            str(self.binaries.kube_apiserver),
            f"--bind-address={_LOOPBACK}",
            f"--advertise-address={_LOOPBACK}",
            f"--secure-port={self.api_port}",
            # An Endpoints object may not hold a loopback address: the reconciler would only log errors.
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={serving}.crt",
            f"--tls-private-key-file={serving}.key",
            f"--client-ca-file={self.paths.authority}",
            f"--etcd-servers=https://{_LOOPBACK}:{self.etcd_port}",
            f"--etcd-cafile={self.paths.authority}",
            f"--etcd-certfile={etcd_client}.crt",
            f"--etcd-keyfile={etcd_client}.key",
            "--etcd-count-metric-poll-period=0",
            "--authorization-mode=RBAC",
            # It taints every new node as not ready, and waits for the node controller, which does not run here.
            "--disable-admission-plugins=TaintNodesByCondition",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={accounts}.crt",
            f"--service-account-signing-key-file={accounts}.key",
            "--allow-privileged=true",
            "--profiling=false",
        ]
        if self.audit_policy is not None:
            argv += [f"--audit-policy-file={self.audit_policy}", f"--audit-log-path={self.paths.audit_log}"]
        return Program("kube-apiserver", argv, _GO_TUNING)

    def kube_controller_manager(self) -> Program:
        argv = [
            str(self.binaries.kube_controller_manager),
            f"--kubeconfig={self.paths.pki / _MANAGER}.kubeconfig",
            f"--controllers={','.join(f'{name}-controller' for name in _CONTROLLERS)}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.paths.pki / _ACCOUNTS}.key",
            f"--root-ca-file={self.paths.authority}",
            "--leader-elect=false",
            # It serves nothing that is needed here.
            "--secure-port=0",
            "--concurrent-resource-quota-syncs=5",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            "--profiling=false",
        ]
        return Program("kube-controller-manager", argv, _GO_TUNING)

    def kwok(self) -> Program:
        # There is no node lifecycle controller, so no node needs a heartbeat.
        home, nodes = self.paths.pki / "kwok", "kwok.x-k8s.io/node=fake"
        return kwok(self.binaries, self.paths.kubeconfig, home, "annotation", nodes)


def kwok(binaries: Binaries, kubeconfig: Path, home: Path, by: str, nodes: str, *, lease: int = 0) -> Program:
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
    return Program("kwok", argv, {**_GO_TUNING, "KWOK_WORKDIR": str(home)})


def node_names(count: int) -> list[str]:
    return [f"node-{number}" for number in range(1, count + 1)]


def fake_node(name: str) -> dict[str, Any]:
    """A Node that kwok keeps Ready, and on which it runs pods: created with its name, for there is no scheduler."""
    labels = {
        "type": "kwok",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": name,
        "node-role.kubernetes.io/worker": "",
    }
    unknown = ("bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "machineID", "osImage")
    info = {"architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "fake"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": labels},
        "status": {
            "capacity": dict(_CAPACITY),
            "allocatable": dict(_CAPACITY),
            "nodeInfo": {**info, **dict.fromkeys((*unknown, "systemUUID"), "")},
        },
    }


def prepare(paths: Paths, binaries: Binaries, audit_policy: Path | None = None) -> ControlPlane:
    """Chooses ports, makes certificates and kubeconfigs."""
    etcd_port, peer_port, api_port = free_ports(3)
    plane = ControlPlane(paths, binaries, etcd_port, peer_port, api_port, audit_policy)
    paths.pki.mkdir(parents=True, exist_ok=True, mode=0o700)
    # One CA signs every server and client certificate of the cluster; its own key is never written.
    authority = trustme.CA()
    write_private(paths.authority, authority.cert_pem.bytes())

    def issue(name: str, user: str, group: str | None = None, hosts: Sequence[str] = ()) -> None:
        """A certificate for `hosts` (names, IP addresses); Kubernetes reads `user` (common name) in `group` of it."""
        # A critical list of alternative names that is empty is not taken by Go.
        certificate = authority.issue_cert(*hosts or [name], common_name=user, organization_name=group)
        write_private(paths.pki / f"{name}.crt", certificate.cert_chain_pems[0].bytes())
        write_private(paths.pki / f"{name}.key", certificate.private_key_pem.bytes())

    issue("etcd", "etcd", hosts=(_LOOPBACK, "localhost"))
    issue("etcd-client", "kube-apiserver")
    issue("kube-apiserver", "kube-apiserver", hosts=_API_HOSTS)
    issue(_ACCOUNTS, _ACCOUNTS)
    issue("admin", "kubernetes-admin", "system:masters")
    issue(_MANAGER, f"system:{_MANAGER}")
    _write_kubeconfig(paths.kubeconfig, plane, "admin")
    _write_kubeconfig(paths.pki / f"{_MANAGER}.kubeconfig", plane, _MANAGER)
    return plane


def _write_kubeconfig(path: Path, plane: ControlPlane, user: str) -> None:
    """Writes the kubeconfig of a user whose certificate was issued."""

    def data(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode("ascii")

    name, pki = "kubeloop-cluster", plane.paths.pki
    cluster = {"server": plane.url, "certificate-authority-data": data(plane.paths.authority)}
    keys = {"client-certificate-data": data(pki / f"{user}.crt"), "client-key-data": data(pki / f"{user}.key")}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": keys}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    # JSON is YAML, and every kubeconfig reader takes it.
    write_private(path, json.dumps(content, indent=2).encode())
