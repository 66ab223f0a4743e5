"""Namespaces as the planner sees them in memory, and what its plans make of the quota."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.meta import RawQuantity
from kubeloop.api.quantity import Quantity, QuantityError
from pkg.api.kubevirt import MigrationState, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.target import usage_of
from pkg.util.resourcequota.facts import Facts, Plan, Timers
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.objects import AT_1_5, BASE, HARD, MARKS, RAISED, RESYNC, Resources, by_name, by_uid, quota, vmi, vmim

EXACT = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
HARVESTER = Policy(Mode.TAKEOVER, EstimateKind.HARVESTER)
ENDED = ("Succeeded", "Failed")
HANDED_OVER = ("PreparingTarget", "TargetReady", "Running", *ENDED)

drawn = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""How much hypothesis draws. No deadlines: the machine may be busy."""


def sentences(cases: Mapping[str, Any], names: str = "case") -> pytest.MarkDecorator:
    """A table of cases by the sentence that each one proves; the test takes `case`, or its parts by these names."""
    return pytest.mark.parametrize(names, list(cases.values()), ids=list(cases))


def observed(
    quota: ResourceQuota,
    migrations: Sequence[VirtualMachineInstanceMigration] = (),
    instances: Iterable[VirtualMachineInstance] | None = None,
    *,
    limits: str = BASE,
    ratio: str = "1.5",
    now: float = 0.0,
    timers: Timers | None = None,
) -> Facts:
    """Builds what a decision looks at; without `instances` every migration's VMI is there with the seed's values."""
    if instances is None:
        instances = [vmi(name) for name in sorted({migration.spec.vmi_name for migration in migrations})]
    return Facts(
        quota=quota,
        limits=limits,
        migrations=migrations,
        instances={instance.name: instance for instance in instances},
        now=now,
        timers=timers or Timers(),
        rendering=Rendering(ratio=ratio, harvester_ratio=ratio),
    )


@dataclass(frozen=True)
class Case:
    """A quota as it is found in its namespace, and what is left of it: its annotations, and spec.hard."""

    before: Mapping[str, str]
    left: Mapping[str, str]
    hard: Resources = field(default_factory=lambda: dict(HARD))
    raised: Resources = field(default_factory=lambda: dict(RAISED))
    """spec.hard as it is found."""
    migrations: Sequence[VirtualMachineInstanceMigration] = (vmim("Running"),)
    instances: Sequence[VirtualMachineInstance] | None = None
    limits: str = BASE
    ratio: str = "1.5"
    taken: Mapping[str, str] | None = None
    """What is left in takeover, where that is not our marks and `left` with entries by name."""

    def seen(self, marks: Mapping[str, str] | None = None) -> Facts:
        """Builds what a decision looks at; `marks`: annotations that every quota of the table has."""
        current = quota(self.raised, {**(marks or {}), **self.before})
        return observed(current, self.migrations, self.instances, limits=self.limits, ratio=self.ratio)

    def check(self, after: ResourceQuota) -> None:
        assert after.annotations == self.left
        assert by_value(after.hard) == by_value(self.hard)

    def settles(self, mode: Mode) -> None:
        """Takes one patch, and nothing is left to do."""
        facts = self.seen()
        record, _made = after(facts, Policy(mode))
        renamed = {key.replace(by_uid(""), by_name("")): text for key, text in self.left.items()}
        expected = {**MARKS, **renamed} if self.taken is None else self.taken
        dataclasses.replace(self, left=self.left if mode is Mode.ASSIST else expected).check(record)


def namespace(
    quota: ResourceQuota,
    migrations: Sequence[VirtualMachineInstanceMigration] = (),
    pods: Iterable[Pod] = (),
    instances: Iterable[VirtualMachineInstance] | None = None,
    *,
    rendering: Rendering = AT_1_5,
    max_extra: str = "",
    **options: Any,
) -> Facts:
    """Builds what a decision looks at; without `instances` each VM of a migration is there, on node-1.

    The quota's status.used is what it charges for the pods, unless the quota has one.
    """
    pods = list(pods)
    if instances is None:
        names = {m.spec.vmi_name for m in migrations}
        instances = [vmi(name, nodeName="node-1") for name in sorted(names)]
    instances = list(instances)
    migrations = [named(migration, pods, instances) for migration in migrations]
    if not quota.used:
        quota = charged(quota, pods)
    facts = observed(quota, migrations, instances, ratio=rendering.ratio or "1", **options)
    rendering = dataclasses.replace(rendering, harvester_ratio=facts.rendering.harvester_ratio)
    return dataclasses.replace(facts, pods=pods, rendering=rendering, max_extra=max_extra)


def named(
    migration: VirtualMachineInstanceMigration, pods: Sequence[Pod], instances: Sequence[VirtualMachineInstance]
) -> VirtualMachineInstanceMigration:
    """The migration with the pods that KubeVirt names in its status: the source from Pending on, the target once it has
    been handed over; as it is if it names any."""
    vmi = next((vmi for vmi in instances if vmi.name == migration.spec.vmi_name), None)
    phase = migration.phase
    if not phase or (migration.status.migration_state and migration.status.migration_state.source_pod):
        return migration

    def is_its(pod: Pod) -> bool:
        owners = pod.metadata.owner_references or ()
        return any(owner.kind == "VirtualMachineInstance" and owner.name == migration.spec.vmi_name for owner in owners)

    launchers = [pod for pod in pods if is_its(pod)]
    targets = [p for p in launchers if p.labels.get("kubevirt.io/migrationJobUID") == migration.uid]
    node = vmi.status.node_name if vmi else None
    other_pods = [p for p in launchers if p not in targets and (phase in ENDED or p.spec.node_name == node or targets)]
    state = msgspec.to_builtins(migration.status.migration_state or MigrationState())
    if other_pods:
        state["sourcePod"] = other_pods[0].name
    if targets and phase in HANDED_OVER:
        state |= {"targetPod": targets[0].name, "targetNode": targets[0].spec.node_name}
    status = msgspec.structs.replace(
        migration.status, migration_state=msgspec.convert(state, MigrationState) if state else None
    )
    return msgspec.structs.replace(migration, status=status)


def charged(quota: ResourceQuota, pods: Iterable[Pod]) -> ResourceQuota:
    """The quota with status.used as the quota controller sets it."""
    usage = usage_of(pods, quota.spec)
    used: Resources = {name: str(usage[name]) if name in usage else "0" for name in quota.hard}
    return msgspec.structs.replace(quota, status=msgspec.structs.replace(quota.status, used=used))


def applied(quota: ResourceQuota, plan: Plan) -> ResourceQuota:
    """The quota after the API server has merged the patch."""
    version = str(int(quota.metadata.resource_version or "0") + (1 if plan else 0))
    return msgspec.structs.replace(
        quota,
        metadata=msgspec.structs.replace(
            quota.metadata, annotations=plan.annotations_of(quota), resource_version=version
        ),
        spec=msgspec.structs.replace(quota.spec, hard=quota.hard | dict(plan.hard)),
    )


def remembering(facts: Facts, memory: Timers, now: float) -> Facts:
    """The same namespace later, with what the last decision remembered."""
    return dataclasses.replace(facts, timers=memory, now=now)


def entry(text: str | None) -> dict[str, str]:
    """An entry annotation's value as the API server keeps it."""
    assert text is not None
    value: dict[str, str] = json.loads(text)
    return value


def after(facts: Facts, policy: Policy = EXACT, patches: int = 1) -> tuple[ResourceQuota, Plan]:
    """The quota when nothing is left to do, and the one patch that brought it there, or the last of `patches`.

    Another patch for the same observation is a failure.
    """
    combined = Plan()
    for _ in range(patches):
        combined = plan(facts, policy)
        facts = dataclasses.replace(facts, quota=applied(facts.quota, combined), timers=combined.timers)
    again = plan(facts, policy)
    assert not again, f"{patches} plans applied give another plan: {again}"
    return facts.quota, combined


def by_value(resources: Mapping[str, RawQuantity | None]) -> dict[str, Any]:
    """Quantities compare by value; what is none stays text."""
    return {name: _value(raw) for name, raw in resources.items()}


def entries_by_value(annotations: Mapping[str, str]) -> dict[str, Any]:
    """Annotations with resource lists by value. The resync flag's "false" says nothing and is left out."""
    recorded: dict[str, Any] = {}
    for key, text in annotations.items():
        if (key, text) == (RESYNC, "false"):
            continue
        try:
            recorded[key] = by_value(json.loads(text))
        except (ValueError, AttributeError):
            recorded[key] = text
    return recorded


def _value(raw: Any) -> Any:
    try:
        return Quantity.parse(raw)
    except QuantityError:
        return raw
