"""A target is let through up to what its own VM was granted; the rest is the base's, like any pod."""

from __future__ import annotations

import pytest

from kubeloop.api.core import Pod
from kubeloop.testing.virtual_time import now
from pkg.util import constants
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.objects import MARKS, by_name, controlled_by, plain_launcher, pod, quota, uid_of, vmi, vmim
from tests.pkg.webhook.fake_view import KUBEVIRT, FakeView, State, request
from tests.pkg.webhook.resources.pod.test_validator import validator

pytestmark = pytest.mark.virtual_time

LIMITS = '{"limit":{"limitsCpu":"6","limitsMemory":"90Gi"}}'
GRANTED = '{"limits.cpu":"2","limits.memory":"4Gi"}'
MIGRATION = "uid-migration-of-{}"


def target(vm: str, cpu: str = "2", *, app: str = constants.APP_VIRT_LAUNCHER, owner: str = "") -> Pod:
    labels = {constants.LABEL_APP: app, constants.LABEL_MIGRATION_JOB_UID: MIGRATION.format(vm)}
    owners = controlled_by("VirtualMachineInstance", owner or vm, uid_of(owner or vm))
    return pod(cpu, "1Gi", name=f"virt-launcher-{vm}-target", labels=labels, ownerReferences=owners)


def namespace(
    *other_pods: Pod, entries: tuple[str, ...] = ("vm1", "vm2"), phase: str | None = "Running", granted: str = GRANTED
) -> State:
    """Two VMs of 2 CPU that migrate in a base of 6 CPU; `phase` is vm2's."""
    annotations = {**MARKS, **{by_name(vm): granted for vm in entries}}
    hard = {"limits.cpu": str(6 + 2 * len(entries)), "limits.memory": "100Gi"}
    sources = [plain_launcher(vm) for vm in ("vm1", *(["vm2"] if phase == "Running" else []))]
    used = 2 * len(sources) + (1.9 if other_pods else 0)
    instances = [vmi("vm1", nodeName="node1"), vmi("vm2", nodeName="node1", phase=phase)]
    return State(
        quota(hard, annotations, used={"limits.cpu": str(used)}),
        migrations=[vmim("Pending", vm) for vm in ("vm1", "vm2")],
        instances=instances,
        pods=[*sources, *other_pods],
        limits=LIMITS,
    )


FULL = pod("1.9", name="filler")
CASES = {
    "as large as its source": (namespace(FULL), target("vm2"), True),
    "enlarged by a live update": (namespace(FULL), target("vm2", "4"), False),
    "enlarged, and the base covers it": (namespace(), target("vm2", "4"), True),
    "enlarged by more than the base covers": (namespace(), target("vm2", "4100m"), False),
    "nothing was added for it yet: quota decides": (namespace(FULL, entries=("vm1",)), target("vm2"), True),
    "the entry holds less, by a cap": (namespace(FULL, granted='{"limits.cpu":"1"}'), target("vm2"), False),
    "the receiver of a decentralized migration": (
        namespace(FULL, pod("2", name="more"), phase="WaitingForSync"),
        target("vm2", "3"),
        False,
    ),
    "a launcher with a copied label, of a VM that never ran": (
        namespace(FULL, pod("2", name="more"), phase=None),
        target("vm2"),
        False,
    ),
    "another VM's launcher with the label of a migration": (
        namespace(FULL),
        target("vm2", owner="vm3"),
        False,
    ),
    "an attachment pod within what was granted": (
        namespace(FULL), target("vm2", "100m", app=constants.APP_HOTPLUG_DISK), True
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES.values()), ids=list(CASES))
async def test_a_target_is(case: tuple[State, Pod, bool]) -> None:
    state, candidate, admitted = case
    decision = await validator(FakeView(state, state)).validate(request(candidate, user=KUBEVIRT))
    assert decision.allowed is admitted, decision.message
    assert admitted or decision.message.startswith("exceeded quota: ")  # KubeVirt looks for these words


async def test_harvesters_number_for_a_grown_vm_is_not_granted() -> None:
    """Its formula is of the VM's specification, which a tenant has enlarged since."""
    state = namespace(FULL, granted='{"limits.cpu":"4","limits.memory":"9Gi"}')
    assert state.instances is not None
    state.instances = [vmi("vm1", nodeName="node1"), vmi("vm2", nodeName="node1", limits={"cpu": "4", "memory": "4Gi"})]
    policy = Policy(Mode.TAKEOVER, EstimateKind.HARVESTER)
    view = FakeView(state, state)
    checked = validator(view, policy=policy)
    assert not (await checked.validate(request(target("vm2", "4"), user=KUBEVIRT))).allowed
    assert (await checked.validate(request(target("vm2", "2"), user=KUBEVIRT))).allowed


async def test_within_the_grant_nothing_is_read_or_kept_waiting() -> None:
    view = FakeView(namespace(FULL), None)
    assert (await validator(view).validate(request(target("vm2"), user=KUBEVIRT))).allowed
    assert (view.looked, now()) == ([], 0.0)


async def test_what_a_target_takes_of_the_base_is_remembered() -> None:
    """Until it is seen, no other pod is given the same."""
    view = FakeView(namespace(), namespace())
    checked = validator(view)
    assert (await checked.validate(request(target("vm2", "3"), user=KUBEVIRT))).allowed
    assert (await checked.validate(request(pod("100m")))).allowed
    assert now() > 0.0
