"""The journal: what the annotations of a ResourceQuota say about migrations under way.

Wire format of Harvester (pkg/util/resourcequota/utils.go). Reading understands all three forms of an entry's
key, whoever wrote it; nothing here touches spec.hard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from pkg.util import constants
from pkg.util.names import EntryKey, migrating_key, migrating_uid_key, parse_entry_key
from pkg.util.quantity import Quantity
from pkg.util.resource_list import marshal, unmarshal
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


@lru_cache(maxsize=16384)
def parse_resources(key: str, text: str) -> Mapping[str, Quantity]:
    """A ResourceList from an annotation, read as Go's decoder reads it: null is zero, plain numbers are fine.

    Raises InvalidEntry with the annotation's key.
    """
    try:
        return MappingProxyType(unmarshal(text))
    except (ValueError, RecursionError) as exc:
        raise InvalidEntry(f"annotation {key} is no resource list ({exc}): {text[:80]!r}") from exc


def has_migrating_vm(annotations: Mapping[str, str]) -> bool:
    """Whether any migrating entry stands there, readable or not (upstream HasMigratingVM)."""
    return any(key.startswith(ENTRY_PREFIXES) for key in annotations)


def entries(annotations: Mapping[str, str]) -> Iterator[Entry]:
    """Every migrating entry, in the order of the keys."""
    for key in sorted(annotations):
        target = parse_entry_key(key)
        if target is not None:
            yield Entry(key, target, annotations[key])


class Journal:
    """A ResourceQuota's annotations while a plan is being made: what stands, and what shall stand.

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
        """Every key under which this VM stands: by name, by hashed name, by UID."""
        candidates = {
            constants.ANNOTATION_MIGRATING_NAME_PREFIX + vm_name,
            migrating_key(vm_name),
            migrating_uid_key(vmi_uid),
        }
        return sorted(key for key in candidates if key in self._after)

    def resources(self, key: str) -> Mapping[str, Quantity]:
        """The ResourceList that stands under a key. Raises InvalidEntry."""
        return parse_resources(key, self._after[key])

    def put(self, key: str, resources: Mapping[str, Quantity]) -> None:
        """Write an entry; one whose value already says the same keeps its spelling."""
        text = marshal(dict(resources))
        if self._after.get(key) is not None:
            with suppress(InvalidEntry):
                if self.resources(key) == dict(resources):
                    return
        self._after[key] = text

    def with_entry(self, key: str, resources: Mapping[str, Quantity]) -> Mapping[str, str]:
        """The annotations as they would be with this entry."""
        return self._after | {key: marshal(dict(resources))}

    def move(self, key: str, to: str) -> None:
        """Put what stands under one key under another."""
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

    @property
    def compensation(self) -> Mapping[str, Quantity]:
        """The compensation's ResourceList; absent or empty is none. Raises InvalidEntry."""
        text = self._after.get(constants.ANNOTATION_MIGRATING_COMPENSATION, "")
        return parse_resources(constants.ANNOTATION_MIGRATING_COMPENSATION, text) if text else {}
