"""Claims that are there twice: that of a VM's persistent state, of which a migration's target gets another, and those
of its disks while its volumes move, where an administrator lets that be added."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
import pytest

from kubeloop.api.core import PersistentVolumeClaim, Pod
from kubeloop.api.meta import from_rfc3339
from kubeloop.api.resource_list import add, format_resource_list, marshal, parse_resource_list
from pkg.api.kubevirt import (
    ChangedBlockTrackingStatus,
    KubeVirtConfiguration,
    MigrationState,
    Move,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from pkg.api.kubevirt import PersistentVolumeClaimInfo as ClaimInfo
from pkg.util.kubevirt.claims import state_claims_concerning
from pkg.util.kubevirt.profiles import PROFILES
from pkg.util.kubevirt.rendering import Rendering
from tests.decisions import after, by_value, entry, namespace, sentences
from tests.kinds import edited
from tests.objects import (
    AT_1_5,
    MARKS,
    Resources,
    between_claims,
    by_name,
    claim,
    ended,
    launcher,
    limits_text,
    moving,
    quota,
    running_vmi,
    vm,
    vmim,
    with_state,
)

HARD = {
    "limits.cpu": "3",
    "requests.storage": "1Gi",
    "persistentvolumeclaims": "3",
    "count/persistentvolumeclaims": "3",
    "local.storageclass.storage.k8s.io/requests.storage": "1Gi",
    "local.storageclass.storage.k8s.io/persistentvolumeclaims": "3",
    "other.storageclass.storage.k8s.io/requests.storage": "1Gi",
    "secrets": "7",
}
BASE = limits_text("3", requestsStorage="1Gi", persistentVolumeClaims="3")
BASE = BASE[:-2] + ',"extended":{' + ",".join(f'"{n}":"{q}"' for n, q in HARD.items() if "/" in n) + "}}}"
ONE = {
    "requests.storage": "10Mi",
    "persistentvolumeclaims": "1",
    "count/persistentvolumeclaims": "1",
    "local.storageclass.storage.k8s.io/requests.storage": "10Mi",
    "local.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
}
"""What a claim of 10Mi counts."""
T = TypeVar("T", VirtualMachineInstance, VirtualMachineInstanceMigration)
NO_CLASS = {name: amount for name, amount in ONE.items() if "storageclass" not in name}
HOME = with_state(running_vmi())
LATER, END = "2026-01-01T00:01:00Z", "2026-01-01T00:05:00Z"
ENDED_AT = from_rfc3339(END)
SOURCE, TARGET = claim("state-1"), claim("state-2", created=LATER)
UNNAMED = edited(TARGET, metadata={"name": "persistent-state-for-vm1-x"})
MOVE = between_claims(vmim("Scheduling"))
HANDED_OVER = MigrationState(
    migration_uid=MOVE.uid, source_persistent_state_claim="state-1", target_persistent_state_claim="state-2"
)


def finished(phase: str, migration: VirtualMachineInstanceMigration) -> VirtualMachineInstanceMigration:
    stamps = [{"phase": phase, "phaseTransitionTimestamp": END}]
    state = {"endTimestamp": END}
    return edited(migration, status={"phase": phase, "phaseTransitionTimestamps": stamps, "migrationState": state})


def changed(instance: T, **status: Any) -> T:
    return msgspec.structs.replace(instance, status=msgspec.structs.replace(instance.status, **status))


def with_efi(instance: VirtualMachineInstance) -> VirtualMachineInstance:
    """Persistent EFI instead of a persistent TPM."""
    firmware = {"bootloader": {"efi": {"persistent": True}}}
    return edited(instance, spec={"domain": {"devices": {"tpm": None}, "firmware": firmware}})


def tracked(instance: VirtualMachineInstance, state: str) -> VirtualMachineInstance:
    """Changed-block tracking alone."""
    without = msgspec.structs.replace(instance, spec=running_vmi().spec)
    return changed(without, changed_block_tracking=ChangedBlockTrackingStatus(state=state))


def rendering_of(release: str, **configuration: Any) -> Rendering:
    return dataclasses.replace(AT_1_5, profile=PROFILES[release], kubevirt=KubeVirtConfiguration(**configuration))


@dataclass(frozen=True)
class ClaimCase:
    """The entry's storage where these claims exist; `asking`: the VM."""

    claims: Sequence[PersistentVolumeClaim]
    entry: dict[str, str]
    migration: VirtualMachineInstanceMigration | None = MOVE
    instance: VirtualMachineInstance = HOME
    rendering: Rendering = AT_1_5
    asking: VirtualMachine | None = None
    allowed: bool = False
    """Storage migrations are."""


# ---- of its state --------------------------------------------------------------------------------------------

BIG = {name: "522Mi" if "requests" in name else amount for name, amount in ONE.items()}
DONE, FAILED = finished("Succeeded", MOVE), finished("Failed", MOVE)
MOVED = with_state(running_vmi(), "state-2")
NAMING_IT = msgspec.structs.replace(HANDED_OVER, target_pod=launcher(HOME).name)
NEVER_RAN = changed(HOME, phase="Pending")
CASES = {
    "pending: a claim is to come": ClaimCase([SOURCE], ONE, vmim()),
    "the claim is there, the pod is not": ClaimCase([SOURCE, TARGET], ONE, between_claims(vmim())),
    "named, and not seen yet": ClaimCase([SOURCE], ONE, between_claims(vmim())),
    "the VMI names it, its migration does not": ClaimCase(
        [SOURCE, claim("state-2", "5Mi", created=LATER)],
        {name: "5Mi" if "requests" in name else amount for name, amount in ONE.items()},
        vmim("Scheduling"),
        changed(HOME, migration_state=HANDED_OVER),
    ),
    "a persistent EFI": ClaimCase([SOURCE], ONE, vmim(), with_efi(HOME)),
    "changed-block tracking": ClaimCase([SOURCE], ONE, vmim(), tracked(HOME, "Enabled")),
    "no tracking of blocks": ClaimCase([SOURCE], {}, vmim(), tracked(HOME, "Disabled")),
    "releases without that": ClaimCase([SOURCE], {}, vmim(), tracked(HOME, "Enabled"), rendering_of("1.6.4")),
    "the next release makes room for it": ClaimCase(
        [SOURCE], BIG, vmim(), tracked(HOME, "Enabled"), rendering_of("main")
    ),
    "a VM without state": ClaimCase([SOURCE], {}, vmim(), running_vmi()),
    "1.4 makes a claim for the target": ClaimCase([SOURCE], ONE, vmim(), rendering=rendering_of("1.4")),
    "1.3 does not": ClaimCase([SOURCE], {}, vmim(), rendering=rendering_of("1.3")),
    "KubeVirt names no claim of the VM: it makes none": ClaimCase(
        [SOURCE], {}, vmim(), changed(HOME, volume_status=None)
    ),
    "one that both pods use": ClaimCase([claim("state-1", mode="ReadWriteMany")], {}, vmim()),
    "both names are the same": ClaimCase([SOURCE], {}, between_claims(vmim(), target="state-1")),
    "the class is the CR's": ClaimCase(
        [SOURCE], NO_CLASS, vmim(), rendering=rendering_of("1.8", vm_state_storage_class="x")
    ),
    "a claim that was enlarged": ClaimCase([claim("state-1", "9Gi")], ONE, vmim()),
    "a target's claim that was enlarged": ClaimCase([SOURCE, claim("state-2", "9Gi", created=LATER)], ONE),
    "a VM that does not run": ClaimCase([SOURCE], {}, vmim(), changed(HOME, phase="Scheduled")),
    "an abort is asked for before the claim": ClaimCase([SOURCE], {}, vmim(abort=True)),
    "one asked for later": ClaimCase([SOURCE, TARGET], ONE, between_claims(vmim(abort=True))),
    "done: the source's is still there": ClaimCase([SOURCE, TARGET], ONE, DONE, MOVED),
    "done: it is gone": ClaimCase([TARGET], {}, DONE, MOVED),
    "failed: the target's is still there": ClaimCase([SOURCE, TARGET], ONE, FAILED),
    "failed: the VMI still names the target's": ClaimCase([SOURCE, TARGET], ONE, FAILED, MOVED),
    "failed: it is gone, and the VMI still names it": ClaimCase([SOURCE], {}, FAILED, MOVED),
    "a deleted migration, whose VMI names both claims": ClaimCase(
        [SOURCE, TARGET], ONE, None, changed(MOVED, migration_state=NAMING_IT)
    ),
    "a running VMI's tenant wrote both claims into its status": ClaimCase(
        [SOURCE, TARGET], {}, None, changed(MOVED, migration_state=HANDED_OVER)
    ),
    "a VMI that never ran, with a claim in its status": ClaimCase([SOURCE, UNNAMED], {}, vmim(), NEVER_RAN),
    "one whose tenant wrote two": ClaimCase(
        [SOURCE, TARGET], {}, vmim(), changed(NEVER_RAN, migration_state=HANDED_OVER, volume_status=None)
    ),
    "a claim of an old name that a tenant made": ClaimCase([claim("state-1", created=END), TARGET], {}, DONE, MOVED),
}


# ---- of its disks --------------------------------------------------------------------------------------------

OLD, NEW = claim("old", "400Mi"), claim("new", "400Mi", storage_class="other")
BOTH = {"requests.storage": "400Mi", "persistentvolumeclaims": "1", "count/persistentvolumeclaims": "1"}
"""What quota counts of a disk's claim, whatever its class."""
CLASS = {f"local.storageclass.storage.k8s.io/{name}": amount for name, amount in list(BOTH.items())[:2]}
MOVES = moving(running_vmi())


def with_volumes(obj: Any, claim: str, **spec: Any) -> Any:
    """The VM or its VMI with one disk in that claim."""
    volumes = {"volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": claim}}]}
    if isinstance(obj, VirtualMachineInstance):
        return edited(obj, spec=volumes)
    return edited(obj, spec={"template": {"spec": volumes}, **spec})


def pairs(*names: tuple[str, str]) -> VirtualMachineInstance:
    volumes = [Move(f"disk{n}", ClaimInfo(a), ClaimInfo(b)) for n, (a, b) in enumerate(names)]
    return changed(running_vmi(), migrated_volumes=volumes)


AT_HOME = with_volumes(running_vmi(), "old")
ASKS = with_volumes(vm(), "new", updateVolumesStrategy="Migration")
moved_case = partial(ClaimCase, instance=MOVES, migration=None, allowed=True)
STATE = {n: "410Mi" if "requests" in n else "2" for n in BOTH} | {n: q for n, q in ONE.items() if "storageclass" in n}
DOUBLED = {
    "both are there: the base pays for the new class": moved_case([OLD, NEW], BOTH),
    "with its migration": moved_case([OLD, NEW], BOTH, migration=vmim()),
    "within one class": moved_case([OLD, claim("new", "400Mi")], BOTH | CLASS),
    "the new one is to come": moved_case([OLD], BOTH | CLASS),
    "no annotation": moved_case([OLD, NEW], {}, allowed=False),
    "no annotation, and the new one is to come": moved_case([OLD], {}, allowed=False),
    "the old one is gone": moved_case([NEW], {}),
    "a new one that is larger": moved_case([OLD, claim("new", "900Mi", storage_class="other")], BOTH),
    "a new one that is smaller": moved_case(
        [OLD, claim("new", "100Mi", storage_class="other")], BOTH | {"requests.storage": "100Mi"}
    ),
    "volumes of a VM that does not run": moved_case([OLD], {}, instance=changed(MOVES, phase="Scheduled")),
    "the VM asks for it": moved_case([OLD], BOTH | CLASS, instance=AT_HOME, asking=ASKS),
    "the VM asks, and the new one is there": moved_case([OLD, NEW], BOTH, instance=AT_HOME, asking=ASKS),
    "the VM asks, and KubeVirt says that it moves": moved_case(
        [OLD, NEW], BOTH, instance=with_volumes(MOVES, "new"), asking=ASKS, migration=vmim()
    ),
    "the VM asks for another strategy": moved_case(
        [OLD], {}, instance=AT_HOME, asking=with_volumes(vm(), "new", updateVolumesStrategy="Replacement")
    ),
    "the VM asks for nothing": moved_case([OLD], {}, instance=AT_HOME, asking=with_volumes(ASKS, "old")),
    "done": moved_case([OLD, NEW], {}, instance=with_volumes(running_vmi(), "new"), asking=ASKS),
    "one claim moves to several": moved_case([OLD, NEW], BOTH, instance=pairs(("old", "new"), ("old", "more"))),
    "several move to one": moved_case([OLD, NEW, claim("own")], BOTH, instance=pairs(("old", "new"), ("own", "new"))),
    "one moves to itself": moved_case([OLD], {}, instance=pairs(("old", "old"))),
    "more than the base once more": moved_case(
        [claim("old", "9Gi")], (BOTH | CLASS) | {n: "1Gi" for n in BOTH | CLASS if "requests" in n}
    ),
    "beside the claim of its state": moved_case(
        [OLD, NEW, claim("state-1")], STATE, instance=with_state(MOVES), migration=vmim()
    ),
}


# ---- what is added for them -----------------------------------------------------------------------------------


@sentences(CASES | DOUBLED)
def test_an_entry_has_what_is_there_twice(case: ClaimCase) -> None:
    facts = namespace(
        quota(HARD, MARKS),
        [case.migration] if case.migration else [],
        [launcher(case.instance)],
        [case.instance],
        limits=BASE,
        rendering=case.rendering,
        now=1767225910.0,
    )
    facts = dataclasses.replace(
        facts,
        claims={pvc.name: pvc for pvc in case.claims},
        machines={case.asking.name: case.asking} if case.asking else {},
        storage_migration=case.allowed,
    )
    result, _plan = after(facts)
    written = entry(result.annotations.get(by_name(), "{}"))
    storage = {name: amount for name, amount in written.items() if name in HARD and name != "limits.cpu"}
    assert by_value(storage) == by_value(case.entry)
    raised = add(parse_resource_list(dict(HARD)), parse_resource_list(written))
    assert parse_resource_list(result.hard) == raised


def test_no_claim_concerns_a_vm_without_a_vmi() -> None:
    assert state_claims_concerning(None, [MOVE], {SOURCE.name: SOURCE}) == []


def test_nothing_is_read_where_no_quota_counts_claims() -> None:
    facts = namespace(quota(annotations=MARKS), [vmim()], [launcher(HOME)], [HOME])
    assert facts.claims is None
    result, _plan = after(facts)
    assert set(entry(result.annotations[by_name()])) == {"limits.cpu", "limits.memory"}


def test_the_base_is_added_once_for_all_vms_together() -> None:
    """Else the disks that fill what is added for one VM would be doubled for the next."""
    names = [f"vm{number}" for number in range(4)]
    instances = [moving(running_vmi(name), f"{name}-old", f"{name}-new") for name in names]
    facts = namespace(quota(HARD, MARKS), [], [launcher(vmi) for vmi in instances], instances, limits=BASE)
    claims = {f"{name}-old": claim(f"{name}-old", "400Mi") for name in names}
    result, _plan = after(dataclasses.replace(facts, claims=claims, storage_migration=True))
    assert by_value(result.hard)["requests.storage"] == by_value({"q": "2Gi"})["q"]
    assert by_value(result.hard)["persistentvolumeclaims"] == by_value({"q": "6"})["q"]


@sentences({"a moment before the hold limit": (599.0, True), "at the hold limit": (600.0, False)}, "after_end, is_held")
def test_a_claim_that_never_goes_is_held_for_the_hold_limit(after_end: float, is_held: bool) -> None:
    """A finalizer keeps it: of a tenant, or of a CSI driver that hangs."""
    raised = quota(add_text(HARD, ONE), MARKS | {by_name(): marshal(parse_resource_list(dict(ONE)))})
    facts = namespace(raised, [DONE], [launcher(MOVED)], [MOVED], limits=BASE, now=ENDED_AT + after_end)
    result, new_plan = after(dataclasses.replace(facts, claims={pvc.name: pvc for pvc in (SOURCE, TARGET)}))
    assert (by_name() in result.annotations) is is_held
    assert by_value(result.hard) == by_value(raised.hard if is_held else HARD)
    if is_held:
        assert new_plan.recheck_after == 1.0
    else:
        (problem,) = new_plan.problems
        assert str(problem) == "VM vm1: claim state-1 still counts 600 s after the migration"


def add_text(augend: Resources, addend: Resources) -> dict[str, str]:
    return format_resource_list(add(parse_resource_list(dict(augend)), parse_resource_list(dict(addend))))


WITH_PODS = finished("Succeeded", between_claims(vmim("Succeeded", name="first")))
NAMES = {"source_pod": launcher(HOME).name, "target_pod": launcher(HOME, migration=MOVE).name}
WITH_PODS = changed(
    WITH_PODS, migration_state=msgspec.structs.replace(WITH_PODS.status.migration_state or HANDED_OVER, **NAMES)
)
HERE = launcher(HOME, migration=MOVE, node="node-2", created=LATER)
AGAIN = {
    "its ended launcher uses it, as before KubeVirt 1.9": ([ended(launcher(HOME)), HERE], 2),
    "its launcher is gone: something else keeps it": ([HERE], 1),
}


@sentences(AGAIN, "pods, claims")
def test_the_next_migration_has_room_beside_a_claim_in_use(pods: list[Pod], claims: int) -> None:
    instance = changed(MOVED, node_name="node-2")
    migrations = [WITH_PODS, vmim(name="second", created="2026-01-02T00:00:00Z")]
    facts = namespace(quota(HARD, MARKS), migrations, pods, [instance], limits=BASE, now=ENDED_AT + 86_400.0)
    result, _plan = after(dataclasses.replace(facts, claims={pvc.name: pvc for pvc in (SOURCE, TARGET)}))
    assert by_value(entry(result.annotations[by_name()]))["persistentvolumeclaims"] == by_value({"q": str(claims)})["q"]


# ---- the ResourceClaims of its devices: nothing is added, because nothing could reserve it -------------------

ALL, NICS = "count/resourceclaims.resource.k8s.io", "nic.deviceclass.resource.k8s.io/devices"
DEVICE_HARD = {"limits.cpu": "3", ALL: "1", NICS: "4"}
DEVICE_BASE = limits_text("3")[:-2] + f',"extended":{{"{ALL}":"1","{NICS}":"4"}}}}}}'


@pytest.mark.parametrize(
    ("labels", "limits"),
    [
        pytest.param(None, DEVICE_BASE, id="Rancher's default quota"),
        pytest.param({"headroom.harvesterhci.io/managed": "true"}, "", id="a quota without Rancher"),
    ],
)
def test_the_pods_are_added_and_no_claim_of_a_device(labels: dict[str, str] | None, limits: str) -> None:
    home = running_vmi()
    rq = quota(DEVICE_HARD, MARKS if labels is None else {}, labels=labels)
    result, _plan = after(namespace(rq, [vmim()], [launcher(home)], [home], limits=limits))
    assert by_value(entry(result.annotations[by_name()])) == by_value({"limits.cpu": "2015m"})
    assert by_value(result.hard) == by_value(DEVICE_HARD | {"limits.cpu": "5015m"})
