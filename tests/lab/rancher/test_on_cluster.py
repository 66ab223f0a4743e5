"""Rancher's stand-in on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually
from lab.bodies import new_name
from lab.cluster import EmbeddedCluster, Options
from lab.rancher.agent import Agent
from pkg.util.quantity import Quantity
from tests.e2e.api import CORE, ApiFailure
from tests.lab.kubevirt.live import QUOTAS, SEED, Live

pytestmark = pytest.mark.cluster

NAMESPACES = f"{CORE}/namespaces"
RESTART = "testcluster.headroom.harvesterhci.io/restart-agent"
BASE = {"limits.cpu": "3", "limits.memory": "5000Mi"}
RAISED = {"limits.cpu": "5", "limits.memory": "9980344313"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with EmbeddedCluster(options=Options(kwok=False, kubevirt=False, rancher=True, nodes=0)) as cluster:
        yield cluster


@pytest.fixture
def live(cluster: Cluster) -> Live:
    """A namespace whose quota Rancher has written."""
    live = Live(cluster, SEED)
    live.quota(hard_is(BASE))
    return live


def hard_is(hard: dict[str, str]) -> Any:
    """Whether a quota has exactly these limits, by value."""
    wanted = {name: Quantity.parse(text) for name, text in hard.items()}
    return lambda quota: (
        {name: Quantity.parse(text) for name, text in quota["spec"]["hard"].items()} == wanted
    )


def raise_quota(live: Live) -> None:
    """Scale the quota as headroom does, with an annotation of its own."""
    note = {"metadata": {"annotations": {"harvesterhci.io/migrating-vm1": "{}"}}}
    live.patch_quota({**note, "spec": {"hard": RAISED}})


def test_a_quota_that_is_deleted_comes_back_with_the_next_restart(cluster: Cluster, live: Live) -> None:
    live.delete(QUOTAS, live.quota()["metadata"]["name"])
    Agent(cluster.directory).restart()
    live.quota(hard_is(BASE))


def test_a_restarted_process_puts_the_quota_back(cluster: Cluster, live: Live) -> None:
    raise_quota(live)
    cluster.restart("rancher")
    after = live.quota(hard_is(BASE))
    assert "harvesterhci.io/migrating-vm1" in after["metadata"]["annotations"]


def test_a_raised_quota_stays_until_the_agent_restarts(cluster: Cluster, live: Live) -> None:
    raise_quota(live)
    # Whatever else happens to the namespace does not bring Rancher back: this one is rendered after it.
    live.api.patch(f"{NAMESPACES}/{live.namespace}", {"metadata": {"labels": {"touched": "true"}}})
    Live(cluster, SEED).quota(hard_is(BASE))
    assert hard_is(RAISED)(live.quota())
    restart_by_annotation(live, "first")
    live.quota(hard_is(BASE))


def restart_by_annotation(live: Live, value: str) -> None:
    body = {"metadata": {"name": "cattle-system", "annotations": {RESTART: value}}}
    if live.api.find(f"{NAMESPACES}/cattle-system"):
        live.api.patch(f"{NAMESPACES}/cattle-system", body)
    else:
        live.api.create(NAMESPACES, body)


def test_fifty_restarts_in_a_row_are_fifty_restarts(cluster: Cluster, live: Live) -> None:
    for number in range(50):
        raise_quota(live)
        restart_by_annotation(live, f"number {number}")
        live.quota(hard_is(BASE))


ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICY = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "no-rancher"}}
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["resourcequotas"]}
RANCHER = "system:serviceaccount:cattle-system:rancher"


def test_admission_sees_rancher_as_rancher(cluster: Cluster, live: Live) -> None:
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
    live.api.create(policies, {**POLICY, "kind": "ValidatingAdmissionPolicy", "spec": spec})
    live.api.create(bindings, {**POLICY, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding})
    try:
        eventually(lambda: is_refused(live))
        raise_quota(live)
        restart_by_annotation(live, "refused")
        log = processes.log_path(cluster.directory, "rancher")
        eventually(lambda: "denied request" in log.read_text("utf-8"))
        assert hard_is(RAISED)(live.quota())
    finally:
        live.api.delete(f"{bindings}/no-rancher")
        live.api.delete(f"{policies}/no-rancher")
    live.quota(hard_is(BASE))


def is_refused(live: Live) -> bool:
    """The API server takes a moment to act by a new policy."""
    name = live.quota()["metadata"]["name"]
    note = {"metadata": {"annotations": {"try": new_name()}}}
    try:
        live.api.as_user(RANCHER, "system:masters").patch(QUOTAS.path(live.namespace, name), note)
    except ApiFailure as failure:
        return failure.status in (403, 422)
    return False
