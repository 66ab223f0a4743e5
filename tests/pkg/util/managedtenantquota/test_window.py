"""The window: the refused migrations that a budget releases, the quotas that block them, and their headroom."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.resource_list import format_resource_list
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.managedtenantquota.lock import Lock
from pkg.util.managedtenantquota.model import WindowPolicy, WindowTimers, with_running
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.observe import Listed, Source
from tests.decisions import sentences
from tests.kinds import edited
from tests.objects import Resources, attachment, claim, ended, launcher, plugged, running_vmi, vmim, with_state
from tests.pkg.util.managedtenantquota.objects import (
    AT_ONCE,
    ENOUGH,
    FULL,
    NOW,
    RECORD,
    SIDE,
    TWICE,
    budget,
    lock,
    observed,
    quota,
    refused,
    source,
    surroundings,
    target,
    window,
)

Migration = VirtualMachineInstanceMigration
CPU = {"limits.cpu": "2015m"}
UID = "uid-migration-of-vm1"
SHORT = WindowPolicy().cache_delay
BEST_EFFORT: dict[str, Any] = {"scopes": ["BestEffort"]}
OF_HIGH_PRIORITY: dict[str, Any] = {
    "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}
}


@dataclass
class WindowCase:
    """A refused migration and a quota that one side fills, unless a case says otherwise. `vms`: whose migrations are
    released, in order; `shortages`: parts of what is reported; `again`: seconds."""

    quotas: Sequence[ResourceQuota] = field(default_factory=lambda: [quota()])
    blocking: str = ""
    vms: str | None = None
    shortages: Sequence[str] = ()
    additional: Resources = field(default_factory=lambda: ENOUGH)
    around: Facts | None = None
    headroom: Mapping[str, str] | None = None
    waiting: str = ""
    again: float = math.inf
    lock: Lock | None = None
    member: bool = False
    """The window is open for it."""
    policy: WindowPolicy = AT_ONCE
    timers: WindowTimers = field(default_factory=WindowTimers)


def full(hard: Resources, **fields: Any) -> list[ResourceQuota]:
    """A quota without anything left."""
    return [quota(hard, hard, **fields)]


def of_a_pod(vms: str, *migrations: Migration, **fields: Any) -> WindowCase:
    """Every target lacks room for a pod."""
    around = surroundings(list(migrations), **fields)
    return WindowCase(full({"pods": "1"}), "quota" if vms else "", vms, around=around, additional={"pods": "9"})


def limited(reason: str, **fields: Any) -> WindowCase:
    """A migration that KubeVirt's parallel limits hold up, if there is a reason."""
    around = surroundings(**fields)
    if not reason:
        return WindowCase(blocking="quota", around=around)
    return WindowCase(waiting=f"KubeVirt's limits: {reason}", again=2.0, around=around)


def attaching(pods: str, additional: str, blocking: str, *fields: Pod, shortages: Sequence[str] = ()) -> WindowCase:
    """A VM with a hotplugged volume: KubeVirt creates the target's second pod once its first runs."""
    migration = vmim("Pending") if fields else refused()
    around = surroundings([migration], instances=[plugged()], pods=[source(), attachment(source()), *fields])
    return WindowCase(
        full({"pods": pods}), blocking, shortages=shortages, additional={"pods": additional}, around=around
    )


def grown_vmi(vm: str = "vm1") -> VirtualMachineInstance:
    """CPUs were plugged into it: the target has 4."""
    condition = {"type": "HotVCPUChange", "status": "True"}
    return running_vmi(vm, limits={"cpu": "4", "memory": "4Gi"}, conditions=[condition])


def cpus(hard: str, used: str, vms: str, *instances: VirtualMachineInstance, **fields: Any) -> WindowCase:
    """A quota for CPUs alone."""
    around = surroundings([refused(vmi.name) for vmi in instances], instances=instances)
    quotas = [quota({"limits.cpu": hard}, {"limits.cpu": used})]
    defaults: dict[str, Any] = {"additional": {"limits.cpu": "47"}, "around": around, **fields}
    return WindowCase(quotas, "quota" if vms else "", vms, **defaults)


def two_vms(hard: str, used: str, vms: str, second: VirtualMachineInstance, **fields: Any) -> WindowCase:
    """vm1 runs on both sides, vm2 is refused."""
    around = surroundings(
        [vmim("Running"), refused("vm2")],
        instances=[running_vmi("vm1"), second],
        pods=[source("vm1"), RUNNING, source("vm2")],
    )
    return cpus(hard, used, vms, around=around, **fields)


RUNNING = target(vmim("Pending"), "Running")
BEFORE = target(refused(name="before"), "Running")
STATEFUL = with_state(running_vmi())
OF_STATE = replace(surroundings(instances=[STATEFUL], pods=[launcher(STATEFUL)]), claims={"state-1": claim("state-1")})
OF_BOTH = replace(
    surroundings(
        [refused(), refused("vm2")], instances=[STATEFUL, running_vmi("vm2")], pods=[launcher(STATEFUL), source("vm2")]
    ),
    claims={"state-1": claim("state-1")},
)
MOVED = running_vmi(node="node-2", activePods={"a": "node-1", "b": "node-2"})
TAKEN = "resource quota quota still holds what was added for migrations by annotations"
RESTS = WindowTimers(paused={UID: NOW + 9})
BLOCKING = {
    "a full quota blocks": WindowCase(blocking="quota"),
    "one with room does not": WindowCase([quota(TWICE)]),
    "of several quotas only the full ones block": WindowCase(
        [quota(name="c"), quota(TWICE, name="b"), quota(name="a")], "a c"
    ),
    "a quota for other pods never blocks": WindowCase([quota({"pods": "0"}, {}, **BEST_EFFORT)]),
    "one for pods of a priority class that the VM has not neither": WindowCase(
        [quota({"pods": "0"}, {}, **OF_HIGH_PRIORITY)]
    ),
    "one for pods that ask for something does": WindowCase([quota(scopes=["NotBestEffort"])], "quota"),
    "one that is being deleted does not": WindowCase([quota(deleting=True)]),
    "a budget that is too small releases nothing, and says in what": WindowCase(
        shortages=[
            "budget does not have enough resources to release migration migration-of-vm1 of VM vm1: limits.memory "
            "of quota quota: requested 4.5Gi, used 4.5Gi, limited 4.5Gi, with what may be added 5.5Gi"
        ],
        additional={"limits.cpu": "3", "limits.memory": "1Gi"},
    ),
    "it need not name what has room": WindowCase(
        [quota({"limits.cpu": "9", "limits.memory": FULL["limits.memory"]})],
        "quota",
        additional={"limits.memory": "5Gi"},
    ),
    "a quota that is full of something the budget does not name cannot be released": WindowCase(
        full({**FULL, "pods": "1"}), shortages=["pods of quota"]
    ),
    "one quota that cannot be raised enough keeps all of them as they are": WindowCase(
        [quota(name="a"), *full({"pods": "1"}, name="b")], shortages=["pods of quota b"]
    ),
    "a budget that names nothing of a resource is none": WindowCase(
        blocking="quota", additional={**ENOUGH, "pods": "0"}
    ),
    "exactly enough is enough": WindowCase(blocking="quota", additional=FULL),
    "a byte less is not": WindowCase(shortages=["limits.memory"], additional={**FULL, "limits.memory": "4797464312"}),
    "no fraction of a pod is added": WindowCase(
        [quota({"pods": "2"}, {"pods": "2"})],
        "quota",
        "vm1",
        additional={"pods": "1.9"},
        around=surroundings(
            [refused(), vmim("Running", "vm2")], pods=[source(), source("vm2"), target(vmim("Running", "vm2"))]
        ),
        headroom={"pods": "1"},
    ),
    "a quota that limits nothing does nothing": WindowCase(full({})),
    "a budget that does not name storage says so": WindowCase(
        full({"requests.storage": "10Mi"}), shortages=["requests.storage of quota"], around=OF_STATE
    ),
    "one with scopes counts no storage": WindowCase(
        full({"requests.storage": "10Mi", "limits.cpu": "1"}, scopes=["NotBestEffort"]), "quota", around=OF_STATE
    ),
    "a quota that is raised is not in the way by what it says": WindowCase([quota({"limits.cpu": "9", "pods": "9"})]),
    "and is, by what it was": WindowCase(
        [quota({"limits.cpu": "9", "limits.memory": "20Gi"}, annotations=RECORD)], "quota", lock=lock()
    ),
    "a budget that is no quantity is reported": WindowCase(
        shortages=["spec.additionalMigrationResources: limits.cpu: "], additional={"limits.cpu": "much"}
    ),
    "and a quota that is none": WindowCase([quota({"limits.cpu": "much"}, {})], shortages=["limits.cpu: 'much' is"]),
    "and one that is less than nothing": WindowCase(
        shortages=["spec.additionalMigrationResources: limits.cpu: less than nothing"], additional={"limits.cpu": "-2"}
    ),
} | {
    f"{name} counts": WindowCase(full({name: SIDE[name]}), "quota", additional={name: SIDE[name]})
    for name in ("requests.memory", "requests.devices.kubevirt.io/kvm", "pods", "count/pods")
}
REFUSED = {
    "oldest first": of_a_pod("soon late", refused("late", created="2026-01-02T00:00:00Z"), refused("soon")),
    "not refused": of_a_pod("", vmim("Pending")),
    "new": of_a_pod("", vmim("")),
    "without a phase": of_a_pod("", vmim(None)),
    "past it": of_a_pod("", vmim("Scheduling", refused=True)),
    "being aborted": of_a_pod("", refused(abort=True)),
    "being deleted": of_a_pod("", refused(deleting=True)),
    "without its VMI": of_a_pod("", refused(), instances=[]),
    "its target pod was created": of_a_pod("", refused(), pods=[source(), target(refused())]),
    "its target pod has failed": of_a_pod("", refused(), pods=[source(), target(refused(), "Failed")]),
    "KubeVirt waits for an earlier pod to end": of_a_pod("", refused(), pods=[source(), BEFORE]),
    "which it has": of_a_pod("vm1", refused(), instances=[MOVED], pods=[ended(source()), BEFORE]),
    "or failed": of_a_pod("vm1", refused(), instances=[MOVED], pods=[ended(source(), "Failed"), BEFORE]),
}
WAITING = {
    "four migrations run": limited("", running=["a", "b", "c", "d"]),
    "five run, which is said first": limited("5 migrations run, 5 may", running=["node-1"] * 5),
    "one leaves the node": limited("", running=["node-1"]),
    "two leave it": limited("2 migrations leave node-1, 2 may", running=["node-1"] * 2),
    "one of them has moved on": limited("2 migrations leave node-1, 2 may", running=["node-1", "node-1 node-3"]),
    "two leave another": limited("", running=["node-2"] * 2),
    "the CR lets more run": limited(
        "",
        running=["a", "b", "c", "node-1", "node-1"],
        parallel={"parallelMigrationsPerCluster": 6, "parallelOutboundMigrationsPerNode": 3},
    ),
    "or fewer": limited(
        "1 migrations leave node-1, 1 may", running=["node-1"], parallel={"parallelOutboundMigrationsPerNode": 1}
    ),
    "or none": limited("0 migrations run, 0 may", parallel={"parallelMigrationsPerCluster": 0}),
    "one that rests is left alone until its time": WindowCase(
        timers=RESTS, waiting="a window for it was closed without a target pod, it is retried in 9 s", again=9.0
    ),
    "and no longer": WindowCase(blocking="quota", timers=WindowTimers(paused={UID: NOW})),
    "nor until then where the clock was set back by hours": WindowCase(
        blocking="quota", timers=WindowTimers(paused={UID: NOW + 9000})
    ),
    "a window is open for others": WindowCase(
        lock=lock(age=10), waiting="a window is open for other migrations: it is for the next one", again=30.0
    ),
    "a lock that is new joins others, whatever its date says": WindowCase(
        blocking="quota", lock=replace(lock(age=60), known_since=NOW)
    ),
    "or for it": WindowCase(blocking="quota", lock=lock(age=10), member=True),
    "a shortage is believed once it lasts": WindowCase(policy=WindowPolicy(), additional={}, again=SHORT),
    "no window stays open for it": WindowCase(
        policy=WindowPolicy(), additional={}, again=SHORT, lock=lock(), member=True
    ),
    "but while its target may be counted and not shown yet": WindowCase(
        [quota(FULL, TWICE)], "quota", policy=WindowPolicy(), again=SHORT, lock=lock(), member=True
    ),
    "one that others cause is believed much later": cpus(
        "4030m",
        "4030m",
        "vm1",
        running_vmi(),
        running_vmi("vm2"),
        policy=WindowPolicy(),
        additional={"limits.cpu": "3"},
        again=30.0,
    ),
    "not quite": WindowCase(
        policy=WindowPolicy(),
        additional={},
        again=0.25,
        timers=WindowTimers(short_since={(UID, False): NOW - SHORT + 0.25}),
    ),
    "it has lasted": WindowCase(
        policy=WindowPolicy(),
        additional={},
        shortages=["limits.cpu of"],
        timers=WindowTimers(short_since={(UID, False): NOW - SHORT}),
    ),
} | {
    f"the other strategy has {what} there": WindowCase([quota(annotations={key: "{}"})], waiting=TAKEN, again=30.0)
    for what, key in {
        "an entry by name": "harvesterhci.io/migrating-vm1",
        "an entry by uid": "harvesterhci.io/migratingUID-uid",
        "a compensation": "harvesterhci.io/migratingCompensation",
        "its mark": "headroom.harvesterhci.io/owner",
    }.items()
}
ADDED = {
    "a budget without room for the attachment pod starts nothing": attaching("2", "1", "", shortages=["pods of quota"]),
    "one with room for both does": attaching("2", "2", "quota"),
    "a quota with room for the first pod alone is not in its way": replace(
        attaching("3", "2", ""), quotas=[quota({"pods": "3"}, {"pods": "2"})]
    ),
    "the attachment pod waits for the first": attaching("3", "1", "", target(vmim("Pending"))),
    "then it is released by itself": attaching("3", "1", "quota", RUNNING),
    "and not when it is there": attaching("4", "1", "", RUNNING, attachment(RUNNING)),
    "what a VM has grown by has to fit the base": cpus(
        "3", "2015m", "", grown_vmi(), shortages=["limited 3, with what may be added 5015m"]
    ),
    "it is not what is added for another VM": cpus(
        "6", "5930m", "vm2", grown_vmi(), running_vmi("vm2"), headroom=CPU, shortages=["VM vm1"]
    ),
    "no more than the budget": cpus(
        "4030m",
        "4030m",
        "vm1",
        running_vmi(),
        running_vmi("vm2"),
        additional={"limits.cpu": "3"},
        headroom=CPU,
        shortages=["VM vm2"],
    ),
    "a VM is not short of what its own target does not need": replace(
        cpus("4030m", "4030m", "vm2", STATEFUL, running_vmi("vm2"), around=OF_BOTH, additional={"limits.cpu": "9"}),
        quotas=[
            quota(
                {"limits.cpu": "4030m", "requests.storage": "10Mi"}, {"limits.cpu": "4030m", "requests.storage": "10Mi"}
            )
        ],
        shortages=["VM vm1"],
    ),
    "VMs whose sides both run keep theirs": two_vms(
        "4030m", "6045m", "vm2", running_vmi("vm2"), headroom={"limits.cpu": "4030m"}
    ),
    # It has just ended: status.used shows it, and the cache does not.
    "growth does not fit into what another's target leaves": two_vms(
        "5", "4030m", "", grown_vmi("vm2"), shortages=["VM vm2"]
    ),
    "but into the base": two_vms("6030m", "4030m", "vm2", grown_vmi("vm2")),
}


@sentences(BLOCKING | REFUSED | WAITING | ADDED)
def test_what_is_released(case: WindowCase) -> None:
    budgets = [budget(case.additional, saved={} if case.member else None)]
    state = observed(case.quotas, budgets, case.around, lock=case.lock, timers=case.timers)
    current = window(state, case.policy)
    assert current.headroom.keys() == set(case.blocking.split())
    vm_names = ("vm1" if case.blocking else "") if case.vms is None else case.vms
    assert [target.migration.spec.vmi_name for target in current.targets] == vm_names.split()
    assert all(target.blocking == case.blocking.split() for target in current.targets)
    messages = [problem.message for problem in current.problems]
    assert len(messages) == len(case.shortages), messages
    assert all(map(str.__contains__, messages, case.shortages)), messages
    assert (case.headroom is None) or format_resource_list(current.headroom["quota"]) == case.headroom
    waiting = {target.migration.name: target.wait_reason for target in current.refused_targets if target.wait_reason}
    assert waiting == ({"migration-of-vm1": case.waiting} if case.waiting else {})
    assert current.recheck_after == case.again


def test_who_runs() -> None:
    phases = {
        "waits": "Pending",
        "has-its-pod": "Pending",
        "runs": "Running",
        "over": "Succeeded",
        "new-phase": "Unheard",
        "awaits-another-cluster": "WaitingForSync",
        "hears-of-it": "Synchronizing",
        "new": "",
    }
    migrations = [vmim(phase, vm) for vm, phase in phases.items()] + [vmim("Running", "unknown")]
    migrations.append(edited(vmim("Scheduling", "sent"), spec={"sendTo": {"connectURL": "elsewhere"}}))
    moved_vmi = running_vmi("runs", "new-node", migrationState={"sourceNode": "old-node"})
    vmis = [moved_vmi, *(running_vmi(vm, vm) for vm in phases if vm != "runs")]
    pods = [target(migrations[1]), target(migrations[3])]
    listed = Source(migrations=Listed(migrations), instances=Listed(vmis), pods=Listed(pods))
    current = with_running(Facts(ResourceQuota(), migrations=[vmim("Pending", "own")]), listed).running
    assert sorted(map(sorted, current)) == [[], ["has-its-pod"], ["new-node", "old-node"], ["new-phase"]]
    assert with_running(Facts(ResourceQuota(), migrations=[vmim("Running")]), listed).running == ()
