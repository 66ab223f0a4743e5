"""deploy/rbac.yaml is enough: the demo with headroom as its service account, and nothing forbidden in its log."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.cluster import Cluster
from lab.cluster import EmbeddedCluster
from lab.demo.checks import Report
from lab.demo.driver import Driver
from lab.demo.run import run_steps, watching_of
from lab.demo.scenario import SCENARIO
from lab.record import Record

ROOT = Path(__file__).parents[3]
MANIFESTS = [ROOT / "deploy" / name for name in ("namespace.yaml", "rbac.yaml")]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{{namespace}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{namespace}}/rolebindings",
}
TOKEN = "/api/v1/namespaces/headroom-system/serviceaccounts/headroom/token"


def manifests() -> list[dict[str, Any]]:
    return [body for file in MANIFESTS for body in yaml.safe_load_all(file.read_text("utf-8"))]


async def post(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        await client.transport.request("POST", path, body=json.dumps(body).encode())
    )
    return answer


async def account(client: Client, kubeconfig: Path, folder: Path) -> Path:
    """Apply the manifests; the kubeconfig of the service account."""
    for body in manifests():
        try:
            path = PATHS[body["kind"]].format(namespace=body["metadata"].get("namespace", ""))
            await post(client, path, body)
        except AlreadyExists:
            pass
    issued = await post(client, TOKEN, {"spec": {"expirationSeconds": 3600}})
    return with_token(kubeconfig, issued["status"]["token"], folder / "kubeconfig")


def with_token(kubeconfig: Path, token: str, own: Path) -> Path:
    """The same cluster, another user."""
    content = json.loads(kubeconfig.read_text("utf-8"))
    content["users"][0]["user"] = {"token": token}
    content["contexts"][0]["context"]["namespace"] = "headroom-system"
    own.write_text(json.dumps(content), "utf-8")
    return own


def test_every_binding_is_for_a_service_account_that_is_made() -> None:
    found = manifests()
    made = {body["metadata"]["name"] for body in found if body["kind"] == "ServiceAccount"}
    assert made == {"headroom", "headroom-webhook"}
    subjects = [subject for body in found for subject in body.get("subjects", ())]
    everybody = [subject for subject in subjects if subject["kind"] == "Group"]
    assert [subject["name"] for subject in everybody] == ["system:authenticated"]
    accounts = [subject for subject in subjects if subject not in everybody]
    assert {subject["name"] for subject in accounts} == made
    assert {subject["namespace"] for subject in accounts} == {"headroom-system"}


def test_every_user_may_read_how_headroom_runs_and_nothing_else() -> None:
    """Mode, estimate and version, and whether it runs, for the reports."""
    (role,) = [
        body
        for body in manifests()
        if body["kind"] == "Role" and body["metadata"]["name"] == "headroom-installation"
    ]
    assert role["rules"] == [
        {"apiGroups": [group], "resources": [kind], "resourceNames": ["headroom"], "verbs": ["get"]}
        for group, kind in (("", "configmaps"), ("coordination.k8s.io", "leases"))
    ]


def test_nothing_is_allowed_wholesale() -> None:
    rules = [rule for body in manifests() for rule in body.get("rules", ())]
    assert rules
    for rule in rules:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.mark.cluster
async def test_the_demo_with_no_more_rights_than_these(cluster: Cluster, tmp_path: Path) -> None:
    began = time.monotonic()
    seen, report = Record(lambda: time.monotonic() - began), Report()
    async with (
        Client(load_config(str(cluster.kubeconfig))) as client,
        watching_of(client, seen) as watching,
    ):
        own = await account(client, cluster.kubeconfig, tmp_path)
        driver = Driver(cluster, client, seen, watching, report, speed=8.0, kubeconfig=own)
        await run_steps(driver, [step for step in SCENARIO if step.letter in "ab"])
        await driver.stop_headroom()
    log = processes.log_path(cluster.directory, "headroom").read_text("utf-8")
    assert [str(check) for check in report.checks if not check.ok] == []
    assert len(report.checks) > 10
    assert "forbidden" not in log.lower()
