"""Whatever happens in whatever order: the promises of the planner hold (issue 5: hypothesis).

A namespace with two quotas and three VMs, in which KubeVirt, Rancher, Harvester, people and the clock do something at
random, while the planner is awake, asleep, restarted, or sees some kinds as they were a while ago.
HEADROOM_INTERLEAVINGS=N plays N other random stories instead of the usual ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList, parse_resource_list, subtract, total
from pkg.util.resourcequota.annotations import ENTRY_PREFIXES, entries
from tests.pkg.util.resourcequota.paper_cluster import BrokenPromise, Cluster
from tests.pkg.util.resourcequota.paper_objects import KINDS, Move, other_pod, side_of
from tests.pkg.util.resourcequota.pods import EXACT
from tests.pkg.util.resourcequota.world import COMPENSATION, ENTRY, MARKS, by_value

RANCHERS = {"limitsCpu": "limits.cpu", "limitsMemory": "limits.memory", "pods": "pods"}
BASES: list[dict[str, str]] = [
    {"limitsCpu": "6", "limitsMemory": "13Gi", "pods": "5"},
    {"limitsCpu": "3", "limitsMemory": "5000Mi", "pods": "2"},
    {"limitsMemory": "20Gi", "pods": "9"},
]
MEMORY_AMOUNTS = ["1Gi", "7Gi", "50Gi"]
RECORD, APPLIED = "headroom.harvesterhci.io/base", "headroom.harvesterhci.io/applied"
STORIES = int(os.environ.get("HEADROOM_INTERLEAVINGS", "0"))


class Interleavings(RuleBasedStateMachine):
    """Each rule is something that may happen; after each the planner runs, if it is awake."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.own_base = Quantity.parse("9Gi")
        self.last_base = BASES[0]
        self.awake = True
        self.beyond_since: dict[str, float] = {}
        """Since when a VM has had pods beyond one side."""
        self.default_is_edited = False
        self.refused: set[str] = set()
        """The migrations that were refused when the planner had last seen everything, and nobody disturbed since."""

    @initialize(ratio=st.sampled_from(["1.5", ""]))
    def a_namespace_with_vms(self, ratio: str) -> None:
        self.cluster.ratio = ratio
        for name in ("a", "b", "plugged"):
            self.cluster.start(name)

    # ---- KubeVirt --------------------------------------------------------------------------------------------

    def _moves(self, *, over: bool | None = None) -> list[Move]:
        return [move for move in self.cluster.moves.values() if over is None or move.over is over]

    @precondition(lambda self: self.cluster.vms)
    @rule(data=st.data())
    def migrate(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.cluster.vms)))
        if not any(move.vm == name for move in self._moves(over=False)):
            self.cluster.migrate(name)

    @rule()
    def a_node_is_evacuated(self) -> None:
        """Several at once; whoever is not seen by the planner yet is first refused, or takes another's room."""
        for name in set(self.cluster.vms) - {move.vm for move in self._moves(over=False)}:
            move = self.cluster.moves[self.cluster.migrate(name)]
            self._go_on(move, 2)
        self.refused.clear()

    @precondition(lambda self: self._moves(over=False))
    @rule(data=st.data(), steps=st.integers(1, 10))
    def kubevirt_goes_on(self, data: st.DataObject, steps: int) -> None:
        self._go_on(data.draw(st.sampled_from(self._moves(over=False))), steps)

    @precondition(lambda self: self._moves(over=False))
    @rule(data=st.data())
    def kubevirt_goes_on_by_one_step(self, data: st.DataObject) -> None:
        self._go_on(data.draw(st.sampled_from(self._moves(over=False))), 1)

    def _go_on(self, move: Move, steps: int) -> None:
        """Each step by itself: the planner sees what is between only when it runs."""
        for _ in range(steps):
            if self.cluster.step(move) is not False:
                continue
            if move.name in self.refused:
                raise BrokenPromise(f"{move.name} is refused although the planner saw that it was")
            return

    @precondition(lambda self: self._moves(over=False))
    @rule(data=st.data(), how=st.sampled_from(["fails", "is aborted", "is deleted"]))
    def a_migration_ends_early(self, data: st.DataObject, how: str) -> None:
        move = data.draw(st.sampled_from(self._moves(over=False)))
        if how == "fails":
            self.cluster.end(move, "Failed")
        elif how == "is aborted":
            move.abort = True
        else:
            del self.cluster.moves[move.name]

    @precondition(lambda self: self._moves(over=True))
    @rule(data=st.data())
    def a_migration_that_is_over_is_deleted(self, data: st.DataObject) -> None:
        del self.cluster.moves[data.draw(st.sampled_from(self._moves(over=True))).name]

    @precondition(lambda self: self.cluster.left_over())
    @rule(data=st.data(), how=st.sampled_from(["Succeeded", "Failed", "gone"]))
    def a_pod_ends(self, data: st.DataObject, how: str) -> None:
        self.cluster.finish(data.draw(st.sampled_from(self.cluster.left_over())), how)

    @rule(name=st.sampled_from(["a", "b", "plugged"]))
    def a_vm_is_stopped_or_started(self, name: str) -> None:
        if name in self.cluster.vms:
            del self.cluster.vms[name]
        elif not any(True for _ in self.cluster.sides(name)):
            self.cluster.start(name)
            self.refused.clear()

    @rule(ratio=st.sampled_from(["", "1.5", "4.5"]))
    def the_ratio_is_changed(self, ratio: str) -> None:
        self.cluster.ratio = ratio
        self.refused.clear()

    # ---- Rancher, Harvester, people --------------------------------------------------------------------------

    @rule(memory=st.sampled_from(["200Mi", "2Gi"]))
    def another_pod_takes_room(self, memory: str) -> None:
        self.cluster.counter += 1
        self.cluster.admit(other_pod(self.cluster.counter, memory))
        self.refused.clear()

    @precondition(lambda self: self.cluster.base)
    @rule()
    def ranchers_agent_restarts(self) -> None:
        self._render()

    @rule(base=st.sampled_from([*BASES, {}]))
    def the_namespaces_annotation_changes(self, base: dict[str, str]) -> None:
        self.cluster.base = base
        if base:
            self.last_base = base
            self._render()

    def _render(self) -> None:
        # What the planner has not seen when the annotation goes, or has not applied, cannot be told from what it has.
        strange = self.default_is_edited and any(entries(self.cluster.quotas["default"].annotations))
        self.default_is_edited = strange or not self.awake or bool(self.cluster.frozen)
        self.cluster.write("default", {n: self.cluster.base.get(key) for key, n in RANCHERS.items()}, {})
        self.refused.clear()

    @rule(
        quota=st.sampled_from([("default", "limits.memory"), ("own", "requests.memory")]),
        what=st.sampled_from(["spec.hard", "every entry", "entries and compensation", "everything"]),
        memory=st.sampled_from(MEMORY_AMOUNTS),
    )
    def somebody_edits_or_removes(self, quota: tuple[str, str], what: str, memory: str) -> None:
        name, resource = quota
        before = self.cluster.quotas[name].annotations
        removed = {
            "spec.hard": [],
            "every entry": [entry.key for entry in entries(before)],
            "entries and compensation": [*(entry.key for entry in entries(before)), COMPENSATION],
            "everything": list(before),
        }[what]
        edits = what in ("spec.hard", "everything")
        self.default_is_edited |= name == "default"
        self.cluster.write(name, {resource: memory} if edits else {}, dict.fromkeys(removed))
        self.refused.clear()

    @rule(
        name=st.sampled_from(["default", "own"]),
        key=st.sampled_from(["migratingUID-gone", "migrating-gone", "migrating-a", "migratingCompensation"]),
        text=st.sampled_from([ENTRY, "{nope"]),
    )
    def somebody_writes_an_entry(self, name: str, key: str, text: str) -> None:
        self.default_is_edited |= name == "default"
        self.cluster.write(name, {}, {f"harvesterhci.io/{key}": text})
        self.refused.clear()

    def _follow_people(self) -> None:
        """Outside migrations what people write to a quota without Rancher is its base, once the planner sees it;
        never what the planner wrote."""
        rq = self.cluster.looked_at.pop("own", None)
        if rq is None or rq.hard["requests.memory"] not in MEMORY_AMOUNTS:
            return
        added = any(key.startswith((*ENTRY_PREFIXES, COMPENSATION)) for key in rq.annotations)
        applied = by_value(json.loads(rq.annotations.get(APPLIED, "{}")))
        added |= applied == by_value({"requests.memory": rq.hard["requests.memory"]})
        if RECORD not in rq.annotations or not added:
            self.own_base = Quantity.parse(rq.hard["requests.memory"])

    # ---- the planner -----------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 61.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.now += seconds

    @rule(how=st.sampled_from(["restarts", "falls asleep", "wakes up", "wakes up"]))
    def the_planner(self, how: str) -> None:
        self.awake = how != "falls asleep"
        if how == "restarts":
            self.cluster.memories.clear()

    @rule(kind=st.sampled_from(KINDS))
    def a_watch_is_cut(self, kind: str) -> None:
        self.cluster.frozen.setdefault(kind, getattr(self.cluster.truth(), kind))

    @precondition(lambda self: self.cluster.frozen)
    @rule()
    def the_watches_catch_up(self) -> None:
        self.cluster.frozen.clear()

    @invariant()
    def the_planner_keeps_its_promises(self) -> None:
        if not self.awake:
            return
        for _ in range(3):
            waits = [made.look_again for made in self.cluster.reconcile() if made.look_again is not None]
            self._follow_people()
            if not waits or min(waits) > EXACT.settle:
                break
            self.cluster.now += min(waits)
        if self.cluster.frozen:
            return
        written = self.cluster.patches
        self.cluster.reconcile()
        if self.cluster.patches != written:
            raise BrokenPromise("a patch although nothing has changed")
        self._check()

    # ---- the promises ----------------------------------------------------------------------------------------

    def _check(self) -> None:
        self._note_what_is_beyond_one_side()
        if not self.cluster.base and not self.default_is_edited:
            self._nothing_is_added_without_a_base()
        for name in self.cluster.quotas:
            base = self._base_of(name)
            if base and not _garbage(self.cluster.quotas[name].annotations):
                hard = parse_resource_list(self.cluster.quotas[name].hard)
                self._never_below_what_pods_use(name, base, hard)
                self._entries_are_exact(name, base)
        pending = [move for move in self._moves(over=False) if move.phase == "Pending" and not move.abort]
        waiting = [m for m in pending if m.refused and self.cluster.to_come(m)]
        unreadable = any(_garbage(rq.annotations) for rq in self.cluster.quotas.values())
        self.refused = set() if unreadable or not self.cluster.base else {m.name for m in waiting}
        if self.refused:
            self._whoever_was_refused_fits(pending)

    def _base_of(self, name: str) -> ResourceList:
        if name == "own":
            return {"requests.memory": self.own_base}
        return parse_resource_list({RANCHERS[key]: text for key, text in self.cluster.base.items()})

    def _note_what_is_beyond_one_side(self) -> None:
        beyond = [name for name in self.cluster.vms if self.cluster.beyond_one_side(name)]
        self.beyond_since = {name: self.beyond_since.get(name, self.cluster.now) for name in beyond}

    def _hold_may_be_over(self, name: str) -> bool:
        moves = [move for move in self.cluster.moves.values() if move.vm == name]
        waited = self.cluster.now - self.beyond_since.get(name, self.cluster.now)
        return all(move.over for move in moves) and waited >= EXACT.hold_limit

    def _nothing_is_added_without_a_base(self) -> None:
        hard = self.cluster.quotas["default"].hard
        granted = {RANCHERS[key]: text for key, text in self.last_base.items()}
        if by_value({name: hard[name] for name in granted}) != by_value(granted):
            raise BrokenPromise(f"default: {hard} although the namespace grants nothing any longer")

    def _never_below_what_pods_use(self, name: str, base: ResourceList, hard: ResourceList) -> None:
        """The base is for one side of every VM, and for everything else; what is beyond comes on top."""
        beyond = total(
            self.cluster.beyond_one_side(vm) for vm in self.cluster.vms if not self._hold_may_be_over(vm)
        )
        for resource, limit in base.items():
            if hard[resource] < limit:
                raise BrokenPromise(f"{name}: {resource} is {hard[resource]}, below the base of {limit}")
            if hard[resource] < limit + beyond.get(resource, ZERO):
                raise BrokenPromise(f"{name}: {resource} is {hard[resource]}, below what pods use")

    def _entries_are_exact(self, name: str, base: ResourceList) -> None:
        """What a migration has, will have and has left behind, to the byte; nothing for a VM without any of it."""
        annotations = self.cluster.quotas[name].annotations
        for vm, machine in self.cluster.vms.items():
            moves = [move for move in self.cluster.moves.values() if move.vm == vm]
            earlier = any(move.vmi_uid != machine.uid for move in moves) or self._has_pods_of_an_earlier_vmi(
                vm
            )
            unsettled = any(not m.over and (m.abort or m.phase in ("", "Running")) for m in moves)
            key = f"harvesterhci.io/migrating-{vm}"
            text = annotations.get(key)
            claims = total([self.cluster.beyond_one_side(vm), *map(self.cluster.to_come, moves)])
            exact = {n: q for n, q in claims.items() if n in base and q > ZERO}
            stands = parse_resource_list(json.loads(text)) if text else {}
            if key in self.cluster.memories[name].unexplained:  # somebody else's, before the quota was ours
                continue
            if earlier or (unsettled and stands) or (not stands and self._hold_may_be_over(vm)):
                continue
            if stands != exact:
                raise BrokenPromise(f"{name}: the entry of {vm} is {stands}, exact is {exact}")

    def _has_pods_of_an_earlier_vmi(self, vm: str) -> bool:
        uid = self.cluster.vms[vm].uid
        launchers = [pod for _home, pod in self.cluster.sides(vm) if side_of(pod) == pod.uid]
        return any(pod.labels["kubevirt.io/created-by"] != uid for pod in launchers)

    def _whoever_was_refused_fits(self, pending: list[Move]) -> None:
        """Together with all others that are still to come, whoever is first."""
        needed = total(map(self.cluster.to_come, pending))
        for name, rq in self.cluster.quotas.items():
            free = subtract(parse_resource_list(rq.hard), self.cluster.used(name))
            asked = {n for move in pending if move.refused for n in self.cluster.to_come(move)}
            short = [
                n
                for n in free
                if n in asked & needed.keys() & self._base_of(name).keys() and free[n] < needed[n]
            ]
            if short:
                raise BrokenPromise(f"{name}: {short} is not enough for those that were refused")

    def teardown(self) -> None:
        """All migrations end, all old pods end, every watch catches up, and time passes: then it is the base."""
        self.cluster.frozen.clear()
        self.cluster.base = self.last_base
        self.awake = True
        self.the_planner_keeps_its_promises()
        for move in self._moves(over=False):
            self.cluster.end(move, "Failed")
        self.the_planner_keeps_its_promises()
        for pod in self.cluster.left_over():
            self.cluster.finish(pod, "Succeeded")
        self.the_planner_keeps_its_promises()
        self.cluster.now += 61.0
        self.the_planner_keeps_its_promises()
        self._nothing_is_left()

    def _nothing_is_left(self) -> None:
        for name, marks in (("default", set(MARKS)), ("own", {RECORD})):
            rq = self.cluster.quotas[name]
            base = self._base_of(name)
            if rq.annotations.keys() != marks:
                raise BrokenPromise(f"{name}: annotations are left: {rq.annotations}")
            hard = parse_resource_list(rq.hard)
            if {n: hard[n] for n in base} != base:
                raise BrokenPromise(f"{name}: {hard} is not the base {base}")


def _garbage(annotations: Mapping[str, str]) -> bool:
    """An entry that nobody can read: spec.hard is left alone until it goes."""
    return any(entry.text == "{nope" for entry in entries(annotations))


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=STORIES or 120,
    stateful_step_count=40,
    derandomize=not STORIES,
    phases=[Phase.generate]
    if STORIES or "HEADROOM_NO_SHRINK" in os.environ
    else [Phase.generate, Phase.shrink],
    deadline=None,
    print_blob=False,
    database=None,
    suppress_health_check=list(HealthCheck),
)
