"""Keys of the migrating entries on a ResourceQuota, in all three forms.

The name part of an annotation key (after the "/") holds 63 characters at most, so a long VM name is cut and
its hash appended. The hash is in capitals, which no Kubernetes name may hold: a hashed key is never another VM's
name. Every form stays under a prefix that Harvester's Go code sums up too. VMI uids need no hashing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache

from pkg.util.constants import ANNOTATION_MIGRATING_NAME_PREFIX, ANNOTATION_MIGRATING_UID_PREFIX, MIGRATING_NAME_PREFIX

MAX_NAME_PART = 63
_HASH_LENGTH = 16
_ROOM = MAX_NAME_PART - len(MIGRATING_NAME_PREFIX)
_PREFIX_LENGTH = _ROOM - _HASH_LENGTH - 1
_HASHED = re.compile(rf".{{1,{_PREFIX_LENGTH}}}-H[A-Z2-7]{{{_HASH_LENGTH - 1}}}", re.DOTALL)
_VALID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


@lru_cache(maxsize=16384)
def migrating_key(vm_name: str) -> str:
    """The full annotation key of a VM by name; hashed when the name leaves no room for itself."""
    return ANNOTATION_MIGRATING_NAME_PREFIX + _fitting(vm_name)


def migrating_uid_key(vmi_uid: str) -> str:
    """The full annotation key by VMI uid, as Harvester ≥ 1.4.2 writes it."""
    return ANNOTATION_MIGRATING_UID_PREFIX + vmi_uid


def migrating_keys(vm_name: str, vmi_uid: str) -> list[str]:
    """All forms of the key of one VM's entry, in order; no VMI is known where the uid is ""."""
    keys = {ANNOTATION_MIGRATING_NAME_PREFIX + vm_name, migrating_key(vm_name)}
    return sorted(keys | {migrating_uid_key(vmi_uid)} if vmi_uid else keys)


def _fitting(name: str) -> str:
    if len(name) <= _ROOM and _VALID.fullmatch(name) and not _HASHED.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    digits = "H" + base64.b32encode(digest).decode("ascii")[: _HASH_LENGTH - 1]
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:_PREFIX_LENGTH].rstrip(".-_")
    return f"{readable or 'vm'}-{digits}"
