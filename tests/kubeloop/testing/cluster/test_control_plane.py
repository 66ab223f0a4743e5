from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from kubeloop.testing.cluster.binaries import Binaries
from kubeloop.testing.cluster.control_plane import STAGES, Command, ControlPlane, prepare
from kubeloop.testing.cluster.nodes import fake_node, node_names
from kubeloop.testing.cluster.paths import Paths, free_ports


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> ControlPlane:
    binaries = Binaries(Path("/b/etcd"), Path("/b/kube-apiserver"), Path("/b/kcm"), Path("/b/kwok"))
    return prepare(Paths(tmp_path_factory.mktemp("cluster")), binaries)


def _flag(command: Command, name: str) -> str:
    values = [word.partition("=")[2] for word in command.argv if word.startswith(f"--{name}=")]
    assert len(values) == 1, (name, values)
    return values[0]


def test_every_listener_is_on_loopback_with_tls(plane: ControlPlane) -> None:
    etcd, server = plane.etcd(), plane.kube_apiserver()
    for flag in ("listen-client-urls", "listen-peer-urls"):
        assert _flag(etcd, flag).startswith("https://127.0.0.1:")
    assert {"--client-cert-auth", "--peer-client-cert-auth"} <= set(etcd.argv)
    assert _flag(server, "bind-address") == "127.0.0.1"
    assert _flag(server, "secure-port") == str(plane.api_port)
    assert _flag(plane.kube_controller_manager(), "secure-port") == "0"


def test_rbac_is_the_only_authorizer(plane: ControlPlane) -> None:
    assert _flag(plane.kube_apiserver(), "authorization-mode") == "RBAC"


def test_quota_admission_stays_on(plane: ControlPlane) -> None:
    assert "ResourceQuota" not in _flag(plane.kube_apiserver(), "disable-admission-plugins")
    assert not any(word.startswith("--enable-admission-plugins") for word in plane.kube_apiserver().argv)


def test_tokens_are_signed_and_checked_with_one_pair_of_keys(plane: ControlPlane) -> None:
    server = plane.kube_apiserver()
    private = _flag(server, "service-account-signing-key-file")
    assert private == _flag(plane.kube_controller_manager(), "service-account-private-key-file")
    assert Path(_flag(server, "service-account-key-file")).read_text().startswith("-----BEGIN PUBLIC KEY")
    assert Path(private).read_text().startswith("-----BEGIN EC PRIVATE KEY")


@pytest.mark.parametrize(
    "controller",
    [
        "resourcequota-controller",
        "namespace-controller",
        "serviceaccount-controller",
        "serviceaccount-token-controller",
        "garbage-collector-controller",
        "pod-garbage-collector-controller",
    ],
)
def test_the_controller_manager_runs(controller: str, plane: ControlPlane) -> None:
    assert controller in _flag(plane.kube_controller_manager(), "controllers").split(",")


def test_no_controller_is_on_by_default(plane: ControlPlane) -> None:
    assert "*" not in _flag(plane.kube_controller_manager(), "controllers")


def test_files_that_flags_name_are_there(plane: ControlPlane) -> None:
    commands = [plane.etcd(), plane.kube_apiserver(), plane.kube_controller_manager(), plane.kwok()]
    named = [word.partition("=")[2] for command in commands for word in command.argv[1:] if "-file=" in word]
    named += [_flag(plane.kube_controller_manager(), "kubeconfig"), _flag(plane.kwok(), "kubeconfig")]
    assert len(named) > 12
    assert [name for name in named if not Path(name).is_file()] == []


def test_the_kubeconfig_leads_to_the_api_server(plane: ControlPlane) -> None:
    config = json.loads(plane.paths.kubeconfig.read_text())
    assert config["clusters"][0]["cluster"]["server"] == plane.url == f"https://127.0.0.1:{plane.api_port}"


def test_kwok_reads_our_stages_and_not_a_persons_own_configuration(plane: ControlPlane) -> None:
    kwok = plane.kwok()
    given = [word.removeprefix("--config=") for word in kwok.argv if word.startswith("--config=")]
    assert given == [str(path) for path in sorted(STAGES.glob("*.yaml"))]
    assert not Path(kwok.env["KWOK_WORKDIR"]).exists()


def test_every_stage_is_well_formed_and_leaves_pods_alone_that_have_run() -> None:
    documents = [d for path in STAGES.glob("*.yaml") for d in yaml.safe_load_all(path.read_text())]
    stages = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "Stage"}
    assert set(stages) == {"node-becomes-ready", "pod-starts", "pod-goes"}
    phases = next(e for e in stages["pod-starts"]["selector"]["matchExpressions"] if e["key"] == ".status.phase")
    assert (phases["operator"], phases["values"]) == ("In", ["Pending"])


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_no_port_is_given_twice_in_a_row_nor_to_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [free_ports(1)[0] for _ in range(50)]
    assert len(set(given)) == 50
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw15")
    assert not {port % 16 for port in given} & {port % 16 for port in free_ports(50)}


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        used = server.getsockname()[1]
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
        monkeypatch.setattr("kubeloop.testing.cluster.paths._PORTS", range(used, used + 1))
        with pytest.raises(Exception, match="fewer than 1 free ports"):
            free_ports(1)


def test_nodes_are_numbered_from_one() -> None:
    assert node_names(3) == ["node-1", "node-2", "node-3"]
    assert node_names(0) == []


def test_a_fake_node_is_kwoks_and_holds_many_pods() -> None:
    node = fake_node("node-1")
    assert node["metadata"]["labels"]["kubernetes.io/arch"] == "amd64"
    assert node["metadata"]["annotations"]["kwok.x-k8s.io/node"] == "fake"
    assert node["status"]["allocatable"]["pods"] == "1000"


def test_the_audit_policy_is_given_to_the_api_server(plane: ControlPlane) -> None:
    assert not [flag for flag in plane.kube_apiserver().argv if "audit" in flag]
    audited = replace(plane, audit_policy=Path("/p.yaml")).kube_apiserver().argv
    assert "--audit-policy-file=/p.yaml" in audited
    assert f"--audit-log-path={plane.paths.audit_log}" in audited
