"""The journal: what the annotations of a ResourceQuota say about migrations under way.

Wire format of Harvester (pkg/util/resourcequota/utils.go). Reading understands all three forms of an entry's
key, whichever controller wrote it; nothing here touches spec.hard.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pkg.util import constants
from pkg.util.kubevirt.migration import Demand, Stage
from pkg.util.names import EntryKey, migrating_key, migrating_uid_key, parse_entry_key
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList, marshal, maximum, total, unmarshal
from pkg.util.resourcequota.errors import InvalidEntry

ENTRY_PREFIXES = (constants.ANNOTATION_MIGRATING_NAME_PREFIX, constants.ANNOTATION_MIGRATING_UID_PREFIX)


@dataclass(frozen=True, slots=True)
class Entry:
    """One migrating VM on a ResourceQuota: the annotation's key, what the key says, and its value as text."""

    key: str
    target: EntryKey
    text: str

    @property
    def resources(self) -> Mapping[str, Quantity]:
        """The entry's ResourceList. Raises InvalidEntry naming the annotation."""
        return parse_resources(self.key, self.text)

    def readable(self) -> Mapping[str, Quantity]:
        """What the entry adds: an invalid one has never added anything."""
        return {} if self.problem is not None else self.resources

    @property
    def problem(self) -> InvalidEntry | None:
        """The error of an entry that cannot be read."""
        try:
            self.resources  # noqa: B018
        except InvalidEntry as exc:
            return exc
        return None


def parse_resources(key: str, text: str) -> Mapping[str, Quantity]:
    """A ResourceList from an annotation, read as Go's decoder reads it: null is zero, plain numbers are fine.

    Raises InvalidEntry with the annotation's key.
    """
    try:
        return unmarshal(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidEntry(f"annotation {key} is not a resource list ({exc}): {text[:80]!r}") from exc


def has_migrating_vm(annotations: Mapping[str, str]) -> bool:
    """Whether there is any migrating entry, readable or not (upstream HasMigratingVM)."""
    return any(key.startswith(ENTRY_PREFIXES) for key in annotations)


def entries(annotations: Mapping[str, str]) -> Iterator[Entry]:
    """Every migrating entry, in the order of the keys."""
    for key in sorted(annotations):
        target = parse_entry_key(key)
        if target is not None:
            yield Entry(key, target, annotations[key])


class Journal:
    """A ResourceQuota's annotations while a plan is being made: the present ones and the wanted ones.

    `changes()` is the difference, ready for a merge patch; the object itself is never touched.
    """

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._before = annotations
        self._after = dict(annotations)

    def changes(self) -> dict[str, str | None]:
        """Keys to set, and keys to remove (None)."""
        changed: dict[str, str | None] = {
            key: value for key, value in self._after.items() if self._before.get(key) != value
        }
        changed.update((key, None) for key in self._before if key not in self._after)
        return changed

    def entries(self) -> list[Entry]:
        return list(entries(self._after))

    def keys_of(self, vm_name: str, vmi_uid: str) -> list[str]:
        """Every key of this VM's entries: by name, by hashed name, by UID."""
        candidates = {
            constants.ANNOTATION_MIGRATING_NAME_PREFIX + vm_name,
            migrating_key(vm_name),
            migrating_uid_key(vmi_uid),
        }
        return sorted(key for key in candidates if key in self._after)

    def resources(self, key: str) -> Mapping[str, Quantity]:
        """The ResourceList under a key. Raises InvalidEntry."""
        return parse_resources(key, self._after[key])

    def put(self, key: str, resources: Mapping[str, Quantity]) -> None:
        """Write an entry; one whose value already says the same keeps its spelling."""
        if self._after.get(key) is not None:
            with suppress(InvalidEntry):
                if self.resources(key) == dict(resources):
                    return
        self._after[key] = marshal(dict(resources))

    def with_entry(self, key: str, resources: Mapping[str, Quantity]) -> Mapping[str, str]:
        """The annotations as they would be with this entry."""
        return self._after | {key: marshal(dict(resources))}

    def move(self, key: str, to: str) -> None:
        """Move the value of one key to another."""
        self._after[to] = self._after.pop(key)

    def set(self, key: str, value: str) -> None:
        self._after[key] = value

    def remove(self, key: str) -> bool:
        """Whether the key was there."""
        return self._after.pop(key, None) is not None

    def is_true(self, key: str) -> bool:
        return self._after.get(key) == "true"

    def has(self, key: str) -> bool:
        return key in self._after

    def standing(self, vm_name: str, vmi_uid: str) -> ResourceList | None:
        """A VM's entries under all forms of its key, the greatest value of each resource; None: none that can be
        read."""
        found: ResourceList | None = None
        for key in self.keys_of(vm_name, vmi_uid):
            with suppress(InvalidEntry):
                found = maximum(found or {}, self.resources(key))
        return found

    def adopt(self, vm_name: str, vmi_uid: str) -> None:
        """One VM counts once: its entries under other forms of the key are removed."""
        ours = migrating_key(vm_name)
        for key in self.keys_of(vm_name, vmi_uid):
            if key != ours:
                self.remove(key)

    def compensation_or_none(self) -> Mapping[str, Quantity]:
        """An invalid one counts as absent: it is ours to write."""
        try:
            return self.compensation
        except InvalidEntry:
            return {}

    @property
    def compensation(self) -> Mapping[str, Quantity]:
        """The compensation's ResourceList; absent or empty is none. Raises InvalidEntry."""
        text = self._after.get(constants.ANNOTATION_MIGRATING_COMPENSATION, "")
        return parse_resources(constants.ANNOTATION_MIGRATING_COMPENSATION, text) if text else {}


# ---- which entries stand: every function changes the Journal it is given and nothing else -------------------


def compensates_more(stands: Mapping[str, str], changes: Mapping[str, str | None]) -> bool:
    """Whether the changes raise the present compensation."""
    text = changes.get(constants.ANNOTATION_MIGRATING_COMPENSATION)
    if text is None:
        return False
    before = Journal(stands).compensation_or_none()
    after = parse_resources(constants.ANNOTATION_MIGRATING_COMPENSATION, text)
    return any(amount > before.get(name, ZERO) for name, amount in after.items())


def drop_finished(journal: Journal, claims: Iterable[Demand]) -> bool:
    """Remove every key form of the VMs whose migrations are all over; whether anything was there.

    As upstream, nothing is done once the VMI is gone; its entry ends as one that nothing explains.
    """
    removed = False
    for claim in claims:
        if claim.stage is Stage.FINISHED and claim.vmi is not None:
            for key in journal.keys_of(claim.vm_name, claim.vmi_uid):
                removed |= journal.remove(key)
    return removed


def explained_keys(journal: Journal, claims: Iterable[Demand]) -> set[str]:
    """The keys of the VMs that have a migration under way."""
    under_way = [claim for claim in claims if claim.stage is not Stage.FINISHED]
    return {key for claim in under_way for key in journal.keys_of(claim.vm_name, claim.vmi_uid)}


def unexplained(journal: Journal, explained: Container[str], *, uids_unknown: bool = False) -> list[Entry]:
    """The entries that no migration accounts for.

    While some migration's VMI is unknown, so is its UID (`uids_unknown`): a UID key might then be its entry and
    counts as explained.
    """
    return [
        entry
        for entry in journal.entries()
        if entry.key not in explained and not (uids_unknown and entry.target.kind == "uid")
    ]


@dataclass(frozen=True, slots=True)
class Unexplained:
    """Whether an entry was dropped, since when each foreign one is seen, and in how many seconds the next one goes.

    What is dropped is still said to be seen: the drop may not be written, and is then due at once.
    """

    dropped: bool = False
    since: Mapping[str, float] = field(default_factory=dict)
    recheck_after: float | None = None


def drop_unexplained(
    journal: Journal,
    orphans: Iterable[Entry],
    since: Mapping[str, float],
    *,
    ours: bool,
    now: float,
    grace: float,
) -> Unexplained:
    """Drop entries that no migration explains: our own at once, foreign ones after `grace` seconds.

    A name key on a quota that already carries our mark is our own, unless it was found there when the quota was taken
    over: then `since` has it.
    """
    dropped = False
    seen: dict[str, float] = {}
    left: list[float] = []
    for entry in orphans:
        own = ours and entry.target.kind != "uid" and entry.key not in since
        if not own:
            seen[entry.key] = since.get(entry.key, now)
        if own or now - seen[entry.key] >= grace:
            dropped |= journal.remove(entry.key)
        else:
            left.append(seen[entry.key] + grace - now)
    return Unexplained(dropped, seen, min(left, default=None))


def held_by_entries(annotations: Mapping[str, str]) -> ResourceList:
    """The sum of all migrating entries on a quota. Raises InvalidEntry."""
    return total(entry.resources for entry in entries(annotations))
