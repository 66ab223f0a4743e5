"""A namespace in a Rancher project, in memory: headroom's plans, the person's edits, and Rancher's sync as its code has
it (resource_quota_sync.go): validate what the namespaces of the project request, then write spec.hard or leave it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace as replaced

from msgspec.structs import replace

from kubeloop.api.core import Namespace, Pod
from kubeloop.api.quantity import ZERO, Quantity
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.resourcequota.base import parse_limits
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.observe import Listed, Observer, Source
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.timers import Timers
from tests.decisions import HARVESTER, by_value
from tests.objects import BASE, HARD, Resources, build, quota, vmi, vmim

KEY = constants.ANNOTATION_RANCHER_RESOURCE_QUOTA
PROJECT = {"limits.cpu": "100", "limits.memory": "100Gi"}


class RancherNamespace:
    """The namespace `ns1`, and what others of its project request. Nothing happens unless a test says so."""

    def __init__(
        self,
        annotation: str = BASE,
        hard: Resources = HARD,
        *,
        asks: bool = True,
        project: Resources = PROJECT,
        others: Resources | None = None,
        policy: Policy = HARVESTER,
        in_project: bool = True,
        annotations: dict[str, str] | None = None,
    ) -> None:
        marks = {constants.ANNOTATION_PROJECT: "c-1:p-1"} if in_project else {}
        self.namespace = build(Namespace, "ns1", namespace="", annotations={KEY: annotation, **marks})
        self.quota = quota(hard, annotations)
        self.asks, self.project, self.others, self.policy = asks, project, dict(others or {}), policy
        self.migrations: list[VirtualMachineInstanceMigration] = []
        self.instances: list[VirtualMachineInstance] = []
        self.pods: list[Pod] = []
        self.timers, self.now, self.clock = Timers(), 1000.0, 0
        self.writes = 0
        """Of the namespace, by headroom."""

    # ---- others ----------------------------------------------------------------------------------------------

    def migrate(self, *names: str, phase: str = "Pending") -> None:
        """VMs of the seed migrate, or their migrations are in another phase now."""
        for name in names:
            self.migrations = [m for m in self.migrations if m.spec.vmi_name != name] + [vmim(phase, name)]
            self.instances = [v for v in self.instances if v.name != name] + [vmi(name)]

    def edit(self, **limits: str) -> None:
        """A person changes limits of the annotation as it is now."""
        document = json.loads(self.annotation)
        document["limit"] |= limits
        self.annotate({KEY: json.dumps(document)})

    def annotate(self, changes: dict[str, str | None]) -> None:
        merged = {**self.namespace.annotations, **changes}
        annotations = {key: text for key, text in merged.items() if text is not None}
        self.namespace = replace(self.namespace, metadata=replace(self.namespace.metadata, annotations=annotations))

    def sync(self) -> None:
        """Rancher works off an event of the namespace. It spells the annotation anew."""
        requested = {name: Quantity.parse(text) for name, text in parse_limits(self.annotation).items()}
        if by_value(self.quota.hard) == requested:
            return
        exceeded = {n: q + Quantity.parse(self.others.get(n, "0")) for n, q in requested.items() if n in self.project}
        exceeded = {name: amount for name, amount in exceeded.items() if amount > Quantity.parse(self.project[name])}
        self.annotate({KEY: json.dumps(json.loads(self.annotation), sort_keys=True)})
        self._condition("; ".join(f"Oversubscribed resource quota [{n}={q}]" for n, q in exceeded.items()))
        if not exceeded:
            self.quota = replace(
                self.quota, spec=replace(self.quota.spec, hard={n: str(q) for n, q in requested.items()})
            )

    def _condition(self, message: str) -> None:
        self.clock += 1
        condition = {
            "Type": "ResourceQuotaValidated",
            "Status": "False" if message else "True",
            "Message": message,
            "LastUpdateTime": f"2026-01-01T00:00:{self.clock:02}Z",
        }
        self.annotate({constants.ANNOTATION_RANCHER_STATUS: json.dumps({"Conditions": [condition]})})

    # ---- headroom --------------------------------------------------------------------------------------------

    def observe(self) -> Facts:
        source = Source(
            namespaces=Listed([self.namespace]),
            quotas=Listed([self.quota]),
            migrations=Listed(self.migrations),
            instances=Listed(self.instances),
            pods=Listed(self.pods),
        )
        facts = Observer(source, asks=lambda _: self.asks).observe(self.quota, self.now, self.timers)
        return replaced(facts, rendering=replaced(facts.rendering, ratio="1.5", harvester_ratio="1.5"))

    def look(self) -> Plan:
        """Makes one decision and applies it; the plan for the result is empty."""
        decision = plan(self.observe(), self.policy)
        self._apply(decision)
        repetition = plan(self.observe(), self.policy)
        assert not repetition, f"a plan applied gives another plan: {repetition}"
        return decision

    def _apply(self, decision: Plan) -> None:
        self.timers = decision.timers
        if decision.namespace:
            self.writes += 1
            self.annotate(dict(decision.namespace))
        if not decision.asks:
            merged = {**self.quota.annotations, **decision.annotations}
            annotations = {key: text for key, text in merged.items() if text is not None}
            hard = {**self.quota.hard, **decision.hard}
            self.quota = replace(
                self.quota,
                metadata=replace(self.quota.metadata, annotations=annotations),
                spec=replace(self.quota.spec, hard=hard),
            )

    def settle(self, rounds: int = 6) -> None:
        """Both in turn until nothing changes."""
        for _ in range(rounds):
            state = self.requested, self.record, self.quota
            self.look()
            self.sync()
            if (self.requested, self.record, self.quota) == state and not plan(self.observe(), self.policy):
                return
        raise AssertionError(f"it does not settle: {self.annotation}, {self.quota.hard}")

    # ---- what there is ---------------------------------------------------------------------------------------

    @property
    def annotation(self) -> str:
        return self.namespace.annotations.get(KEY, "")

    @property
    def requested(self) -> dict[str, Quantity]:
        return {name: Quantity.parse(text) for name, text in parse_limits(self.annotation).items()}

    @property
    def record(self) -> str | None:
        return self.namespace.annotations.get(constants.ANNOTATION_REQUEST)

    @property
    def hard(self) -> dict[str, Quantity]:
        return {name: Quantity.parse(limit) for name, limit in self.quota.hard.items()}


def amounts(limits: Resources, additions: Sequence[Resources] = ()) -> dict[str, Quantity]:
    """Limits, and what is added to them, as quantities."""
    total = {name: Quantity.parse(limit) for name, limit in limits.items()}
    for addition in additions:
        total = {name: limit + Quantity.parse(addition.get(name, "0")) for name, limit in total.items()}
    return {name: limit for name, limit in total.items() if limit != ZERO}
