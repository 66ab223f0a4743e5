"""A tenant with RBAC `edit` of one namespace, and deploy/policy.yaml, on the embedded cluster."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kubeloop.testing.polling import eventually
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS as BUDGETS
from tests.e2e.accounts import RBAC, apply, documents, remove
from tests.e2e.api import CORE, Api, ApiFailure, Raw

POLICY = Path(__file__).parents[2] / "deploy" / "policy.yaml"
MALLORY = "mallory"
REFUSED = "only KubeVirt"
BUDGETEER: dict[str, Raw] = {
    "clusterroles": {
        "metadata": {"name": "budgeteer"},
        "rules": [{"apiGroups": [BUDGETS.group], "resources": [BUDGETS.plural], "verbs": ["create"]}],
    },
    "clusterrolebindings": {
        "metadata": {"name": "budgeteer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "budgeteer"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "budgeteer"}],
    },
}
"""A user who may create migration budgets and nothing else."""
LAUNCHER = {"kubevirt.io": "virt-launcher"}
VIRT_CONTROLLER = "system:serviceaccount:kubevirt:kubevirt-controller"


@contextlib.contextmanager
def applied_policy(api: Api) -> Iterator[None]:
    """The policy, while the API server goes by all of it: it reads policies and bindings anew once a second, so that
    one binding can be in force a second before the next, and a second after its deletion."""
    plain = f"{CORE}/namespaces/default/pods/plain"
    api.create(f"{CORE}/namespaces/default/pods", pod("plain"))
    for path, body in BUDGETEER.items():
        api.create(f"{RBAC}/{path}", body)
    apply(api, documents(POLICY))
    try:
        eventually(lambda: all(_in_force(api)), 20)
        yield
    finally:
        remove(api, documents(POLICY))
        eventually(lambda: not any(_in_force(api)), 20)
        api.delete(plain, gracePeriodSeconds="0")
        for path, body in BUDGETEER.items():
            api.delete(f"{RBAC}/{path}/{body['metadata']['name']}")


def _in_force(api: Api) -> list[bool]:
    """Reports of each policy, in the order of the file, whether it refuses a write; nothing is written."""
    headroom = api.as_user("system:serviceaccount:headroom-system:headroom", "system:masters")
    budgeteer = api.as_user("budgeteer", "system:authenticated")
    default, mark = f"{CORE}/namespaces/default", {"metadata": {"labels": LAUNCHER}}
    return [
        _refused(lambda: api.create(f"{default}/pods?dryRun=All", pod("probe", labels=LAUNCHER))),
        _refused(lambda: api.patch(f"{default}/pods/plain?dryRun=All", mark)),
        _refused(lambda: budgeteer.create(f"{BUDGETS.path('default')}?dryRun=All", budget())),
        _refused(lambda: headroom.patch(f"{default}?dryRun=All", mark)),
    ]


def _refused(write: Callable[[], Raw]) -> bool:
    try:
        write()
    except ApiFailure as failure:
        if "ValidatingAdmissionPolicy" not in failure.message:
            raise
        return True
    return False


def tenant_of(api: Api, namespace: str) -> Api:
    """Requests of a tenant: the cluster's own role `edit` in one namespace, and what KubeVirt's releases before the
    role kubevirt.io:migrate add to it; and migration budgets, by an administrator's mistake."""
    path = f"{RBAC}/namespaces/{namespace}"
    everything = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
    kinds = ["virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations"]
    rules = [
        {"apiGroups": ["kubevirt.io"], "resources": kinds, "verbs": everything},
        {"apiGroups": [BUDGETS.group], "resources": [BUDGETS.plural], "verbs": everything},
    ]
    api.create(f"{path}/roles", {"metadata": {"name": "vms"}, "rules": rules})
    for kind, role in (("ClusterRole", "edit"), ("Role", "vms")):
        body: Raw = {
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": MALLORY}],
        }
        api.create(f"{path}/rolebindings", body)
    mallory = api.as_user(MALLORY, "system:authenticated")
    eventually(lambda: _may(mallory, f"{CORE}/namespaces/{namespace}/pods"))
    return mallory


def small_claim(name: str) -> Raw:
    """A PersistentVolumeClaim as large as that of a VM's state."""
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Mi"}}}
    return {"metadata": {"name": name}, "spec": claim}


def pod(name: str, cpu: str = "1", memory: str = "64Mi", **metadata: Any) -> Raw:
    """A pod that quota counts; on a node, so that it runs."""
    resources = {"limits": {"cpu": cpu, "memory": memory}}
    container = {"name": "compute", "image": "none", "resources": resources}
    return {
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [container], "automountServiceAccountToken": False},
    }


def budget(**additional: str) -> Raw:
    """A VirtualMachineMigrationResourceQuota."""
    return {
        "apiVersion": BUDGETS.api_version,
        "kind": BUDGETS.kind,
        "metadata": {"name": "budget"},
        "spec": {"additionalMigrationResources": additional},
    }


def controller_reference(name: str, uid: str) -> Raw:
    """The owner reference that KubeVirt writes on a launcher pod."""
    kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance"}
    return {**kind, "name": name, "uid": uid, "controller": True}


def _may(api: Api, path: str) -> bool:
    try:
        api.items(path)
    except ApiFailure:
        return False
    return True
