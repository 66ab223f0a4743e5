"""What the annotations of a ResourceQuota say about migrations: an entry for each VM, and the compensation.

Wire format of Harvester (pkg/util/resourcequota/utils.go). Reading understands all three forms of an entry's key,
whichever controller wrote it; nothing here touches spec.hard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from kubeloop.api.meta import Object
from pkg.util import constants
from pkg.util.names import migrating_key, migrating_uid_key
from pkg.util.quantity import Quantity
from pkg.util.resource_list import ResourceList, marshal, maximum, total, unmarshal
from pkg.util.resourcequota.errors import InvalidEntry

ENTRY_PREFIXES = (constants.ANNOTATION_MIGRATING_NAME_PREFIX, constants.ANNOTATION_MIGRATING_UID_PREFIX)
_COMPENSATION = constants.ANNOTATION_MIGRATING_COMPENSATION


@dataclass(frozen=True, slots=True)
class Entry:
    """One migrating VM on a ResourceQuota: the annotation's key, and its value as text."""

    key: str
    text: str

    @property
    def by_uid(self) -> bool:
        """Whether the key has the VMI's uid. Whether another one is a VM's is asked with `migrating_key(name) == key`,
        which is right for its name and for its hash."""
        return self.key.startswith(constants.ANNOTATION_MIGRATING_UID_PREFIX)

    @property
    def vm(self) -> str:
        """What the key says: a VM's name, perhaps cut and hashed, or a VMI's uid."""
        return self.key.removeprefix(ENTRY_PREFIXES[self.by_uid])

    @property
    def resources(self) -> ResourceList:
        """The entry's ResourceList. Raises InvalidEntry naming the annotation."""
        return parse_resources(self.key, self.text)

    def readable(self) -> ResourceList:
        """What the entry adds: an invalid one has never added anything."""
        return readable(self.text)


def parse_resources(key: str, text: str) -> ResourceList:
    """A ResourceList from an annotation, read as Go's decoder reads it: null is zero, plain numbers are fine.

    Raises InvalidEntry with the annotation's key.
    """
    try:
        return _unmarshalled(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidEntry(f"annotation {key} is not a resource list ({exc}): {text[:80]!r}") from exc


def readable(text: str) -> ResourceList:
    """What such an annotation adds; nothing where it is empty or invalid."""
    try:
        return _unmarshalled(text) if text else {}
    except (ValueError, RecursionError):
        return {}


_unmarshalled = lru_cache(maxsize=4096)(unmarshal)
"""The same dict for the same text: it is never changed."""


def has_migrating_vm(annotations: Mapping[str, str]) -> bool:
    """Whether there is any migrating entry, readable or not (upstream HasMigratingVM)."""
    return any(key.startswith(ENTRY_PREFIXES) for key in annotations)


def entries(annotations: Mapping[str, str]) -> list[Entry]:
    """Every migrating entry, in the order of the keys."""
    keys = sorted(key for key in annotations if key.startswith(ENTRY_PREFIXES) and key not in ENTRY_PREFIXES)
    return [Entry(key, annotations[key]) for key in keys]


class Entries:
    """A ResourceQuota's annotations: what they say, and what they shall say once `changes` are written. The object
    itself is never touched."""

    def __init__(self, annotations: Mapping[str, str]) -> None:
        self._before = annotations
        self._after = dict(annotations)

    def __iter__(self) -> Iterator[Entry]:
        return iter(entries(self._after))

    def changes(self) -> dict[str, str | None]:
        """Keys to set, and keys to remove (None)."""
        changed: dict[str, str | None] = {
            key: value for key, value in self._after.items() if self._before.get(key) != value
        }
        changed.update((key, None) for key in self._before if key not in self._after)
        return changed

    def keys_of(self, vm_name: str, vmi: Object | None) -> list[str]:
        """Every key of this VM's entries: by name, by hashed name, by its VMI's uid."""
        candidates = {constants.ANNOTATION_MIGRATING_NAME_PREFIX + vm_name, migrating_key(vm_name)}
        if vmi is not None:
            candidates.add(migrating_uid_key(vmi.uid))
        return sorted(candidates & self._after.keys())

    def of(self, vm_name: str, vmi: Object | None) -> ResourceList | None:
        """A VM's entries under all forms of its key, the greatest value of each resource; None: none that can be
        read."""
        found: ResourceList | None = None
        for key in self.keys_of(vm_name, vmi):
            with suppress(InvalidEntry):
                said = parse_resources(key, self._after[key])
                found = maximum(found, said) if found else said
        return found

    def added(self, *, compensated: bool = True) -> ResourceList:
        """All entries and the compensation together. Raises InvalidEntry."""
        return total([*(entry.resources for entry in self), self.compensation if compensated else {}])

    def readable(self) -> ResourceList:
        """The same without what is invalid."""
        return total([*(entry.readable() for entry in self), self.compensation_or_none()])

    @property
    def compensation(self) -> ResourceList:
        """The compensation's ResourceList; absent or empty is none. Raises InvalidEntry."""
        text = self._after.get(_COMPENSATION, "")
        return parse_resources(_COMPENSATION, text) if text else {}

    def compensation_or_none(self) -> ResourceList:
        """An invalid one counts as absent: it is ours to write."""
        return readable(self._after.get(_COMPENSATION, ""))

    def get(self, key: str) -> str | None:
        return self._after.get(key)

    def size_with(self, key: str, resources: Mapping[str, Quantity]) -> int:
        """Bytes of the annotations with this entry."""
        after = self._after | {key: marshal(resources)}
        return sum(len(name.encode()) + len(text.encode()) for name, text in after.items())

    def put(self, key: str, resources: Mapping[str, Quantity]) -> None:
        """Write a ResourceList; one whose value already says the same keeps its spelling."""
        if key in self._after:
            with suppress(InvalidEntry):
                if parse_resources(key, self._after[key]) == resources:
                    return
        self._after[key] = marshal(resources)

    def compensate(self, resources: Mapping[str, Quantity]) -> None:
        """Write the compensation, or remove it where there is none."""
        if resources:
            self.put(_COMPENSATION, resources)
        else:
            self.remove(_COMPENSATION)

    def set(self, values: Mapping[str, str]) -> None:
        """Write annotations as they are."""
        self._after.update(values)

    def remove(self, *keys: str) -> None:
        for key in keys:
            self._after.pop(key, None)
