"""Invariants of the planner about a namespace in memory, whatever happened to it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from hypothesis import HealthCheck, Phase, settings

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, parse_resource_list, total
from pkg.util.resourcequota.entries import ENTRY_PREFIXES, entries
from tests.decisions import EXACT, by_value
from tests.objects import COMPENSATION, MARKS
from tests.pkg.util.resourcequota.model_cluster import BrokenInvariant, Cluster, Move

RANCHERS = {"limitsCpu": "limits.cpu", "limitsMemory": "limits.memory", "pods": "pods"}
BASES: list[dict[str, str]] = [
    {"limitsCpu": "6", "limitsMemory": "13Gi", "pods": "5"},
    {"limitsCpu": "3", "limitsMemory": "5000Mi", "pods": "2"},
    {"limitsMemory": "20Gi", "pods": "9"},
]
MEMORY_AMOUNTS = ["1Gi", "7Gi", "50Gi"]
RECORD, APPLIED = "headroom.harvesterhci.io/base", "headroom.harvesterhci.io/applied"


def drawn(count: int, *, usual: int, steps: int) -> settings:
    """Returns hypothesis' settings: always the same examples, unless more are requested."""
    quick = count or "HEADROOM_NO_SHRINK" in os.environ
    return settings(
        max_examples=count or usual,
        stateful_step_count=steps,
        derandomize=not count,
        phases=[Phase.generate] if quick else [Phase.generate, Phase.shrink],
        deadline=None,
        print_blob=False,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class Invariants:
    """The namespace, what is known of its past, and the checks. Each raises BrokenInvariant."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.own_base = Quantity.parse("9Gi")
        self.last_base = BASES[0]
        self.held_since: dict[str, float] = {}
        """Since when, at the latest, the planner knows that all of a VM's migrations are over."""
        self.beyond_since: dict[str, float] = {}
        """Since when a VM has had pods beyond one side."""
        self.default_is_edited = False

    def _moves(self, *, over: bool | None = None) -> list[Move]:
        return [move for move in self.cluster.moves.values() if over is None or move.over is over]

    def follow_people(self) -> None:
        """Takes the limits that people write to a quota without Rancher as its base, once the planner sees them; never
        the planner's own."""
        rq = self.cluster.looked_at.pop("own", None)
        if rq is None or rq.hard["requests.memory"] not in MEMORY_AMOUNTS:
            return
        is_raised = any(key.startswith((*ENTRY_PREFIXES, COMPENSATION)) for key in rq.annotations)
        applied = by_value(json.loads(rq.annotations.get(APPLIED, "{}")))
        edited = applied != by_value({"requests.memory": rq.hard["requests.memory"]}) if applied else not is_raised
        if RECORD not in rq.annotations or edited:
            self.own_base = Quantity.parse(rq.hard["requests.memory"])

    def check(self) -> None:
        self._note_what_is_held()
        if not self.cluster.base and not self.default_is_edited:
            self._nothing_is_added_without_a_base()
        for name in self.cluster.quotas:
            base = self._base_of(name)
            if base and not _garbage(self.cluster.quotas[name].annotations):
                hard = parse_resource_list(self.cluster.quotas[name].hard)
                self._never_below_what_pods_use(name, base, hard)
                self._entries_are_exact(name, base)

    def _base_of(self, name: str) -> ResourceList:
        if name == "own":
            return {"requests.memory": self.own_base}
        return parse_resource_list({RANCHERS[key]: text for key, text in self.cluster.base.items()})

    def note_what_is_beyond_one_side(self) -> None:
        """Notes since when VMs have pods beyond one side, whether the planner sees them or not."""
        beyond = [name for name in self.cluster.vms if self.cluster.beyond_one_side(name)]
        self.beyond_since = {name: self.beyond_since.get(name, self.cluster.now) for name in beyond}

    def _note_what_is_held(self) -> None:
        settled = [n for n in self.beyond_since if not any(m.vm == n for m in self._moves(over=False))]
        self.held_since = {name: self.held_since.get(name, self.cluster.now) for name in settled}

    def _hold_may_be_over(self, name: str) -> bool:
        """Reports whether the hold limit has passed, also while the VM migrates again."""
        return self.cluster.now - self.beyond_since.get(name, self.cluster.now) >= EXACT.hold_limit

    def _nothing_is_added_without_a_base(self) -> None:
        hard = self.cluster.quotas["default"].hard
        granted = {RANCHERS[key]: text for key, text in self.last_base.items()}
        if by_value({name: hard[name] for name in granted}) != by_value(granted):
            raise BrokenInvariant(f"default: {hard} although the namespace grants nothing any longer")

    def _never_below_what_pods_use(self, name: str, base: ResourceList, hard: ResourceList) -> None:
        """The base is for one side of every VM, and for everything else; what is beyond comes on top."""
        beyond = total(self._smaller(vm) for vm in self.cluster.vms if not self._hold_may_be_over(vm))
        for resource, limit in base.items():
            if hard[resource] < limit:
                raise BrokenInvariant(f"{name}: {resource} is {hard[resource]}, below the base of {limit}")
            if hard[resource] < limit + beyond.get(resource, ZERO):
                raise BrokenInvariant(f"{name}: {resource} is {hard[resource]}, below what pods use")

    def _smaller(self, vm: str) -> ResourceList:
        """min(source, target) of what is there."""
        home = self.cluster.home(vm)
        sides = self.cluster.vouched_sides(vm).values()
        return total({n: min(q, home.get(n, ZERO)) for n, q in side.items()} for side in sides)

    def _entries_are_exact(self, name: str, base: ResourceList) -> None:
        """Checks that an entry is the usage of a migration's present, future and leftover pods, to the byte; a VM
        without any has none."""
        annotations = self.cluster.quotas[name].annotations
        for vm, machine in self.cluster.vms.items():
            moves = [move for move in self.cluster.moves.values() if move.vm == vm]
            earlier = any(move.vmi_uid != machine.uid for move in moves)
            unsettled = any(not m.over and (m.abort or m.phase in ("", "Running")) for m in moves)
            key = f"harvesterhci.io/migrating-{vm}"
            text = annotations.get(key)
            claims = total([self.cluster.beyond_one_side(vm), *map(self.cluster.to_come, moves)])
            exact = {n: q for n, q in claims.items() if n in base and q > ZERO}
            present = parse_resource_list(json.loads(text)) if text else {}
            if key in self.cluster.memories[name].unexplained:  # another controller's, before the quota was ours
                continue
            if self.cluster.now - self.held_since.get(vm, self.cluster.now) >= EXACT.hold_limit and present:
                raise BrokenInvariant(f"{name}: {vm} is held beyond the limit")
            if f"harvesterhci.io/migratingUID-{machine.uid}" in annotations and present:
                raise BrokenInvariant(f"{name}: {vm} counts twice")
            if earlier or (unsettled and present):
                continue
            least = {n: min(q, self._smaller(vm).get(n, ZERO)) for n, q in exact.items()}
            excess = {n for n, q in present.items() if q > exact.get(n, ZERO)}
            shortage = {n for n, q in least.items() if q > present.get(n, ZERO)}
            if excess or (shortage and not self._hold_may_be_over(vm)):
                raise BrokenInvariant(f"{name}: the entry of {vm} is {present}, from {least} to {exact} is right")

    def _nothing_is_left(self) -> None:
        for name, marks in (("default", set(MARKS)), ("own", {RECORD})):
            rq = self.cluster.quotas[name]
            base = self._base_of(name)
            if rq.annotations.keys() != marks:
                raise BrokenInvariant(f"{name}: annotations are left: {rq.annotations}")
            hard = parse_resource_list(rq.hard)
            if {n: hard[n] for n in base} != base:
                raise BrokenInvariant(f"{name}: {hard} is not the base {base}")


def _garbage(annotations: Mapping[str, str]) -> bool:
    """An entry that cannot be parsed: spec.hard is left alone until it goes."""
    return any(entry.text == "{nope" for entry in entries(annotations))
