"""Whatever happens in whatever order: the invariants of the planner hold.

A namespace with two quotas and three VMs, in which KubeVirt, Rancher, Harvester, people and the clock do something at
random, while the planner is awake, asleep, restarted, or sees some kinds as they were a while ago.
HEADROOM_INTERLEAVINGS=N runs N other random examples instead of the usual ones.
"""

import json
import os
from collections.abc import Mapping

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, parse_resource_list, total
from pkg.util.resourcequota.entries import ENTRY_PREFIXES, entry_keys
from tests.decisions import EXACT, by_value
from tests.objects import COMPENSATION, ENTRY, MARKS
from tests.pkg.util.resourcequota.model_cluster import (
    KINDS,
    BrokenInvariant,
    Cluster,
    Move,
    is_other,
    other_pod,
    side_of,
)

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
    return any(annotations[key] == "{nope" for key in entry_keys(annotations))


EXAMPLES = int(os.environ.get("HEADROOM_INTERLEAVINGS", "0"))


class Interleavings(RuleBasedStateMachine, Invariants):
    """Each rule is something that may happen; after each the planner runs, if it is awake."""

    def __init__(self) -> None:
        super().__init__()
        Invariants.__init__(self)
        self.awake = True

    @initialize(ratio=st.sampled_from(["1.5", ""]))
    def a_namespace_with_vms(self, ratio: str) -> None:
        self.cluster.ratio = ratio
        for name in ("a", "b", "plugged"):
            self.cluster.start(name)

    # ---- KubeVirt --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.cluster.vms)
    @rule(data=st.data())
    def migrate(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.cluster.vms)))
        if not any(move.vm == name for move in self._moves(over=False)):
            self.cluster.migrate(name)

    @rule(steps=st.permutations([1, 2, 2]))
    def a_node_is_evacuated(self, steps: list[int]) -> None:
        """Several at once. A target that KubeVirt tries before the planner runs is refused, or takes another's room;
        one has to wait for its turn."""
        idle = sorted(set(self.cluster.vms) - {move.vm for move in self._moves(over=False)})
        for name, count in zip(idle, steps, strict=False):
            self._go_on(self.cluster.moves[self.cluster.migrate(name)], count)

    @precondition(lambda self: self._moves(over=False))
    @rule(data=st.data(), steps=st.integers(1, 10))
    def kubevirt_goes_on(self, data: st.DataObject, steps: int) -> None:
        self._go_on(data.draw(st.sampled_from(self._moves(over=False))), steps)

    @precondition(lambda self: self._moves(over=False))
    @rule(data=st.data(), last=st.sampled_from(["Succeeded", "Failed"]), launchers_end=st.booleans())
    def a_migration_takes_place(self, data: st.DataObject, last: str, launchers_end: bool) -> None:
        """Step by step to its end, and the planner sees each, if it is awake. Attachment pods may end later."""
        move = data.draw(st.sampled_from(self._moves(over=False)))
        for _ in range(12):
            self._go_on(move, 1)
            self.the_invariants_hold()
        if last == "Failed" and not move.over:
            self.cluster.end(move, last)
        for pod in self.cluster.left_over():
            if launchers_end and side_of(pod) == pod.uid:
                self.cluster.finish(pod, "Succeeded")

    @precondition(lambda self: self._moves(over=False))
    @rule(data=st.data())
    def kubevirt_goes_on_by_one_step(self, data: st.DataObject) -> None:
        self._go_on(data.draw(st.sampled_from(self._moves(over=False))), 1)

    def _go_on(self, move: Move, steps: int) -> None:
        """Each step by itself: the planner sees what is between only when it runs."""
        for _ in range(steps):
            if self.cluster.step(move) is False:
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

    @rule(ratio=st.sampled_from(["", "1.5", "4.5"]))
    def the_ratio_is_changed(self, ratio: str) -> None:
        self.cluster.ratio = ratio

    # ---- Rancher, Harvester, people --------------------------------------------------------------------------

    @rule(memory=st.sampled_from(["200Mi", "2Gi"]))
    def another_pod_comes_or_goes(self, memory: str) -> None:
        others = [uid for uid, pod in self.cluster.pods.items() if is_other(pod)]
        if len(others) > 1:
            del self.cluster.pods[others[0]]
            return
        self.cluster.counter += 1
        self.cluster.admit(other_pod(self.cluster.counter, memory))

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
        strange = self.default_is_edited and any(entry_keys(self.cluster.quotas["default"].annotations))
        self.default_is_edited = strange or not self.awake or bool(self.cluster.frozen)
        self.cluster.write("default", {n: self.cluster.base.get(key) for key, n in RANCHERS.items()}, {})

    @rule(
        quota=st.sampled_from([("default", "limits.memory"), ("own", "requests.memory")]),
        what=st.sampled_from(["spec.hard", "every entry", "entries and compensation", "everything"]),
        memory=st.sampled_from(MEMORY_AMOUNTS),
    )
    def a_client_edits_or_removes(self, quota: tuple[str, str], what: str, memory: str) -> None:
        name, resource = quota
        before = self.cluster.quotas[name].annotations
        removed = {
            "spec.hard": [],
            "every entry": entry_keys(before),
            "entries and compensation": [*entry_keys(before), COMPENSATION],
            "everything": list(before),
        }[what]
        edits = what in ("spec.hard", "everything")
        self.default_is_edited |= name == "default"
        self.cluster.write(name, {resource: memory} if edits else {}, dict.fromkeys(removed))

    @rule(
        name=st.sampled_from(["default", "own"]),
        key=st.sampled_from(
            ["migratingUID-gone", "migratingUID-of-a", "migrating-gone", "migrating-a", "migratingCompensation"]
        ),
        text=st.sampled_from([ENTRY, "{nope"]),
    )
    def a_client_writes_an_entry(self, name: str, key: str, text: str) -> None:
        self.default_is_edited |= name == "default"
        if "a" in self.cluster.vms:
            key = key.replace("of-a", self.cluster.vms["a"].uid)
        self.cluster.write(name, {}, {f"harvesterhci.io/{key}": text})

    @rule()
    def quota_admission_lags(self) -> None:
        self.cluster.admission_lags()

    @precondition(lambda self: self.cluster.lagging)
    @rule()
    def quota_admission_catches_up(self) -> None:
        self.cluster.lagging.clear()

    # ---- the planner -----------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 61.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.now += seconds

    @rule(how=st.sampled_from(["restarts", "falls asleep", "wakes up", "wakes up"]))
    def the_planner(self, how: str) -> None:
        self.awake = how != "falls asleep"
        if how == "restarts":
            self.cluster.memories.clear()
            self.held_since.clear()

    @rule(kind=st.sampled_from(KINDS))
    def a_watch_is_cut(self, kind: str) -> None:
        self.cluster.frozen.setdefault(kind, getattr(self.cluster.truth(), kind))

    @precondition(lambda self: self.cluster.frozen)
    @rule()
    def the_watches_catch_up(self) -> None:
        self.cluster.frozen.clear()

    @invariant()
    def the_invariants_hold(self) -> None:
        self.note_what_is_beyond_one_side()
        if not self.awake:
            return
        for last in (False, False, True):
            waits = [plan.recheck_after for plan in self.cluster.reconcile() if plan.recheck_after is not None]
            self.follow_people()
            if last or not waits or min(waits) > 0.25:
                break
            self.cluster.now += min(waits)
        if self.cluster.frozen:
            return
        written = self.cluster.patches
        self.cluster.reconcile()
        if self.cluster.patches != written:
            raise BrokenInvariant("a patch although nothing has changed")
        self.check()

    def teardown(self) -> None:
        """All migrations end, all old pods end, every watch catches up, and time passes: then it is the base."""
        self.cluster.frozen.clear()
        self.cluster.lagging.clear()
        self.cluster.base = self.last_base
        self.awake = True
        self.the_invariants_hold()
        for move in self._moves(over=False):
            self.cluster.end(move, "Failed")
        self.the_invariants_hold()
        for pod in self.cluster.left_over():
            self.cluster.finish(pod, "Succeeded")
        self.the_invariants_hold()
        self.cluster.now += 61.0
        self.the_invariants_hold()
        self._nothing_is_left()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = drawn(EXAMPLES, usual=60, steps=40)
