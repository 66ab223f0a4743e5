"""A namespace with a budget in memory: its quotas, VMs, migrations and lock, and what one step makes of them.

Everything is the seed's unless a test says otherwise: VM vm1 with limits 2 / 4Gi, its pod counts SIDE.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from kubeloop.api.core import Pod, ResourceQuota, ValidatingWebhookConfiguration
from kubeloop.api.meta import rfc3339
from kubeloop.api.resource_list import format_resource_list
from kubeloop.testing.fake.patches import merged
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util.constants import ANNOTATION_ORIGINALS
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.managedtenantquota.lock import Lock, lock_body, lock_webhook, recognise
from pkg.util.managedtenantquota.model import Observed, Record, WindowPolicy, WindowTimers
from pkg.util.managedtenantquota.sequence import Step, Wait, Window, Write
from pkg.util.managedtenantquota.sequence import next_step as of_window
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resourcequota.facts import Facts
from tests.objects import AT_1_5, Resources, build, launcher, running_vmi, vmim

NOW = 1_800_000_000.0
AT_ONCE = WindowPolicy(cache_delay=0.0, crowding=0.0)
SIDE = format_resource_list(pod_usage(launcher()))
"""What the seed's launcher pod counts, by every name."""
FULL = {"limits.cpu": SIDE["limits.cpu"], "limits.memory": SIDE["limits.memory"]}
"""A quota that one side fills."""
TWICE = {"limits.cpu": "4030m", "limits.memory": str(2 * 4797464313)}
ENOUGH = {"limits.cpu": "3", "limits.memory": "5Gi"}
RAISED = {"limits.cpu": "5015m", "limits.memory": str(4797464313 + 5 * 2**30)}
"""By all that the budget adds, as KubeVirt's own controller does."""
GRANTED = TWICE
"""By what a window adds for one VM."""
WHERE = {"url": "https://127.0.0.1:9443/lock", "caBundle": "Q0E="}
HOOKS = partial(lock_webhook, "ns1", WHERE, owners=["me"], virt_controllers=["virt"])
HOOK = HOOKS()
FOR_VM1 = HOOKS(admitted=["uid-migration-of-vm1/vm1"])


def quota(
    hard: Resources | None = None,
    used: Resources | None = None,
    *,
    name: str = "quota",
    enforced: Resources | None = None,
    annotations: Mapping[str, str] | None = None,
    deleting: bool = False,
    **spec: Any,
) -> ResourceQuota:
    """Filled by one side unless told otherwise; `enforced` is status.hard where that lags behind."""
    hard = FULL if hard is None else hard
    return build(
        ResourceQuota,
        name,
        {"hard": dict(hard), **spec},
        {"hard": dict(enforced or hard), "used": dict(FULL if used is None else used)},
        resourceVersion="7",
        annotations=dict(annotations or {}),
        deletionTimestamp="2026-01-01T00:00:00Z" if deleting else None,
    )


def budget(
    additional: Resources | None = None,
    *,
    saved: Mapping[str, Resources] | None = None,
    members: Mapping[str, Sequence[str]] | None = None,
    added: Resources | None = None,
    name: str = "budget",
    **metadata: Any,
) -> VirtualMachineMigrationResourceQuota:
    """`saved`: quota to original spec.hard, as its status has it. What may be added is mirrored there."""
    status: dict[str, Any] = {}
    if saved is not None:
        status["originalBlockingResourceQuotas"] = [
            {"name": quota_name, "spec": {"hard": dict(hard)}} for quota_name, hard in saved.items()
        ]
        status["migrationsToBlockingResourceQuotas"] = {
            quota_name: list(quotas) for quota_name, quotas in (members or {"migration-of-vm1": list(saved)}).items()
        }
        status["additionalMigrationResources"] = dict(added or additional or ENOUGH)
    else:
        mirrored = added if added is not None else ENOUGH if additional is None else additional
        status["additionalMigrationResources"] = dict(mirrored)
    spec = {"additionalMigrationResources": dict(ENOUGH if additional is None else additional)}
    metadata = {"resourceVersion": "9", **metadata}
    return build(VirtualMachineMigrationResourceQuota, name, spec, status, **metadata)


RECORD = {ANNOTATION_ORIGINALS: Record(FULL, ENOUGH).text("quota")}
"""The annotations of a quota that was raised by all of it."""


def lock(age: float = 1.0, hook: Mapping[str, Any] = FOR_VM1, *, ours: bool = True, uid: str = "uid-lock") -> Lock:
    """`age` seconds old."""
    body = lock_body("ns1", hook, now=NOW - age, owner="headroom (me) on host", reason="vm1")
    body["metadata"] |= {"uid": uid, "resourceVersion": "11"}
    if not ours:
        body["metadata"] |= {"annotations": {}, "creationTimestamp": rfc3339(NOW - age, "microseconds")}
    result = recognise(msgspec.convert(body, ValidatingWebhookConfiguration))
    assert result is not None
    return replace(result, known_since=NOW - age)


def refused(vm: str = "vm1", **fields: Any) -> VirtualMachineInstanceMigration:
    """A migration whose target pod quota has refused."""
    return vmim("Pending", vm, **{"refused": True, **fields})


def source(vm: str = "vm1") -> Pod:
    """The pod that a VM runs in."""
    return launcher(running_vmi(vm))


def target(migration: VirtualMachineInstanceMigration, phase: str = "Pending") -> Pod:
    """The migration's target pod."""
    vm = migration.spec.vmi_name
    return launcher(running_vmi(vm), node="node-2", migration=migration, phase=phase)


def surroundings(
    migrations: Sequence[VirtualMachineInstanceMigration] | None = None,
    *,
    instances: Sequence[VirtualMachineInstance] | None = None,
    pods: Sequence[Pod] | None = None,
    running: Sequence[str] = (),
    rendering: Rendering = AT_1_5,
    parallel: Mapping[str, int] | None = None,
) -> Facts:
    """The observation of one refused migration by default; every VM has its VMI and its source pod. `running`: the
    nodes of each migration that runs."""
    migrations = [refused()] if migrations is None else migrations
    vms = sorted({migration.spec.vmi_name for migration in migrations})
    result = [running_vmi(vm) for vm in vms] if instances is None else instances
    if parallel is not None:
        configuration = msgspec.convert({"migrations": dict(parallel)}, KubeVirtConfiguration)
        rendering = replace(rendering, kubevirt=configuration)
    return Facts(
        ResourceQuota(),
        migrations=migrations,
        instances={instance.name: instance for instance in result},
        pods=[source(vm) for vm in vms] if pods is None else pods,
        rendering=rendering,
        running=[frozenset(nodes.split()) for nodes in running],
    )


def observed(
    quotas: Sequence[ResourceQuota] | None = None,
    budgets: Sequence[VirtualMachineMigrationResourceQuota] | None = None,
    around: Facts | None = None,
    *,
    lock: Lock | None = None,
    exists: bool = True,
    timers: WindowTimers | None = None,
    now: float = NOW,
    why_not: str = "",
    **fields: Any,
) -> Observed:
    """Returns a namespace's observation; with `why_not` it cannot be locked."""
    return Observed(
        namespace="ns1",
        exists=exists,
        budgets=[budget()] if budgets is None else budgets,
        lock=lock,
        quotas=[quota()] if quotas is None else quotas,
        facts=around or surroundings(),
        now=now,
        lock_unavailable_reason=why_not,
        render_webhook=None if why_not else lambda admitted: HOOKS(admitted=admitted),
        timers=timers or WindowTimers(),
        **fields,
    )


def window(observed: Observed, policy: WindowPolicy | None = None) -> Window:
    return Window(observed, policy or WindowPolicy())


def next_step(observed: Observed, policy: WindowPolicy | None = None) -> Step:
    return of_window(window(observed, policy))


def next_write(observed: Observed) -> Write:
    step = next_step(observed)
    assert isinstance(step, Write)
    return step


def name_of(step: Step) -> str:
    return step.name if isinstance(step, Write) else "Wait"


def after(observed: Observed, step: Step) -> Observed:
    """Returns the observation after the step is written and the controller manager has looked."""
    match step:
        case Wait():
            return observed
        case Write(name="Unlock"):
            return replace(observed, lock=None)
        case Write(name="MakeLock" | "UpdateLock", body=body):
            age = NOW - (observed.lock.since if observed.lock else observed.now)
            return replace(observed, lock=lock(age, body["webhooks"][0]))
        case Write(subject=ResourceQuota() as quota, body=patch):
            changed = merged(msgspec.to_builtins(quota), patch)
            changed["status"]["hard"] = changed["spec"]["hard"]
            changed_quota = msgspec.convert(changed, ResourceQuota)
            return replace(
                observed, quotas=[changed_quota if q.name == changed_quota.name else q for q in observed.quotas]
            )
        case Write(subject=VirtualMachineMigrationResourceQuota() as budget, body=patch):
            written = msgspec.convert(merged(msgspec.to_builtins(budget), patch), type(budget))
            return replace(observed, budgets=[written if b.name == written.name else b for b in observed.budgets])
    raise AssertionError(f"no such write: {step.name}")


def walked(observed: Observed, policy: WindowPolicy | None = None, most: int = 50) -> tuple[list[str], Observed]:
    """The names of the steps until there is nothing to write; short waits pass."""
    names: list[str] = []
    for _ in range(most):
        current = window(observed, policy)
        step, observed = of_window(current), replace(observed, timers=current.timers)
        if isinstance(step, Wait):
            if step.seconds > 0.5:
                return names, observed
            observed = replace(observed, now=observed.now + max(0.01, step.seconds))
            continue
        names.append(step.name)
        observed = after(observed, step)
    raise AssertionError(f"no end: {names}")
