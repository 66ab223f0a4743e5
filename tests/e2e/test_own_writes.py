"""What a thief of headroom's token may write: nothing but what headroom itself writes (the policies headroom-own-*)."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from kubeloop.testing.polling import eventually
from lab.namespace import VMIS, VMS
from tests.e2e.accounts import BY_HAND, NAMESPACE, apply, documents, forget
from tests.e2e.api import CORE, Api, ApiFailure, Raw
from tests.e2e.conftest import MakeTenant
from tests.e2e.hostile_tenant import LAUNCHER, VIRT_CONTROLLER, applied_policy, pod
from tests.e2e.tenant import DEFAULT, OWNER, SKIP, Tenant

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:headroom"
RANCHER = "field.cattle.io/resourceQuota"
RECORD = "headroom.harvesterhci.io/request"
ORIGINALS = "headroom.harvesterhci.io/originals"
ENTRY = "harvesterhci.io/migrating-vm1"
JOB = "kubevirt.io/migrationJobUID"


def labelled(**values: str | None) -> Raw:
    return {"metadata": {"labels": values}}


def annotated(values: dict[str, str | None], **metadata: Any) -> Raw:
    return {"metadata": {"annotations": values}, **metadata}


def limited(**limits: str) -> Raw:
    return {"spec": {"hard": {name.replace("_", "."): value for name, value in limits.items()}}}


@pytest.fixture
async def attacked(api: Api, tenant: MakeTenant) -> AsyncIterator[Tenant]:
    """A tenant with a VM, a managed quota and another one, while the policies are in force."""
    namespace: Tenant = await tenant()
    await namespace.vm()
    quotas = f"{CORE}/namespaces/{namespace}/resourcequotas"
    api.create(quotas, {"metadata": {"name": "theirs", "labels": {"a": "b"}}, **limited(pods="17")})
    with applied_policy(api):
        yield namespace


ON_NAMESPACE: dict[str, tuple[Raw, bool]] = {
    "the label of namespaces that hold added headroom": (
        labelled(**{"headroom.harvesterhci.io/holding": "true"}),
        True,
    ),
    "the same label goes": (labelled(**{"headroom.harvesterhci.io/holding": None}), True),
    "another label": (labelled(**{"pod-security.kubernetes.io/enforce": "privileged"}), False),
    "another annotation": (annotated({"a": "b"}), False),
    "what Rancher is asked for, without the record": (annotated({RANCHER: "{}"}), False),
    "what Rancher is asked for, with the record": (annotated({RANCHER: "{}", RECORD: "{}"}), True),
    "both go back": (annotated({RANCHER: '{"limit":{}}', RECORD: None}), True),
    "what a person caps": (annotated({"headroom.harvesterhci.io/max-extra": "{}"}), False),
    "a finalizer": ({"metadata": {"finalizers": ["a/b"]}}, False),
}
ON_VM: dict[str, tuple[Raw, bool]] = {
    "its timestamp": (annotated({"harvesterhci.io/timestamp": "2026-01-01T00:00:00Z"}), True),
    "why it was halted": (
        annotated({"harvesterhci.io/insufficient-resource-quota": "x"}, spec={"runStrategy": "Halted"}),
        True,
    ),
    "it is started": ({"spec": {"runStrategy": "Always"}}, False),
    "another annotation": (annotated({"a": "b"}), False),
    "its template": ({"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}, False),
    "its labels": (labelled(a="b"), False),
}
ON_VMI: dict[str, tuple[Raw, bool]] = {
    "what the UI reads": (
        annotated({"harvesterhci.io/migrationUID": "u", "harvesterhci.io/migrationState": "Migrating"}),
        True,
    ),
    "code for the next launcher": (annotated({"hooks.kubevirt.io/hookSidecars": "[]"}), False),
    "its phase": ({"status": {"phase": "Failed"}}, False),
    "its node": ({"status": {"nodeName": "node-9"}}, False),
    "a migration state": (
        {"status": {"migrationState": {"migrationUid": "u", "completed": True, "abortStatus": "Succeeded"}}},
        False,
    ),
    "empty fields of its status": ({"status": {"guestOSInfo": {}}}, True),
    "its specification": ({"spec": {"nodeSelector": {"a": "b"}}}, False),
    "its labels": (labelled(**{"kubevirt.io/nodeName": "node-9"}), False),
    "an owner": (
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}},
        False,
    ),
}
ADDED: dict[str, str | None] = {ENTRY: "{}", SKIP: "true", OWNER: "headroom"}
ON_MANAGED_QUOTA: dict[str, tuple[Raw, bool]] = {
    "an entry with its raise": (annotated(ADDED, **limited(limits_cpu="5")), True),
    "the end of it": (annotated(dict.fromkeys(ADDED), **limited(limits_cpu="3")), True),
    "what a person caps": (annotated({"headroom.harvesterhci.io/max-extra": "{}"}), False),
    "another annotation": (annotated({"a": "b"}), False),
    "it is no longer Rancher's": (labelled(**{DEFAULT: None}), False),
    "a finalizer": ({"metadata": {"finalizers": ["a/b"]}}, False),
}
ON_OTHER_QUOTA: dict[str, tuple[Raw, bool]] = {
    "it is raised": (limited(pods="70"), False),
    "it is lowered": (limited(pods="0"), False),
    "it gets an annotation of headroom's": (annotated({OWNER: "headroom"}), False),
    "it gets an entry with its raise": (annotated({ENTRY: "{}"}, **limited(pods="70")), False),
    "it becomes a managed one": (labelled(**{"headroom.harvesterhci.io/managed": "true"}), False),
    "it gets another label": (labelled(a="c"), False),
    "it is raised for a window, with the record": (annotated({ORIGINALS: "{}"}, **limited(pods="18")), True),
    "it is restored": (annotated({ORIGINALS: None}, **limited(pods="17")), True),
}


async def test_of_existing_objects_it_changes_what_is_its_own(api: Api, attacked: Tenant) -> None:
    thief, core = api.as_user(ACCOUNT, "system:masters"), f"{CORE}/namespaces/{attacked}"
    tables = {
        core: ON_NAMESPACE,
        VMS.path(attacked.name, "vm1"): ON_VM,
        VMIS.path(attacked.name, "vm1"): ON_VMI,
        f"{core}/resourcequotas/default-abc": ON_MANAGED_QUOTA,
        f"{core}/resourcequotas/theirs": ON_OTHER_QUOTA,
    }
    for path, table in tables.items():
        passed = {name: not refused(thief, "PATCH", path, patch) for name, (patch, _) in table.items()}
        assert passed == {name: is_allowed for name, (_, is_allowed) in table.items()}, path


def metadata(name: str, **fields: Any) -> Raw:
    return {"metadata": {"name": name, **fields}}


async def test_it_creates_nothing_but_its_own_objects(api: Api, attacked: Tenant) -> None:
    apply(api, documents(*BY_HAND))
    forget(api)
    thief, home = api.as_user(ACCOUNT, "system:masters"), f"{CORE}/namespaces/{NAMESPACE}"
    token = {
        "type": "kubernetes.io/service-account-token",
        **metadata("headroom-webhook-tls", annotations={"kubernetes.io/service-account.name": "default"}),
    }
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    request = api.get(f"{CORE}/namespaces/{attacked}")["metadata"]["annotations"][RANCHER]
    granted = {**quota("default-xyz", {DEFAULT: "true"}, limits_cpu="3")}
    granted["metadata"]["annotations"] = {RANCHER: request}
    creations: dict[str, tuple[str, Raw, bool]] = {
        "a quota that stops a namespace": (
            f"{CORE}/namespaces/kube-system/resourcequotas",
            quota("x", pods="0"),
            False,
        ),
        "the same with Rancher's label": (
            f"{CORE}/namespaces/kube-system/resourcequotas",
            quota("x", {DEFAULT: "true"}, pods="0"),
            False,
        ),
        "the quota that a namespace asks for": (f"{CORE}/namespaces/{attacked}/resourcequotas", granted, True),
        "its Secret": (f"{home}/secrets", {"type": "Opaque", **metadata("headroom-webhook-tls")}, True),
        "a token of another account, by its Secret's name": (f"{home}/secrets", token, False),
        "another Secret": (f"{home}/secrets", {"type": "Opaque", **metadata("another")}, False),
        "a Secret without a name": (f"{home}/secrets", {"type": "Opaque", "metadata": {"generateName": "a"}}, False),
        "its ConfigMap": (f"{home}/configmaps", metadata("headroom"), True),
        "another ConfigMap": (f"{home}/configmaps", metadata("kube-root-ca.crt"), False),
        "its Lease": (leases, metadata("headroom"), True),
        "another Lease": (leases, metadata("mtq-controller"), False),
    }
    passed = {
        name: not refused(thief, "POST", f"{path}?dryRun=All", body) for name, (path, body, _) in creations.items()
    }
    assert passed == {name: is_allowed for name, (*_, is_allowed) in creations.items()}


def quota(name: str, marks: dict[str, str] | None = None, **limits: str) -> Raw:
    return {**metadata(name, labels=marks or {}), **limited(**limits)}


UNPAUSED = [{"type": "kubevirt.io/virtual-machine-unpaused", "status": "True", "reason": "NotPaused"}]
"""virt-controller's, on the pod in which a VM lives."""


@dataclass
class Launcher:
    """A launcher pod of a VM that lives on the node `home`; its migrations that ended are called as they ended."""

    is_deleted: bool
    job: str = ""
    node: str = "away"
    conditions: list[Raw] = field(default_factory=list)
    is_known: bool = True
    """Its VM is named on it."""


LAUNCHERS = {
    "no-target": Launcher(False),
    "leftover-of-a-migration-long-ago": Launcher(True, "long-ago"),
    "target-in-which-the-vm-lives": Launcher(False, "long-ago", "home"),
    "target-that-kubevirt-took-for-the-vms": Launcher(False, "long-ago", conditions=UNPAUSED, is_known=False),
}
STATES: dict[str, tuple[Raw, bool]] = {
    "under-way": ({}, False),
    "succeeded": ({"completed": True}, False),
    "failed": ({"completed": True, "failed": True}, True),
    "aborted": ({"completed": True, "abortStatus": "Succeeded"}, True),
}
"""What a VMI says of its migration, and whether a target of that one is deleted."""


async def test_it_deletes_leftovers_and_no_pod_in_which_a_vm_lives(api: Api, attacked: Tenant) -> None:
    kubevirt, thief = api.as_user(VIRT_CONTROLLER, "system:masters"), api.as_user(ACCOUNT, "system:masters")
    pods, path = f"{CORE}/namespaces/{attacked}/pods", VMIS.path(attacked.name, "vm1")
    uid = api.patch(path, {"status": {"nodeName": "home"}})["metadata"]["uid"]
    launchers = LAUNCHERS | {name: Launcher(is_deleted, name) for name, (_, is_deleted) in STATES.items()}
    for name, launcher in launchers.items():
        marks = (
            LAUNCHER
            | ({"kubevirt.io/created-by": uid} if launcher.is_known else {})
            | ({JOB: launcher.job} if launcher.job else {})
        )
        body = pod(name, "10m", "1Mi", labels=marks)
        kubevirt.create(pods, {**body, "spec": {**body["spec"], "nodeName": launcher.node}})
        if launcher.conditions:
            api.patch(f"{pods}/{name}/status", {"status": {"conditions": launcher.conditions}})
    # The API server reads VMIs for the policy by a watch.
    eventually(lambda: refused(thief, "DELETE", f"{pods}/target-in-which-the-vm-lives?dryRun=All"), 20)
    deleted = {name: not refused(thief, "DELETE", f"{pods}/{name}?gracePeriodSeconds=0") for name in LAUNCHERS}
    assert deleted == {name: launcher.is_deleted for name, launcher in LAUNCHERS.items()}
    for name, (state, is_deleted) in STATES.items():
        api.patch(path, {"status": {"migrationState": None}})
        api.patch(path, {"status": {"migrationState": {"migrationUid": name, **state}}})
        eventually(partial(is_refused_as, thief, f"{pods}/{name}?dryRun=All", not is_deleted), 20)
    for name in launchers:
        api.delete(f"{pods}/{name}", gracePeriodSeconds="0")


def is_refused_as(thief: Api, path: str, is_expected: bool) -> bool:
    return refused(thief, "DELETE", path) is is_expected


def refused(api: Api, method: str, path: str, body: Raw | None = None) -> bool:
    """Expects a refusal by one of the own policies; any other failure is the test's."""
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        api.send(method, path, body, content)
    except ApiFailure as failure:
        if "ValidatingAdmissionPolicy 'headroom-own-" not in failure.message:
            raise
        return True
    return False
