"""What the annotations of a ResourceQuota say about migrations: an entry for each VM, and the compensation.

Wire format of Harvester (pkg/util/resourcequota/utils.go). Reading understands all three forms of an entry's key,
whichever controller wrote it; nothing here touches spec.hard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, reduce

from kubeloop.api.meta import Object
from kubeloop.api.quantity import Quantity
from kubeloop.api.resource_list import ResourceList, marshal, maximum, total, unmarshal
from pkg.util import constants
from pkg.util.names import migrating_keys
from pkg.util.resourcequota.errors import InvalidEntry

ENTRY_PREFIXES = (constants.ANNOTATION_MIGRATING_NAME_PREFIX, constants.ANNOTATION_MIGRATING_UID_PREFIX)


@dataclass(frozen=True, slots=True)
class Entry:
    """One migrating VM on a ResourceQuota: the annotation's key, and its value as text."""

    key: str
    text: str

    @property
    def by_uid(self) -> bool:
        """Whether the key has the VMI's uid."""
        return is_by_uid(self.key)

    @property
    def vm(self) -> str:
        """What the key says: a VM's name, perhaps cut and hashed, or a VMI's uid."""
        return self.key.removeprefix(ENTRY_PREFIXES[self.by_uid])

    @property
    def resources(self) -> ResourceList:
        """The entry's ResourceList. Raises InvalidEntry naming the annotation."""
        return parse_resources(self.key, self.text)


# ---- keys ----------------------------------------------------------------------------------------------------


def is_by_uid(key: str) -> bool:
    """Whether an entry's key has the VMI's uid. Whether another one is a VM's is asked with `migrating_key(name) ==
    key`, which is right for its name and for its hash."""
    return key.startswith(constants.ANNOTATION_MIGRATING_UID_PREFIX)


def has_migrating_vm(annotations: Mapping[str, str]) -> bool:
    """Whether there is any migrating entry, readable or not (upstream HasMigratingVM)."""
    return any(key.startswith(ENTRY_PREFIXES) for key in annotations)


def entry_keys(annotations: Mapping[str, str]) -> list[str]:
    """The keys of all migrating entries, in order."""
    return sorted(key for key in annotations if key.startswith(ENTRY_PREFIXES) and key not in ENTRY_PREFIXES)


def keys_of(annotations: Mapping[str, object], vm_name: str, vmi: Object | None) -> list[str]:
    """The keys of this VM's entries, in all forms, in order."""
    return [key for key in migrating_keys(vm_name, vmi.uid if vmi else "") if key in annotations]


# ---- values --------------------------------------------------------------------------------------------------


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


def entries(annotations: Mapping[str, str]) -> list[Entry]:
    """Every migrating entry, in the order of the keys."""
    return [Entry(key, annotations[key]) for key in entry_keys(annotations)]


def read(annotations: Mapping[str, str]) -> tuple[dict[str, ResourceList], dict[str, InvalidEntry]]:
    """What the entries say, by key, in order; and what is wrong with those that cannot be read, which have never added
    anything."""
    said: dict[str, ResourceList] = {}
    invalid: dict[str, InvalidEntry] = {}
    for key in entry_keys(annotations):
        try:
            said[key] = parse_resources(key, annotations[key])
        except InvalidEntry as exc:
            invalid[key] = exc
    return said, invalid


def standing(said: Mapping[str, ResourceList], keys: Iterable[str]) -> ResourceList | None:
    """What one VM's entries, under all forms of its key, say together: the greatest value of each resource; None: there
    is none that can be read."""
    of_vm = [said[key] for key in keys if key in said]
    return reduce(maximum, of_vm) if of_vm else None


def added(annotations: Mapping[str, str]) -> ResourceList:
    """All entries together. Raises InvalidEntry."""
    return total(parse_resources(key, annotations[key]) for key in entry_keys(annotations))


def compensation(annotations: Mapping[str, str]) -> ResourceList:
    """Absent or empty is none. Raises InvalidEntry."""
    key = constants.ANNOTATION_MIGRATING_COMPENSATION
    return parse_resources(key, text) if (text := annotations.get(key)) else {}


def readable_compensation(annotations: Mapping[str, str]) -> ResourceList:
    """An invalid one counts as absent: it is ours to write."""
    return readable(annotations.get(constants.ANNOTATION_MIGRATING_COMPENSATION, ""))


def readable_total(annotations: Mapping[str, str]) -> ResourceList:
    """All entries and the compensation together, as far as they can be read."""
    return total([*read(annotations)[0].values(), readable_compensation(annotations)])


# ---- writing -------------------------------------------------------------------------------------------------


def put(annotations: dict[str, str], key: str, resources: Mapping[str, Quantity]) -> None:
    """Write a ResourceList; one whose value already says the same keeps its spelling."""
    if key in annotations:
        with suppress(InvalidEntry):
            if parse_resources(key, annotations[key]) == resources:
                return
    annotations[key] = marshal(resources)


def remove(annotations: dict[str, str], *keys: str) -> None:
    for key in keys:
        annotations.pop(key, None)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Keys to set, and keys to remove (None)."""
    changed: dict[str, str | None] = {key: text for key, text in after.items() if before.get(key) != text}
    return changed | {key: None for key in before if key not in after}
