"""Instead of Harvester: entries follow the migrations and the pods that quota counts. Pure.

Whatever somebody does to the annotations or to spec.hard, the same patch that would have followed them puts
things right: the truth is VMIMs and pods, the annotations are the journal.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from pkg.util import constants
from pkg.util.names import migrating_key
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList, marshal, maximum, parse_resource_list, subtract, total
from pkg.util.resourcequota import entry_rules
from pkg.util.resourcequota.annotations import Entry, Journal
from pkg.util.resourcequota.calculator import (
    difference,
    limits_are_empty,
    quantity_of,
    scaled_hard,
    shortage,
)
from pkg.util.resourcequota.caps import Caps, refuse_size
from pkg.util.resourcequota.claims import Claim, claims, entry_of
from pkg.util.resourcequota.errors import HoldLimitReached, InvalidEntry, ResourceQuotaError
from pkg.util.resourcequota.granted import granted_by_namespace, granted_by_record, scaled_base
from pkg.util.resourcequota.model import EstimateKind, Memory, Observed, Plan, Policy
from pkg.util.resourcequota.participation import is_default


def plan(observed: Observed, policy: Policy) -> Plan:
    """The patch for one ResourceQuota that is ours: marks, entries, compensation and spec.hard together."""
    return _Planning(observed, policy).run()


class _Planning:
    """One run of `plan`: the journal as it changes, and what has been found on the way."""

    def __init__(self, observed: Observed, policy: Policy) -> None:
        self.observed = observed
        self.policy = policy
        self.quota = observed.quota
        self.journal = Journal(observed.quota.annotations)
        self.problems: list[ResourceQuotaError] = []
        self.hard: Mapping[str, str | None] = {}
        self.caps = Caps(self.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), observed.max_extra)
        self.added: ResourceList = {}
        self.held_since: dict[str, float] = {}
        self.short_since: float | None = None
        self.look_again: float | None = None

    def run(self) -> Plan:
        found = claims(self.observed, self.policy)
        self.problems += found.problems
        self._mark()
        base = self._base()
        if base is None:
            waiting = self._drop(found.by_vm, set())
        elif not base:
            self._retire()
            waiting = self._drop(found.by_vm, set())
        else:
            values = self._values(found.by_vm.values(), base)
            # What is over goes before others ask for its room.
            waiting = self._drop(found.by_vm, {migrating_key(claim.vm_name) for claim, _ in values})
            self._enter(values, base)
            self._scale(found.by_vm.values(), base)
        if base is not None and self.journal.is_true(constants.ANNOTATION_RESYNC_NEEDED):
            self.journal.set(constants.ANNOTATION_RESYNC_NEEDED, "false")
        return Plan(
            annotations=self.journal.changes(),
            hard=self.hard,
            problems=self.problems,
            memory=Memory(waiting, self.short_since, self.held_since),
            look_again=self.look_again,
        )

    def _mark(self) -> None:
        """Harvester stands back from a default quota that carries its skip; the owner mark says whose it is."""
        if is_default(self.quota):
            self.journal.set(constants.ANNOTATION_SKIP_AUTO_SCALING, "true")
            self.journal.set(constants.ANNOTATION_OWNER, constants.OWNER)

    @property
    def _ours(self) -> bool:
        """Whether the quota was ours already when it was observed: then its name keys are ours too."""
        mark = constants.ANNOTATION_OWNER if is_default(self.quota) else constants.ANNOTATION_BASE
        return mark in self.quota.annotations

    def _base(self) -> ResourceList | None:
        """The limits that entries are added to; empty: there are none. None: what says so is garbage."""
        try:
            if is_default(self.quota):
                granted = granted_by_namespace(self.observed.limits)
            else:
                granted = granted_by_record(self.quota)
                self.journal.set(constants.ANNOTATION_BASE, marshal(granted))
        except ResourceQuotaError as exc:
            self.problems.append(exc)
            return None
        if self._leaves_alone():
            return {}
        return scaled_base(granted, self.quota.hard, self.policy)

    def _leaves_alone(self) -> bool:
        """Upstream's rule for a quota that limits neither cpu nor memory, where only those two are scaled."""
        return (
            self.policy.estimate is EstimateKind.HARVESTER
            and not self.policy.render
            and limits_are_empty(self.quota.hard)
        )

    def _retire(self) -> None:
        """The namespace lost its annotation: what we added goes, and with it the reason for every entry."""
        if not (is_default(self.quota) and self._ours and not self.observed.limits):
            return
        foreign = (
            self.observed.memory.unexplained
        )  # found when the quota was taken over, and perhaps never applied
        ours = [e for e in self.journal.entries() if e.target.kind != "uid" and e.key not in foreign]
        added = total([*map(self._readable, ours), self._standing_compensation()])
        for entry in ours:
            self.journal.remove(entry.key)
        self.journal.remove(constants.ANNOTATION_MIGRATING_COMPENSATION)
        hard = parse_resource_list({name: raw for name, raw in self.quota.hard.items() if name in added})
        lowered = subtract(hard, {name: added[name] for name in hard})
        self.hard = difference(self.quota.hard, {n: q for n, q in lowered.items() if q >= ZERO})

    def _values(
        self, found: Iterable[Claim], base: Mapping[str, Quantity]
    ) -> list[tuple[Claim, ResourceList]]:
        """The entries that there shall be: those that stand first, then in the order of the migrations."""
        values: list[tuple[Claim, ResourceList]] = []
        for claim in found:
            if claim.under_way or claim.held:
                entry_rules.adopt(self.journal, claim.vm_name, claim.vmi_uid)
            value = self._value(claim, base)
            if value:
                values.append((claim, value))
        values.sort(key=lambda item: (not self.journal.has(migrating_key(item[0].vm_name)), item[0].since))
        return values

    def _enter(self, values: Sequence[tuple[Claim, ResourceList]], base: Mapping[str, Quantity]) -> None:
        """Write the entries, as long as the caps and the annotations have room."""
        self.added = self._standing(base, {migrating_key(claim.vm_name) for claim, _ in values})
        compensation = {n: q for n, q in self._standing_compensation().items() if n in base}
        for claim, value in values:
            key = migrating_key(claim.vm_name)
            with_it = total([self.added, value])
            refusal = None
            if not self.journal.has(key):
                what = f"migration of VM {claim.vm_name}"
                refusal = self.caps.refuse(what, total([with_it, compensation])) or refuse_size(
                    what, self.journal.with_entry(key, value)
                )
            if refusal is not None:
                self.problems.append(refusal)
                continue
            self.journal.put(key, value)
            self.added = with_it

    def _standing(self, base: Mapping[str, Quantity], ours: Container[str]) -> ResourceList:
        """What entries add that stand for another reason: foreign ones, and those of a VM that has arrived while
        its migration does not say so yet."""
        standing: list[ResourceList] = []
        for entry in self.journal.entries():
            if entry.key not in ours:
                with suppress(InvalidEntry):
                    standing.append({n: q for n, q in entry.resources.items() if n in base})
        return total(standing)

    def _value(self, claim: Claim, base: Mapping[str, Quantity]) -> ResourceList:
        """The entry that a claim shall have; empty: none."""
        if claim.held and self._hold_is_over(claim):
            return {}
        value = {n: q for n, q in entry_of(claim, self.policy).items() if n in base and not q.is_zero()}
        key = migrating_key(claim.vm_name)
        if claim.under_way and not claim.wanted and self.journal.has(key):
            # An abort was asked for, or the VMI is not known: what stands stays until the migration is over.
            return maximum(self.journal.resources(key), value)
        return value

    def _hold_is_over(self, claim: Claim) -> bool:
        now = self.observed.now
        since = min(self.observed.memory.held_since.get(claim.vm_name, now), claim.ended or now)
        self.held_since[claim.vm_name] = since
        left = since + self.policy.hold_limit - now
        if left > 0:
            self._wait(left)
            return False
        limit = f"{self.policy.hold_limit:g} s"
        self.problems.append(
            HoldLimitReached(
                f"VM {claim.vm_name}: a pod of the old side still counts {limit} after the migration"
            )
        )
        return True

    def _drop(self, found: Mapping[str, Claim], entries: set[str]) -> dict[str, float]:
        """Remove what nothing accounts for any longer; since when each foreign entry waits for its end."""
        explained = set(entries)
        uids_unknown = False
        for claim in found.values():
            keys = self.journal.keys_of(claim.vm_name, claim.vmi_uid)
            if claim.under_way:
                explained.update(keys)
                uids_unknown |= not claim.vmi_uid
            elif claim.migrates:
                for key in set(keys) - entries:
                    self.journal.remove(key)
        waiting = entry_rules.drop_unexplained(
            self.journal,
            entry_rules.unexplained(self.journal, explained, uids_unknown=uids_unknown),
            self.observed.memory.unexplained,
            ours=self._ours,
            now=self.observed.now,
            grace=self.policy.foreign_grace,
        )[1]
        if waiting:
            self._wait(min(waiting.values()) + self.policy.foreign_grace - self.observed.now)
        return waiting

    def _scale(self, found: Collection[Claim], base: Mapping[str, Quantity]) -> None:
        """spec.hard = base + entries + compensation. Garbage in an entry: spec.hard is left alone."""
        try:
            deltas = [entry.resources for entry in self.journal.entries()]
        except InvalidEntry as exc:
            self.problems.append(exc)
            return
        without = scaled_hard(base, deltas, {})
        stands = self._standing_compensation()
        self._compensate(found, without, stands)
        wanted = scaled_hard(base, deltas, self._standing_compensation())
        self.hard = difference(self.quota.hard, wanted)
        if wanted == base or is_default(self.quota):
            self.journal.remove(constants.ANNOTATION_APPLIED)
        else:
            self.journal.put(constants.ANNOTATION_APPLIED, wanted)

    def _readable(self, entry: Entry) -> Mapping[str, Quantity]:
        """What an entry adds: garbage has never added anything."""
        try:
            return entry.resources
        except InvalidEntry as exc:
            self.problems.append(exc)
            return {}

    def _standing_compensation(self) -> Mapping[str, Quantity]:
        """Garbage counts as none: it is ours to write."""
        try:
            return self.journal.compensation
        except InvalidEntry:
            return {}

    def _compensate(
        self, found: Collection[Claim], without: Mapping[str, Quantity], stands: Mapping[str, Quantity]
    ) -> None:
        """Room for the target pods that quota refused although their entries are applied: exactly what is
        missing."""
        refused = [c for c in found if c.refused and c.future and self.journal.has(migrating_key(c.vm_name))]
        if not refused or not self.policy.compensate:
            self.journal.remove(constants.ANNOTATION_MIGRATING_COMPENSATION)
            return
        needed = total([*(claim.future for claim in refused), *self._reserved(found, refused)])
        asked = {name for claim in refused for name in claim.future}
        missing = {}
        for name, limit in without.items():
            short = shortage(quantity_of(self.quota.used, name), needed.get(name, ZERO), limit)
            if not short.is_zero() and name in asked:
                missing[name] = short
        if all(stands.get(name, ZERO) >= short for name, short in missing.items()):
            return
        if not self._shortage_lasts(total([without, {n: q for n, q in stands.items() if n in without}])):
            return
        names = ", ".join(claim.vm_name for claim in refused)
        refusal = self.caps.refuse(f"compensation for {names}", total([self.added, missing]))
        if refusal is not None:
            self.problems.append(refusal)
            return
        self.journal.put(constants.ANNOTATION_MIGRATING_COMPENSATION, missing)

    def _reserved(self, found: Iterable[Claim], refused: Sequence[Claim]) -> Iterator[ResourceList]:
        """The room of target pods that are still to come and were not refused: whoever comes first may take it,
        so a refused pod does not fit as long as it fits only into another's room."""
        for claim in found:
            key = migrating_key(claim.vm_name)
            if claim.wanted and claim not in refused and self.journal.has(key):
                there = total([claim.left_over, claim.target])
                free = subtract(self.journal.resources(key), there)
                yield {name: amount for name, amount in free.items() if amount > ZERO}

    def _shortage_lasts(self, applied: Mapping[str, Quantity]) -> bool:
        """Whether to believe in a shortage now.

        One that is seen before the room was made is real. Afterwards KubeVirt may just have created the target
        pod: status.used counts it already while the condition still says refused. That passes by itself.
        """
        if any(quantity_of(self.quota.hard, name) < limit for name, limit in applied.items()):
            return True
        since = self.observed.memory.short_since
        self.short_since = self.observed.now if since is None else since
        left = self.short_since + self.policy.settle - self.observed.now
        if left > 0:
            self._wait(left)
        return left <= 0

    def _wait(self, seconds: float) -> None:
        self.look_again = max(0.0, seconds if self.look_again is None else min(self.look_again, seconds))
