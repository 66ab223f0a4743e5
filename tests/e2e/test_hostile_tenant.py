"""A tenant with `edit` of one namespace gains nothing, with deploy/policy.yaml and without it.

The namespace has a quota of Rancher's, KubeVirt is played by the stand-in, and headroom runs with its defaults.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubeloop.testing.polling import eventually
from lab.bodies import migration
from pkg.util.quantity import Quantity
from tests.e2e.api import Api, ApiFailure, Raw
from tests.e2e.headroom.amounts import Amounts
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.namespace import LASTING, QuotaNamespace
from tests.e2e.headroom.shapes import LIMITS, Shape
from tests.e2e.hostile_tenant import applied_policy, controller_reference, pod, tenant_of
from tests.e2e.tenant import by_value
from tests.program import run

pytestmark = pytest.mark.cluster

OVERHEAD = "kubevirt.io/memory-overhead-bytes"
JOB = "kubevirt.io/migrationJobUID"
WATCHED = 3.0
"""Seconds during which the quota is looked at; headroom answers within a few hundredths."""


@pytest.fixture(scope="module", params=[False, True], ids=["policy absent", "policy present"])
def policy(request: pytest.FixtureRequest, api: Api) -> Iterator[bool]:
    with applied_policy(api) if request.param else contextlib.nullcontext():
        yield request.param


@pytest.fixture
def namespace(on: Environment, policy: bool) -> Iterator[QuotaNamespace]:
    """A base of 3 CPU and 5,000 MiB, as in the seeds."""
    on.run()
    yield on.namespace(limits={"limits.cpu": "3", "limits.memory": "5000Mi"})
    on.clear()


@pytest.fixture
def ratio(on: Environment) -> Iterator[Callable[[str], None]]:
    """Sets Harvester's overhead ratio for one test."""
    yield on.ratio
    on.ratio("1.5")


def allowed(policy: bool, act: Callable[[str, Raw], Raw], path: str, body: Raw) -> bool:
    """Whether the attack got past the API server; with the policy it must not."""
    refused = ""
    try:
        act(path, body)
    except ApiFailure as failure:
        refused = failure.message
    if policy:
        assert "only KubeVirt" in refused, (body["metadata"], refused)
    return not refused


def highest(namespace: QuotaNamespace, name: str = "limits.cpu") -> Quantity:
    """The most that spec.hard says of a resource in a while."""
    deadline, most = time.monotonic() + WATCHED, namespace.hard()[name]
    while time.monotonic() < deadline:
        most = max(most, namespace.hard()[name])
        time.sleep(0.05)
    return most


def test_twelve_forged_pods_of_a_cpu_are_three(
    policy: bool, on: Environment, namespace: QuotaNamespace
) -> None:
    """Two labels that every tenant can write; no VM, no migration."""
    mallory = tenant_of(on.api, namespace.name)
    made = 0
    for number in range(12):
        labels = {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "ghost", JOB: "none"}
        made += allowed(
            policy, mallory.create, f"{namespace.path}/pods", pod(f"forged-{number}", labels=labels)
        )
        time.sleep(0.1)
    assert made <= 3
    assert highest(namespace) == Quantity.parse("3")


def test_forged_pods_of_a_vm_that_migrates_get_no_more_than_its_migration(
    policy: bool, on: Environment, namespace: QuotaNamespace
) -> None:
    """They name the VM, its VMI as controller and its migration."""
    namespace.start("vm1")
    mallory = tenant_of(on.api, namespace.name)
    moving = namespace.migrate("vm1", phase_seconds=LASTING)
    eventually(lambda: namespace.phase_of(moving) == "Running", 30)
    fair = namespace.hard()
    owner = controller_reference(namespace.vmi("vm1"))
    uid = namespace.migration(moving)["metadata"]["uid"]
    labels = {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "vm1", JOB: uid}
    for number in range(6):
        body = pod(f"forged-{number}", cpu="500m", labels=labels, ownerReferences=[owner])
        allowed(policy, mallory.create, f"{namespace.path}/pods", body)
        time.sleep(0.1)
    assert highest(namespace) <= fair["limits.cpu"]
    namespace.hurry(moving)


def test_a_vm_that_never_ran_raises_nothing(policy: bool, on: Environment, namespace: QuotaNamespace) -> None:
    """500 CPU, and a migration of it; a status that the tenant writes along."""
    mallory = tenant_of(on.api, namespace.name)
    huge: Raw = Shape(
        {
            "cpu": {"cores": 500},
            "resources": {"limits": {"cpu": "500", "memory": "1Ti"}, "requests": {"memory": "1Gi"}},
        }
    ).body("huge")
    status = {"phase": "Running", "nodeName": "node-0", "migrationState": {"sourcePod": "virt-launcher-huge"}}
    mallory.create(namespace.instances, {**huge, "status": status})
    mallory.create(namespace.migrations, migration("move-huge", "huge"))
    assert highest(namespace) == Quantity.parse("3")
    assert namespace.hard()["limits.memory"] == Quantity.parse("5000Mi")


@pytest.mark.parametrize(
    "value",
    [str(10**15), "1", "-1000000000000000", "9" * 5000],
    ids=["a petabyte", "a byte", "minus", "5,000 digits"],
)
def test_an_annotation_adds_no_more_than_kubevirt_renders(
    policy: bool,
    on: Environment,
    namespace: QuotaNamespace,
    value: str,
    ratio: Callable[[str], None],
    kubeconfig: Path,
) -> None:
    """The ratio changed since, so the annotation counts. It is the trouble of that VM alone: another one's migration is
    served, `status` answers."""
    namespace.start("vm1")
    ratio("4.5")
    mallory = tenant_of(on.api, namespace.name)
    launcher = namespace.pods()[0]["metadata"]["name"]
    path = f"{namespace.path}/pods/{launcher}"
    allowed(policy, mallory.patch, path, {"metadata": {"annotations": {OVERHEAD: value}}})
    moving = namespace.migrate("vm1", phase_seconds=LASTING)
    base, used = Quantity.parse("5000Mi"), by_value(namespace.quota()["status"]["used"])["limits.memory"]
    assert highest(namespace, "limits.memory") <= base + used + used
    other = on.namespace()
    other.meter(*LIMITS)
    other.start("vm2")
    granted: Amounts = other.grant_what_is_used(*LIMITS)
    other.succeed(other.migrate("vm2"))
    other.settle(granted)
    said = run("status", "-o", "json", "--kubeconfig", str(kubeconfig))
    assert said.returncode == 0, said.stderr
    assert {quota["namespace"] for quota in json.loads(said.stdout)["quotas"]} >= {namespace.name, other.name}
    namespace.hurry(moving)
