"""The ResourceClaims of a VM's devices, of which a migration's target gets others: raised by them, and given back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kubeloop.api.core import Pod, PodResourceClaim, PodResourceClaimStatus
from kubeloop.api.devices import ResourceClaim
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from tests.decisions import after, by_value, entry, namespace, sentences
from tests.objects import MARKS, build, by_name, launcher, limits_text, quota, running_vmi, vmim

ALL, NICS = "count/resourceclaims.resource.k8s.io", "nic.deviceclass.resource.k8s.io/devices"
HARD = {"limits.cpu": "3", ALL: "1", NICS: "4"}
BASE = limits_text("3")[:-2] + f',"extended":{{"{ALL}":"1","{NICS}":"4"}}}}}}'
ONE, TWO = {ALL: "1", NICS: "2"}, {ALL: "2", NICS: "3"}
LATER = "2026-01-01T00:01:00Z"


def claim(name: str, devices: int | None) -> ResourceClaim:
    exactly = {"deviceClassName": "nic", "count": devices}
    return build(ResourceClaim, name, {"devices": {"requests": [{"name": "r", "exactly": exactly}]}})


def asking(instance: VirtualMachineInstance, *names: str) -> VirtualMachineInstance:
    spec = msgspec.structs.replace(
        instance.spec, resource_claims=[PodResourceClaim(name, f"{name}s") for name in names]
    )
    return msgspec.structs.replace(instance, spec=spec)


def with_claims(pod: Pod, **made: str) -> Pod:
    statuses = [PodResourceClaimStatus(name, claim) for name, claim in made.items()]
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, resource_claim_statuses=statuses))


HOME = asking(running_vmi(), "net")
SOURCE = with_claims(launcher(HOME), net="source")
PENDING, MOVE, DONE = vmim(), vmim("Scheduling"), vmim("Succeeded")
BARE = launcher(HOME, migration=MOVE, node="node-2", created=LATER)
TARGET = with_claims(BARE, net="target")
MADE = [claim("source", 2), claim("target", 2)]


@dataclass(frozen=True)
class Case:
    """What the entry says of claims where these are there."""

    entry: dict[str, str]
    claims: Sequence[ResourceClaim] = (MADE[0],)
    pods: Sequence[Pod] = (SOURCE,)
    migration: VirtualMachineInstanceMigration = PENDING
    instance: VirtualMachineInstance = HOME


CASES = {
    "pending": Case(ONE),
    "the target waits for its claim": Case(ONE, MADE[:1], [SOURCE, BARE], MOVE),
    "the target has it": Case(ONE, MADE, [SOURCE, TARGET], MOVE),
    "the target's is larger: the base pays": Case(ONE, [MADE[0], claim("target", 9)], [SOURCE, TARGET], MOVE),
    "the target's is smaller": Case({ALL: "1", NICS: "1"}, [MADE[0], claim("target", 1)], [SOURCE, TARGET], MOVE),
    "no number is said: one": Case({ALL: "1", NICS: "1"}, [MADE[0], claim("target", None)], [SOURCE, TARGET], MOVE),
    "two, of which the target has one": Case(
        TWO,
        [*MADE, claim("disk", 1)],
        [with_claims(SOURCE, net="source", disk="disk"), TARGET],
        MOVE,
        asking(HOME, "net", "disk"),
    ),
    "done: the source's pod is still there": Case(
        ONE,
        MADE,
        [SOURCE, with_claims(launcher(HOME, migration=DONE, node="node-2", created=LATER), net="target")],
        DONE,
        msgspec.structs.replace(HOME, status=msgspec.structs.replace(HOME.status, node_name="node-2")),
    ),
    "no migration": Case({}, migration=DONE),
    "one that the VM does not ask for": Case({}, instance=running_vmi()),
    "one that is shared by both: it has no template": Case(
        {},
        instance=msgspec.structs.replace(
            HOME, spec=msgspec.structs.replace(HOME.spec, resource_claims=[PodResourceClaim("net")])
        ),
    ),
    "none is made yet": Case({}, claims=()),
}


def seen(case: Case) -> Any:
    facts = namespace(quota(HARD, MARKS), [case.migration], case.pods, [case.instance], limits=BASE)
    by = {each.name: each for each in case.claims}
    return dataclasses.replace(facts, claims={}, device_claims=by)


@sentences(CASES)
def test_an_entry_has_what_the_targets_claims_count(case: Case) -> None:
    found, _made = after(seen(case))
    written = entry(found.annotations.get(by_name(), "{}"))
    assert by_value({n: q for n, q in written.items() if n in (ALL, NICS)}) == by_value(case.entry)


def test_a_claim_that_changes_is_seen() -> None:
    """What is worked out of a VM once is worked out again."""
    before = seen(CASES["the target has it"])
    after(before)
    smaller = {**before.device_claims, "source": claim("source", 1)}
    found, _made = after(dataclasses.replace(before, device_claims=smaller))
    assert by_value(entry(found.annotations[by_name()]))[NICS] == by_value({"q": "1"})["q"]
