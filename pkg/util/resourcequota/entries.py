"""The annotations of a ResourceQuota that are about migrations: an entry for each VM, and the compensation.

Wire format of Harvester (pkg/util/resourcequota/utils.go). Reading understands all three forms of an entry's key. The
part after the "/" holds 63 characters at most, so a long VM name is cut and its hash appended, in capitals, which no
Kubernetes name may hold: a hashed key is never another VM's name. Every form stays under a prefix that Harvester's Go
code sums up too."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, reduce
from typing import NamedTuple

from kubeloop.api.meta import Object
from kubeloop.api.quantity import Quantity
from kubeloop.api.resource_list import ResourceList, marshal, maximum, total, unmarshal
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.problems import InvalidEntry

ENTRY_PREFIXES = (constants.ANNOTATION_MIGRATING_NAME_PREFIX, constants.ANNOTATION_MIGRATING_UID_PREFIX)
_ROOM = 63 - len("migrating-")
_HASH_LENGTH = 16
_PREFIX_LENGTH = _ROOM - _HASH_LENGTH - 1
_HASHED = re.compile(rf".{{1,{_PREFIX_LENGTH}}}-H[A-Z2-7]{{{_HASH_LENGTH - 1}}}", re.DOTALL)
_VALID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
MAX_LENGTH = 8192
"""Characters of an annotation with limits: a few hundred are usual. Whoever may edit the namespaces of a Rancher
project writes some of them too, at any rate, and to read them is work here."""
MAX_RECORD_LENGTH = 256 * 1024
"""Of headroom's records on a quota with hundreds of limits: one that is written is read, or what was raised would be
the base. The API server stores no more."""


class Entries(NamedTuple):
    """The headroom in a quota's annotations, as far as they can be read."""

    by_key: dict[str, ResourceList]
    compensation: ResourceList
    invalid: dict[str, InvalidEntry]
    """What is wrong with the others, the compensation among them, by key: they have never added anything."""

    @property
    def total(self) -> ResourceList:
        return total([*self.by_key.values(), self.compensation])


@lru_cache(maxsize=16384)
def migrating_key(vm_name: str) -> str:
    """Returns the full annotation key of a VM by name; hashed when the name leaves no room for itself."""
    name = vm_name
    if len(name) > _ROOM or not _VALID.fullmatch(name) or _HASHED.fullmatch(name):
        digest = base64.b32encode(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()).decode("ascii")
        readable = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:_PREFIX_LENGTH].rstrip(".-_")
        name = f"{readable or 'vm'}-H{digest[: _HASH_LENGTH - 1]}"
    return constants.ANNOTATION_MIGRATING_NAME_PREFIX + name


def migrating_uid_key(vmi_uid: str) -> str:
    """Returns the full annotation key by VMI uid, as Harvester ≥ 1.4.2 writes it."""
    return constants.ANNOTATION_MIGRATING_UID_PREFIX + vmi_uid


def migrating_keys(vm_name: str, vmi_uid: str) -> list[str]:
    """Returns all forms of the key of one VM's entry, in order; no VMI is known where the uid is ""."""
    keys = {constants.ANNOTATION_MIGRATING_NAME_PREFIX + vm_name, migrating_key(vm_name)}
    return sorted(keys | {migrating_uid_key(vmi_uid)} if vmi_uid else keys)


def vm_in_key(key: str) -> str:
    """Returns what an entry's key has of its VM: the name, perhaps cut and hashed, or the VMI's uid."""
    return key.removeprefix(ENTRY_PREFIXES[is_by_uid(key)])


def is_by_uid(key: str) -> bool:
    """Reports whether an entry's key has the VMI's uid. `migrating_key(name) == key` tells whether another one is a
    VM's, by its name or by its hash."""
    return key.startswith(constants.ANNOTATION_MIGRATING_UID_PREFIX)


def entry_keys(annotations: Iterable[str]) -> list[str]:
    """Returns the keys of all migrating entries, in order."""
    return sorted(key for key in annotations if key.startswith(ENTRY_PREFIXES) and key not in ENTRY_PREFIXES)


def has_migrating_vm(annotations: Iterable[str]) -> bool:
    """Reports whether there is any migrating entry, readable or not (upstream HasMigratingVM)."""
    return any(key.startswith(ENTRY_PREFIXES) for key in annotations)


def is_entry(key: str) -> bool:
    """Reports whether an annotation of a quota is an entry or the compensation."""
    return key.startswith(ENTRY_PREFIXES) or key == constants.ANNOTATION_MIGRATING_COMPENSATION


def has_headroom(annotations: Iterable[str]) -> bool:
    """Reports whether there is an entry or a compensation, readable or not."""
    return any(map(is_entry, annotations))


def keys_of(annotations: Mapping[str, object], vm_name: str, vmi: Object | None) -> list[str]:
    """Returns the keys of this VM's entries, in all forms, in order."""
    return [key for key in migrating_keys(vm_name, vmi.uid if vmi else "") if key in annotations]


def parse_resources(key: str, text: str, longest: int = MAX_LENGTH) -> ResourceList:
    """Returns a ResourceList from an annotation, read as Go's decoder reads it: null is zero, plain numbers are fine.
    Raises InvalidEntry with the annotation's key."""
    try:
        if len(text) > longest:
            raise ValueError(f"more than {longest} characters")
        return (_unmarshalled if len(text) <= MAX_LENGTH else unmarshal)(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidEntry(f"annotation {key} is not a resource list ({exc}): {text[:80]!r}") from exc


_unmarshalled = lru_cache(maxsize=4096)(unmarshal)
"""The same dict for the same text: it is never changed."""


def read(annotations: Mapping[str, str]) -> Entries:
    """Returns a quota's entries and compensation; a compensation that is absent or empty is an empty one."""
    resources: dict[str, ResourceList] = {}
    invalid: dict[str, InvalidEntry] = {}
    compensation = constants.ANNOTATION_MIGRATING_COMPENSATION
    for key in (*entry_keys(annotations), *([compensation] if annotations.get(compensation) else [])):
        try:
            resources[key] = parse_resources(key, annotations[key])
        except InvalidEntry as exc:
            invalid[key] = exc
    return Entries(resources, resources.pop(compensation, {}), invalid)


def present_entry(entries_by_key: Mapping[str, ResourceList], keys: Iterable[str]) -> ResourceList | None:
    """Returns the greatest value of each resource over one VM's entries, in all forms of its key; None without one."""
    values = [entries_by_key[key] for key in keys if key in entries_by_key]
    return reduce(maximum, values) if values else None


def names_by_key(
    keys: Iterable[str],
    migrations: Iterable[VirtualMachineInstanceMigration],
    instances: Iterable[VirtualMachineInstance],
) -> dict[str, str]:
    """Returns the VMs' names by the keys of their entries; of unknown ones what the key has: a uid, or a cut name."""
    names = {migrating_key(migration.spec.vmi_name): migration.spec.vmi_name for migration in migrations}
    for vmi in instances:
        names |= {migrating_key(vmi.name): vmi.name, migrating_uid_key(vmi.uid): vmi.name}
    return {key: names.get(key, vm_in_key(key)) for key in entry_keys(keys)}


def put(annotations: dict[str, str], key: str, resources: Mapping[str, Quantity] | None) -> None:
    """Writes a ResourceList, or removes it for None; one that is there with the same value keeps its spelling."""
    if resources is None:
        annotations.pop(key, None)
        return
    with suppress(InvalidEntry):
        if key in annotations and parse_resources(key, annotations[key]) == resources:
            return
    annotations[key] = marshal(resources)


def remove(annotations: dict[str, str], *keys: str) -> None:
    for key in keys:
        annotations.pop(key, None)


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str | None]:
    """Returns the keys to set, and those to remove (None)."""
    updates: dict[str, str | None] = {key: text for key, text in new.items() if old.get(key) != text}
    return updates | {key: None for key in old if key not in new}
