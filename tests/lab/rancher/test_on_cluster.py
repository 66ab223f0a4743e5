"""Rancher's stand-in on a real control plane."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden, Invalid
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.cluster import Cluster
from lab.cluster import EmbeddedCluster, Options
from pkg.util.quantity import Quantity
from tests.lab.kubevirt.live import QUOTAS, SEED, Body, Live

pytestmark = pytest.mark.cluster

RESTART = "testcluster.headroom.harvesterhci.io/restart-agent"
BASE = {"limits.cpu": "3", "limits.memory": "5000Mi"}
RAISED = {"limits.cpu": "5", "limits.memory": "9980344313"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with EmbeddedCluster(options=Options(kwok=False, kubevirt=False, rancher=True, nodes=0)) as cluster:
        yield cluster


@pytest.fixture
async def live(cluster: Cluster) -> AsyncIterator[Live]:
    """A namespace whose quota Rancher has written."""
    async with Live(cluster, SEED) as live:
        await live.quota(hard_is(BASE))
        yield live


def hard_is(hard: dict[str, str]) -> Any:
    """Whether a quota has exactly these limits, by value."""
    wanted = {name: Quantity.parse(text) for name, text in hard.items()}
    return lambda quota: (
        {name: Quantity.parse(text) for name, text in quota["spec"]["hard"].items()} == wanted
    )


async def raise_quota(live: Live) -> Body:
    """Scale the quota as headroom does, with an annotation of its own."""
    name = (await live.quota())["metadata"]["name"]
    note = {"metadata": {"annotations": {"harvesterhci.io/migrating-vm1": "{}"}}}
    return await live.patch(QUOTAS, name, {**note, "spec": {"hard": RAISED}})


async def test_a_quota_that_is_deleted_comes_back_with_the_next_restart(cluster: Cluster, live: Live) -> None:
    await live.delete(QUOTAS, (await live.quota())["metadata"]["name"])
    processes.find(cluster.directory, "rancher").signal(signal.SIGHUP)
    await live.quota(hard_is(BASE))


async def test_a_restarted_process_puts_the_quota_back(cluster: Cluster, live: Live) -> None:
    await raise_quota(live)
    cluster.restart("rancher")
    after = await live.quota(hard_is(BASE))
    assert "harvesterhci.io/migrating-vm1" in after["metadata"]["annotations"]


async def test_a_raised_quota_stays_until_the_agent_restarts(cluster: Cluster, live: Live) -> None:
    await raise_quota(live)
    # Whatever else happens to the namespace does not bring Rancher back: this one is rendered after it.
    path = f"/api/v1/namespaces/{live.namespace}"
    await live.send("PATCH", path, {"metadata": {"labels": {"touched": "true"}}}, patch=True)
    async with Live(cluster, SEED) as other:
        await other.quota(hard_is(BASE))
    assert hard_is(RAISED)(await live.quota())
    await restart_by_annotation(live, "first")
    await live.quota(hard_is(BASE))


async def restart_by_annotation(live: Live, value: str) -> None:
    path = "/api/v1/namespaces/cattle-system"
    body = {"metadata": {"name": "cattle-system", "annotations": {RESTART: value}}}
    names = [item["metadata"]["name"] for item in (await live.send("GET", "/api/v1/namespaces"))["items"]]
    if "cattle-system" in names:
        await live.send("PATCH", path, body, patch=True)
    else:
        await live.send("POST", "/api/v1/namespaces", body)


async def test_fifty_restarts_in_a_row_are_fifty_restarts(cluster: Cluster, live: Live) -> None:
    for number in range(50):
        await raise_quota(live)
        await restart_by_annotation(live, f"number {number}")
        await live.quota(hard_is(BASE))


ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICY = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "no-rancher"}}
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["resourcequotas"]}
RANCHER = "system:serviceaccount:cattle-system:rancher"


async def test_admission_sees_rancher_as_rancher(cluster: Cluster, live: Live) -> None:
    """A policy that refuses what Rancher, and no other client, writes."""
    spec = {
        "matchConstraints": {"resourceRules": [RULE]},
        "validations": [{"expression": f"request.userInfo.username != '{RANCHER}'"}],
    }
    binding = {"policyName": "no-rancher", "validationActions": ["Deny"]}
    policies, bindings = (
        f"{ADMISSION}/validatingadmissionpolicies",
        f"{ADMISSION}/validatingadmissionpolicybindings",
    )
    await live.send("POST", policies, {**POLICY, "kind": "ValidatingAdmissionPolicy", "spec": spec})
    await live.send("POST", bindings, {**POLICY, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding})
    try:
        await until_refused(cluster, live)
        await raise_quota(live)
        await restart_by_annotation(live, "refused")
        await logged(cluster, "denied request")
        assert hard_is(RAISED)(await live.quota())
    finally:
        await live.send("DELETE", f"{bindings}/no-rancher")
        await live.send("DELETE", f"{policies}/no-rancher")
    await live.quota(hard_is(BASE))


async def logged(cluster: Cluster, text: str) -> None:
    """Until Rancher's log has it."""
    log = processes.log_path(cluster.directory, "rancher")
    for _ in range(400):
        if text in log.read_text("utf-8"):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(log.read_text("utf-8"))


async def until_refused(cluster: Cluster, live: Live) -> None:
    """The API server takes a moment to act by a new policy."""
    config = load_config(str(cluster.kubeconfig)).impersonate(RANCHER, ["system:masters"])
    name = (await live.quota())["metadata"]["name"]
    async with Client(config) as client:
        for number in range(400):
            note = {"metadata": {"annotations": {"try": str(number)}}}
            try:
                await client.resource(RESOURCE_QUOTAS).merge_patch(note, name=name, namespace=live.namespace)
            except (Forbidden, Invalid):
                return
            await asyncio.sleep(0.05)
    raise AssertionError("the policy never took effect")
