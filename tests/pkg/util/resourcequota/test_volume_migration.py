"""The claims that a volume migration doubles: added where an administrator lets them be, and given back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kubeloop.api.core import PersistentVolumeClaim
from pkg.api.kubevirt import (
    ClaimInfo,
    HotplugSource,
    MigratedVolume,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
    Volume,
)
from tests.decisions import after, by_value, entry, namespace, sentences
from tests.objects import MARKS, by_name, claim, launcher, moving, quota, running_vmi, vm, vmim, with_state
from tests.pkg.util.resourcequota.test_takeover_storage import BASE, HARD, ONE

OLD, NEW = claim("old", "400Mi"), claim("new", "400Mi", storage_class="other")
BOTH = {"requests.storage": "400Mi", "persistentvolumeclaims": "1", "count/persistentvolumeclaims": "1"}
"""What quota counts of a disk's claim, whatever its class."""
CLASS = {f"local.storageclass.storage.k8s.io/{name}": amount for name, amount in list(BOTH.items())[:2]}
MOVES = moving(running_vmi())


def with_volumes(obj: Any, claim: str, **spec: Any) -> Any:
    """The VM or its VMI with one disk in that claim."""
    disk = Volume(name="root", persistent_volume_claim=HotplugSource(claim_name=claim))
    if isinstance(obj, VirtualMachineInstance):
        return msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, volumes=[disk]))
    template = msgspec.structs.replace(
        obj.spec.template, spec=msgspec.structs.replace(obj.spec.template.spec, volumes=[disk])
    )
    return msgspec.structs.replace(obj, spec=msgspec.structs.replace(obj.spec, template=template, **spec))


def pairs(*names: tuple[str, str]) -> VirtualMachineInstance:
    instance = running_vmi()
    moved = [MigratedVolume(f"disk{n}", ClaimInfo(a), ClaimInfo(b)) for n, (a, b) in enumerate(names)]
    return msgspec.structs.replace(instance, status=msgspec.structs.replace(instance.status, migrated_volumes=moved))


HOME = with_volumes(running_vmi(), "old")
ASKS = with_volumes(vm(), "new", update_volumes_strategy="Migration")


@dataclass(frozen=True)
class Case:
    """What the entry says of storage where these claims are there."""

    claims: Sequence[PersistentVolumeClaim]
    entry: dict[str, str]
    instance: VirtualMachineInstance = MOVES
    machine: VirtualMachine | None = None
    migrations: Sequence[VirtualMachineInstanceMigration] = ()
    allowed: bool = True


STATE = {
    name: {"410Mi": "410Mi", "2": "2"}.get(amount, amount)
    for name, amount in {
        **{n: "410Mi" if "requests" in n else "2" for n in BOTH},
        **{n: q for n, q in ONE.items() if "storageclass" in n},
    }.items()
}
CASES = {
    "both are there: the base pays for the new class": Case([OLD, NEW], BOTH),
    "with its migration": Case([OLD, NEW], BOTH, migrations=[vmim()]),
    "within one class": Case([OLD, claim("new", "400Mi")], BOTH | CLASS),
    "the new one is to come": Case([OLD], BOTH | CLASS),
    "no annotation": Case([OLD, NEW], {}, allowed=False),
    "no annotation, and the new one is to come": Case([OLD], {}, allowed=False),
    "the old one is gone": Case([NEW], {}),
    "a new one that is larger": Case([OLD, claim("new", "900Mi", storage_class="other")], BOTH),
    "a new one that is smaller": Case(
        [OLD, claim("new", "100Mi", storage_class="other")], BOTH | {"requests.storage": "100Mi"}
    ),
    "a VM that does not run": Case(
        [OLD], {}, msgspec.structs.replace(MOVES, status=type(MOVES.status)(phase="Scheduled"))
    ),
    "the VM asks for it": Case([OLD], BOTH | CLASS, HOME, ASKS),
    "the VM asks, and the new one is there": Case([OLD, NEW], BOTH, HOME, ASKS),
    "the VM asks, and KubeVirt says that it moves": Case([OLD, NEW], BOTH, with_volumes(MOVES, "new"), ASKS, [vmim()]),
    "the VM asks for another strategy": Case(
        [OLD], {}, HOME, with_volumes(vm(), "new", update_volumes_strategy="Replacement")
    ),
    "the VM asks for nothing": Case([OLD], {}, HOME, with_volumes(ASKS, "old")),
    "done": Case([OLD, NEW], {}, with_volumes(running_vmi(), "new"), ASKS),
    "one claim moves to several": Case([OLD, NEW], BOTH, pairs(("old", "new"), ("old", "more"))),
    "several move to one": Case([OLD, NEW, claim("own")], BOTH, pairs(("old", "new"), ("own", "new"))),
    "one moves to itself": Case([OLD], {}, pairs(("old", "old"))),
    "more than the base once more": Case(
        [claim("old", "9Gi")], (BOTH | CLASS) | {n: "1Gi" for n in BOTH | CLASS if "requests" in n}
    ),
    "beside the claim of its state": Case([OLD, NEW, claim("state-1")], STATE, with_state(MOVES), None, [vmim()]),
}


def seen(case: Case, **more: Any) -> Any:
    instance = case.instance
    facts = namespace(quota(HARD, MARKS), case.migrations, [launcher(instance)], [instance], limits=BASE, **more)
    return dataclasses.replace(
        facts,
        claims={each.name: each for each in case.claims},
        machines={case.machine.name: case.machine} if case.machine else {},
        storage_migration=case.allowed,
    )


def storage(text: str | None) -> dict[str, Any]:
    return by_value({n: q for n, q in entry(text).items() if n in HARD and n != "limits.cpu"})


@sentences(CASES)
def test_an_entry_has_what_is_doubled(case: Case) -> None:
    found, _made = after(seen(case))
    assert storage(found.annotations.get(by_name(), "{}")) == by_value(case.entry)


def test_the_base_is_added_once_for_all_vms_together() -> None:
    """Else the disks that fill what is added for one VM would be doubled for the next."""
    names = [f"vm{number}" for number in range(4)]
    instances = [moving(running_vmi(name), f"{name}-old", f"{name}-new") for name in names]
    facts = namespace(quota(HARD, MARKS), [], [launcher(each) for each in instances], instances, limits=BASE)
    claims = {f"{name}-old": claim(f"{name}-old", "400Mi") for name in names}
    found, _made = after(dataclasses.replace(facts, claims=claims, storage_migration=True))
    assert by_value(found.hard)["requests.storage"] == by_value({"q": "2Gi"})["q"]
    assert by_value(found.hard)["persistentvolumeclaims"] == by_value({"q": "6"})["q"]
