"""What mutating webhooks put into launcher pods: while deploy/policy.yaml is in force, the target gets as much as its
source has, and headroom's own reserve lets it in."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeloop.api.quantity import Quantity
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually
from lab.namespace import LASTING
from tests.e2e.admin import Admin
from tests.e2e.api import CORE, Api, ApiFailure
from tests.e2e.hostile_tenant import LAUNCHER, VIRT_CONTROLLER, applied_policy, pod
from tests.program import Program, headroom

pytestmark = pytest.mark.cluster

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
NAME = "mesh"
INJECTED = {"istio-injection": "enabled"}
HARD = {"limits.cpu": "3500m", "limits.memory": "3Gi"}
PROXY = (
    'Object.spec.containers{name: "istio-proxy", image: "proxy", resources: Object.spec.containers.resources{'
    'limits: {"cpu": "2", "memory": "1Gi"}, requests: {"cpu": "100m", "memory": "128Mi"}}}'
)
MESH = {
    "failurePolicy": "Fail",
    "reinvocationPolicy": "Never",
    "matchConstraints": {
        "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        "objectSelector": {"matchLabels": LAUNCHER},
        "namespaceSelector": {"matchLabels": INJECTED},
    },
    "mutations": [
        {
            "patchType": "JSONPatch",
            "jsonPatch": {"expression": f'[JSONPatch{{op: "add", path: "/spec/containers/-", value: {PROXY}}}]'},
        }
    ],
}


@pytest.fixture
def mesh(api: Api) -> Iterator[None]:
    """Puts a proxy into every launcher pod of the namespaces with the mesh's label."""
    binding = {"policyName": NAME}
    objects = {"mutatingadmissionpolicies": MESH, "mutatingadmissionpolicybindings": binding}
    for kind, spec in objects.items():
        try:
            api.create(f"{ADMISSION}/{kind}", {"metadata": {"name": NAME}, "spec": spec})
        except ApiFailure as failure:
            if failure.status != 404:
                raise
            pytest.skip("this release has no MutatingAdmissionPolicy")
    yield
    for kind in objects:
        api.delete(f"{ADMISSION}/{kind}/{NAME}")


@pytest.fixture
def guarded(cluster: Cluster, api: Api, own_kubeconfig: Path) -> Iterator[Program]:
    with (
        applied_policy(api),
        headroom(cluster, "controller", "--webhook", "--kubeconfig", str(own_kubeconfig)) as process,
    ):
        yield process.until(lambda: "deploy/policy.yaml are in force" in process.text())


@pytest.mark.usefixtures("mesh", "guarded")
async def test_a_vm_with_a_meshs_sidecar_migrates(admin: Admin, api: Api) -> None:
    namespace = await admin.namespace(HARD)
    await namespace.mark(labels=INJECTED)
    pods, kubevirt = (
        f"{CORE}/namespaces/{namespace.name}/pods?dryRun=All",
        api.as_user(VIRT_CONTROLLER, "system:masters"),
    )

    def injects() -> bool:
        """Reports whether the API server goes by the policy already."""
        return len(kubevirt.create(pods, pod("probe", labels=LAUNCHER))["spec"]["containers"]) == 2

    await asyncio.to_thread(eventually, injects, 20)
    await namespace.machine(cpu="1", memory="1Gi")
    assert (await namespace.used())["limits.cpu"] == Quantity.parse("3015m")
    migration = await namespace.migrate(running=LASTING)
    await namespace.until_phase(migration, "Running")
    assert (await namespace.hard())["limits.cpu"] == Quantity.parse("6515m")
    await namespace.hurry(migration)
    await namespace.succeed(migration)
    await namespace.settle(HARD)
