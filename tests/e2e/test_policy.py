"""deploy/policy.yaml on a real API server: what a tenant forges is refused, what KubeVirt does passes, and ordinary
pods are not concerned."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.bodies import new_name
from lab.namespace import VMIS
from tests.e2e.api import CORE, Api, ApiFailure, Raw
from tests.e2e.headroom.shapes import Shape
from tests.e2e.hostile_tenant import (
    BUDGETS,
    LAUNCHER,
    REFUSED,
    VIRT_CONTROLLER,
    applied_policy,
    budget,
    controller_reference,
    pod,
    tenant_of,
)

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

OVERHEAD = "kubevirt.io/memory-overhead-bytes"
JOB = "kubevirt.io/migrationJobUID"
COLLECTORS = ["system:serviceaccount:kube-system:generic-garbage-collector", "system:kube-controller-manager"]
"""The garbage collector's name, with an account for each controller or one for all."""


@pytest.fixture(scope="module", autouse=True)
def present(api: Api) -> Iterator[None]:
    with applied_policy(api):
        yield


class AttackedNamespace:
    """A namespace without quota, its VM, and who attacks it."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.name = new_name()
        self.path = f"{CORE}/namespaces/{self.name}"
        self.pods = f"{self.path}/pods"
        api.create(f"{CORE}/namespaces", {"metadata": {"name": self.name}})
        vmi = api.create(VMIS.path(self.name), Shape().body("vm1"))
        self.mallory = tenant_of(api, self.name)
        self.kubevirt = api.as_user(VIRT_CONTROLLER, "system:masters")
        self.owner = controller_reference("vm1", vmi["metadata"]["uid"])


@pytest.fixture
def attacked(api: Api) -> Iterator[AttackedNamespace]:
    namespace = AttackedNamespace(api)
    yield namespace
    api.delete(VMIS.path(namespace.name))
    api.delete(namespace.path)


def refused(write: Callable[[str, Raw], Any], path: str, body: Raw, reason: str = REFUSED) -> None:
    with pytest.raises(ApiFailure) as failure:
        write(path, body)
    assert failure.value.status == 403, failure.value
    assert reason in failure.value.message, (body, failure.value.message)


FORGED: dict[str, Callable[[Raw], Raw]] = {
    "a launcher by label": lambda owner: {"labels": LAUNCHER},
    "an attachment by label": lambda owner: {"labels": {"kubevirt.io": "hotplug-disk"}},
    "a migration's pod by label": lambda owner: {"labels": {JOB: "anything"}},
    "a migration's pod by an empty label": lambda owner: {"labels": {JOB: ""}},
    "a pod controlled by the VMI": lambda owner: {"ownerReferences": [owner]},
    "a pod controlled by the VMI in another version": lambda owner: {
        "ownerReferences": [{**owner, "apiVersion": "kubevirt.io/v1alpha3"}]
    },
    "the overhead's annotation": lambda owner: {"annotations": {OVERHEAD: str(10**15)}},
    "an overhead of 5,000 digits": lambda owner: {"annotations": {OVERHEAD: "9" * 5000}},
    "all of it": lambda owner: {"labels": {**LAUNCHER, JOB: "x"}, "ownerReferences": [owner]},
}


def test_what_a_tenant_forges_is_refused_to_every_user(attacked: AttackedNamespace) -> None:
    """Nor by a Deployment or Job: their pods are created by Kubernetes' controllers, which are no KubeVirt."""
    namesake = attacked.api.as_user("system:serviceaccount:x:kubevirt-controller", "system:masters")
    controller = attacked.api.as_user("system:serviceaccount:kube-system:replicaset-controller", "system:masters")
    for metadata in FORGED.values():
        for forger in (attacked.mallory, attacked.api, namesake, controller):
            refused(forger.create, attacked.pods, pod("forged", **metadata(attacked.owner)))
    assert not attacked.api.items(attacked.pods)


def test_a_pod_cannot_become_a_vm_s_afterwards(attacked: AttackedNamespace) -> None:
    path = f"{attacked.pods}/plain"
    attacked.mallory.create(attacked.pods, pod("plain", labels={"app": "web"}))
    for metadata in FORGED.values():
        refused(attacked.mallory.patch, path, {"metadata": metadata(attacked.owner)})
        whole = attacked.mallory.get(path)
        whole["metadata"] |= metadata(attacked.owner)
        refused(attacked.mallory.replace, path, whole)
    assert attacked.api.get(path)["metadata"]["labels"] == {"app": "web"}


@pytest.mark.parametrize("subresource", ["resize", "ephemeralcontainers"])
def test_a_subresource_that_tenants_write_carries_no_mark_in(attacked: AttackedNamespace, subresource: str) -> None:
    """`edit` may write them in some releases; the API server keeps a pod's labels as they are there."""
    path = f"{attacked.pods}/plain"
    plain = attacked.mallory.create(attacked.pods, pod("plain"))
    metadata = FORGED["all of it"](attacked.owner)
    try:
        attacked.api.patch(f"{path}/{subresource}", {"metadata": metadata})
    except ApiFailure:
        pass
    live = attacked.api.get(path)["metadata"]
    assert not live.get("labels")
    assert not live.get("ownerReferences")
    assert live["uid"] == plain["metadata"]["uid"]


CHANGES: dict[str, Raw] = {
    "the app": {"labels": {"kubevirt.io": "hotplug-disk"}},
    "the app goes": {"labels": {"kubevirt.io": None}},
    "the migration": {"labels": {JOB: "another"}},
    "the migration goes": {"labels": {JOB: None}},
    "the overhead": {"annotations": {OVERHEAD: str(10**15)}},
    "the overhead goes": {"annotations": {OVERHEAD: None}},
    "the owner goes": {"ownerReferences": None},
}


def test_a_launcher_s_marks_are_kubevirt_s_alone(attacked: AttackedNamespace) -> None:
    path = f"{attacked.pods}/launcher"
    body = pod(
        "launcher",
        labels={**LAUNCHER, JOB: "one"},
        annotations={OVERHEAD: "300000000"},
        ownerReferences=[attacked.owner],
    )
    attacked.kubevirt.create(attacked.pods, body)
    for change in CHANGES.values():
        refused(attacked.mallory.patch, path, {"metadata": change})
    mallory = attacked.mallory
    mallory.patch(path, {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}, "finalizers": ["a/b"]}})
    mallory.patch(path, {"metadata": {"labels": {"team": None}, "finalizers": None}})
    for change in CHANGES.values():
        attacked.kubevirt.patch(path, {"metadata": change})
    mallory.delete(path, gracePeriodSeconds="0")


SMALLER = {"cpu": "100m", "memory": "64Mi"}
RESIZED: Raw = {"spec": {"containers": [{"name": "compute", "resources": {"limits": SMALLER, "requests": SMALLER}}]}}


@pytest.mark.parametrize("mark", ["a launcher by label", "an attachment by label", "a pod controlled by the VMI"])
def test_a_vm_s_pod_is_resized_by_kubevirt_and_kubelets_alone(attacked: AttackedNamespace, mark: str) -> None:
    """A pod that shrinks leaves room that its migration takes once more."""
    if "pods/resize" not in {resource["name"] for resource in attacked.api.get("/api/v1")["resources"]}:
        pytest.skip("a pod is resized since Kubernetes 1.33")
    body = pod("launcher", **FORGED[mark](attacked.owner))
    attacked.kubevirt.create(attacked.pods, body)
    attacked.kubevirt.create(attacked.pods, pod("plain"))
    path = f"{attacked.pods}/launcher/resize"
    refused(attacked.api.patch, path, RESIZED)
    kubelet = attacked.api.as_user("system:node:node-1", "system:nodes", "system:masters")
    for user in (kubelet, attacked.kubevirt):
        user.patch(path, RESIZED)
    attacked.api.patch(f"{attacked.pods}/plain/resize", RESIZED)


def test_pods_that_carry_no_mark_are_not_concerned(attacked: AttackedNamespace) -> None:
    """KubeVirt's own components and CDI's pods among them; a VMI as an owner that does not control is no mark."""
    ordinary: list[Raw] = [
        {},
        {"labels": {"kubevirt.io": "virt-api"}},
        {"labels": {"cdi.kubevirt.io": "importer", "kubevirt.io/created-by": "x"}},
        {"ownerReferences": [{k: v for k, v in attacked.owner.items() if k != "controller"}]},
        {"ownerReferences": [{**attacked.owner, "controller": False}]},
    ]
    for number, metadata in enumerate(ordinary):
        name = f"plain-{number}"
        attacked.mallory.create(attacked.pods, pod(name, **metadata))
        attacked.mallory.patch(f"{attacked.pods}/{name}", {"metadata": {"labels": {"kubevirt.io": "virt-handler"}}})
        attacked.mallory.delete(f"{attacked.pods}/{name}", gracePeriodSeconds="0")


@pytest.mark.parametrize("user", COLLECTORS)
def test_an_orphan_loses_its_owner_to_the_garbage_collector(attacked: AttackedNamespace, user: str) -> None:
    body = pod("launcher", labels=LAUNCHER, ownerReferences=[attacked.owner])
    attacked.kubevirt.create(attacked.pods, body)
    collector = attacked.api.as_user(user, "system:masters")
    collector.patch(f"{attacked.pods}/launcher", {"metadata": {"ownerReferences": None}})


def test_budgets_are_written_by_those_who_may_update_quotas(attacked: AttackedNamespace) -> None:
    """mallory may write them, and no ResourceQuota."""
    mallory, path = attacked.mallory, BUDGETS.path(attacked.name, "budget")
    no = "only by users who may update resourcequotas in the namespace"
    refused(mallory.create, BUDGETS.path(attacked.name), budget(**{"limits.cpu": "47"}), no)
    refused(mallory.create, BUDGETS.path(attacked.name), budget(), no)
    attacked.api.create(BUDGETS.path(attacked.name), budget(**{"limits.cpu": "2", "pods": "1"}))
    for larger in ({"limits.cpu": "2001m"}, {"limits.cpu": "47"}, {"limits.memory": "1"}, {"pods": "2"}):
        refused(mallory.patch, path, {"spec": {"additionalMigrationResources": larger}}, no)
        whole = mallory.get(path)
        whole["spec"]["additionalMigrationResources"] |= larger
        refused(mallory.replace, path, whole, no)
    attacked.api.patch(path, {"spec": {"additionalMigrationResources": {"limits.cpu": "3", "pods": 2}}})
    # One that is there stays writable.
    for smaller in ({"limits.cpu": "3000m"}, {"limits.cpu": "1"}, {"pods": None}):
        mallory.patch(path, {"spec": {"additionalMigrationResources": smaller}})
    mallory.patch(path, {"metadata": {"labels": {"a": "b"}}})
    mallory.delete(path)
