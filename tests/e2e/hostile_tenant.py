"""A tenant with RBAC `edit` of one namespace, and deploy/policy.yaml, on the embedded cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.api import CORE, Api, ApiFailure, Raw
from tests.polling import eventually

POLICY = Path(__file__).parents[2] / "deploy" / "policy.yaml"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
MALLORY = "mallory"
REFUSED = "only KubeVirt"
VIRT_CONTROLLER = "system:serviceaccount:kubevirt:kubevirt-controller"


def policy() -> list[Raw]:
    """The objects of deploy/policy.yaml."""
    return list(yaml.safe_load_all(POLICY.read_text("utf-8")))


@contextlib.contextmanager
def applied_policy(api: Api) -> Iterator[None]:
    """The policy, once the API server goes by it (it compiles new ones within a second)."""
    for body in policy():
        api.create(f"{ADMISSION}/{PLURALS[body['kind']]}", body)
    try:
        made: list[str] = []

        def refused() -> bool:
            name = f"probe-{len(made)}"
            made.append(name)
            try:
                api.create(
                    f"{CORE}/namespaces/default/pods", pod(name, labels={"kubevirt.io": "virt-launcher"})
                )
            except ApiFailure as failure:
                return REFUSED in failure.message
            api.delete(f"{CORE}/namespaces/default/pods/{name}", gracePeriodSeconds="0")
            return False

        eventually(refused, 20)
        yield
    finally:
        for body in policy():
            api.delete(f"{ADMISSION}/{PLURALS[body['kind']]}/{body['metadata']['name']}")


def tenant_of(api: Api, namespace: str) -> Api:
    """Requests of a tenant: the cluster's own role `edit` in one namespace, and what KubeVirt's releases before the
    role kubevirt.io:migrate add to it."""
    where = f"{RBAC}/namespaces/{namespace}"
    everything = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
    kinds = ["virtualmachines", "virtualmachineinstances", "virtualmachineinstancemigrations"]
    rules = [{"apiGroups": ["kubevirt.io"], "resources": kinds, "verbs": everything}]
    api.create(f"{where}/roles", {"metadata": {"name": "vms"}, "rules": rules})
    for kind, role in (("ClusterRole", "edit"), ("Role", "vms")):
        body: Raw = {
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": MALLORY}],
        }
        api.create(f"{where}/rolebindings", body)
    mallory = api.as_user(MALLORY, "system:authenticated")
    eventually(lambda: _may(mallory, f"{CORE}/namespaces/{namespace}/pods"))
    return mallory


def pod(name: str, cpu: str = "1", memory: str = "64Mi", **metadata: Any) -> Raw:
    """A pod that quota counts; on a node, so that it runs."""
    resources = {"limits": {"cpu": cpu, "memory": memory}}
    container = {"name": "compute", "image": "none", "resources": resources}
    return {
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [container], "automountServiceAccountToken": False},
    }


def controller_reference(
    owner: Raw, *, kind: str = "VirtualMachineInstance", version: str = "kubevirt.io/v1"
) -> Raw:
    """As KubeVirt writes it on a launcher pod."""
    metadata = owner["metadata"]
    return {
        "apiVersion": version,
        "kind": kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def _may(api: Api, path: str) -> bool:
    try:
        api.items(path)
    except ApiFailure:
        return False
    return True
