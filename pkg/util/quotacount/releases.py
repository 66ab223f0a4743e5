"""Kubernetes' releases as data: by which rules the quota evaluators of each count, its default feature gates given.

A release is named after the first minor that has its rules and says what changed since the one before. The paths are
those of kubernetes pkg/quota/v1/evaluator/core where none is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto


class StatusRule(Enum):
    """What of the containers' status counts beside the spec. Source: component-helpers resource/helpers.go."""

    IGNORED = auto()
    BY_CONTAINER = auto()
    """For each container the larger of spec, actual and allocated resources; plain init containers by spec."""
    BY_SUM = auto()
    """The largest of three sums over the pod: spec, actual (else allocated, else spec), allocated (else spec)."""


class PodLevelDefaults(Enum):
    """When the API server completes pod-level resources. Source: pkg/apis/core/v1/defaults.go, pkg/api/pod/util.go."""

    NONE = auto()
    WHEN_READ = auto()
    """Requests, and limits of huge pages; before the admission plugins have completed the containers."""
    WHEN_CREATED = auto()
    """Requests and limits, after all admission plugins and webhooks that change the pod."""


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: caches have them in their keys
class Release:
    """One release's rules; the defaults are those of the newest one."""

    container_status: StatusRule = StatusRule.BY_SUM
    pod_level_resources: bool = True
    """Whether pod-level resources replace the sum of the containers and decide the QoS class."""
    empty_pod_level_decides: bool = False
    """Whether pod-level resources without any amount that counts decide the QoS class all the same."""
    pod_level_defaults: PodLevelDefaults = PodLevelDefaults.WHEN_CREATED
    device_class_requests: bool = True
    """Whether pods are charged for `deviceclass.resource.kubernetes.io/<class>`."""
    device_class_claims: bool = True
    """Whether ResourceClaims are charged for that too."""
    prioritized_devices: bool = True
    """Whether a ResourceClaim may name alternatives (`firstAvailable`)."""
    allocated_storage: bool = True
    """Whether a PersistentVolumeClaim counts what is allocated where that is more than the request."""
    resize_is_charged: bool = True
    """Whether an UPDATE of pods/resize is checked against quota."""


_V1_37 = Release()
_V1_36 = replace(  # 1.37: aggregateContainerResourcesByFn; PodLevelResourcesFixDefaulting, …FixKubeletQOSClass
    _V1_37,
    container_status=StatusRule.BY_CONTAINER,
    pod_level_defaults=PodLevelDefaults.WHEN_READ,
    empty_pod_level_decides=True,
)
_V1_35 = replace(_V1_36, device_class_claims=False)  # 1.36: DRAExtendedResource
_V1_34 = replace(_V1_35, device_class_requests=False)  # 1.35: pods.go isExtendedResourceNameForQuota
_V1_33 = replace(  # 1.34: PodLevelResources
    _V1_34, pod_level_resources=False, pod_level_defaults=PodLevelDefaults.NONE
)
_V1_32 = replace(  # 1.33: InPlacePodVerticalScaling; resource_claims.go FirstAvailable
    _V1_33, container_status=StatusRule.IGNORED, prioritized_devices=False
)
_V1_30 = replace(  # 1.32: RecoverVolumeExpansionFailure; pods.go Handles
    _V1_32, allocated_storage=False, resize_is_charged=False
)

RELEASES: Mapping[str, Release] = {
    "1.30": _V1_30,
    "1.32": _V1_32,
    "1.33": _V1_33,
    "1.34": _V1_34,
    "1.35": _V1_35,
    "1.36": _V1_36,
    "1.37": _V1_37,
}
"""By the first minor that has them. Older ones are out of support and count as the first."""

Releases = tuple[Release, ...]
"""What may be running, the largest of whose counts holds: one, several during an upgrade, or `UNKNOWN`."""

NEWEST: Releases = (_V1_37,)
UNKNOWN: Releases = tuple(RELEASES.values())
"""For a version that cannot be read or is newer than those known."""
_NEWEST_KNOWN = (1, 37)
_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")


def releases_of(versions: Iterable[str]) -> Releases:
    """The rules of the versions that API servers report ("v1.34.4+rke2r1"; "1.37" is enough), each once; UNKNOWN if
    there is none or one of them is not known."""
    found = [_release_of(version) for version in versions]
    known = [release for release in found if release is not None]
    return tuple(dict.fromkeys(known)) if known and len(known) == len(found) else UNKNOWN


def is_known(version: str) -> bool:
    """Whether the version can be read and is not newer than all that the rules were made of."""
    return _release_of(version) is not None


def doubt(versions: Sequence[str]) -> str:
    """Why more is counted than one release does, as a sentence; "" where one release that is known counts."""
    if releases_of(versions) is UNKNOWN:
        unknown = ", ".join(repr(version) for version in versions if not is_known(version)) or "''"
        return f"Kubernetes version {unknown} is not known to headroom: the largest count of any release holds"
    differ = len(releases_of(versions)) > 1
    return f"API servers differ ({', '.join(versions)}): the larger count holds" if differ else ""


def _release_of(version: str) -> Release | None:
    minor = _minor(version)
    if minor is None or minor > _NEWEST_KNOWN:
        return None
    fitting = [release for name, release in RELEASES.items() if (_minor(name) or minor) <= minor]
    return fitting[-1] if fitting else _V1_30


def _minor(version: str) -> tuple[int, int] | None:
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2])) if match else None
