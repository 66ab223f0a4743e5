"""Kubernetes' releases as data: by which rules the quota evaluators of each count, its default feature gates given.

The paths are those of kubernetes pkg/quota/v1/evaluator/core where none is given."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, TypeVar

T = TypeVar("T", bound=Any)
Version = tuple[int, int, int]
_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])(?:\.([0-9]{1,4})(?![0-9]))?")


class StatusRule(Enum):
    """The part of the containers' status that counts beside the spec. Source: component-helpers resource/helpers.go."""

    IGNORED = auto()
    BY_CONTAINER = auto()
    """For each container the larger of spec, actual and allocated resources; plain init containers by spec."""
    BY_SUM = auto()
    """The largest of three sums over the pod: spec, actual (else allocated, else spec), allocated (else spec)."""


class PodLevelDefaults(Enum):
    """The moment when pod-level resources are completed (pkg/apis/core/v1/defaults.go, pkg/api/pod/util.go)."""

    NONE = auto()
    WHEN_READ = auto()  # requests, and limits of huge pages; before admission plugins have completed the containers
    WHEN_CREATED = auto()  # requests and limits, after all admission plugins and webhooks that change the pod


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: caches have them in their keys
class Release:
    """The rules of one release; the defaults are those of 1.30."""

    container_status: StatusRule = StatusRule.IGNORED
    pod_level_resources: bool = False  # they replace the sum of the containers and decide the QoS class
    empty_pod_level_decides: bool = True  # they decide the QoS class without any amount that counts, too
    pod_level_defaults: PodLevelDefaults = PodLevelDefaults.NONE
    device_class_requests: bool = False  # pods are charged for `deviceclass.resource.kubernetes.io/<class>`
    device_class_claims: bool = False  # ResourceClaims are charged for that too
    prioritized_devices: bool = False  # a ResourceClaim may name alternatives (`firstAvailable`)
    allocated_storage: bool = False  # a PersistentVolumeClaim counts what is allocated if that is more than the request
    resize_is_charged: bool = False  # an UPDATE of pods/resize is checked against quota


_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "1.30": {},
    # RecoverVolumeExpansionFailure; pods.go Handles
    "1.32": {"allocated_storage": True, "resize_is_charged": True},
    # InPlacePodVerticalScaling; resource_claims.go FirstAvailable
    "1.33": {"container_status": StatusRule.BY_CONTAINER, "prioritized_devices": True},
    # PodLevelResources
    "1.34": {"pod_level_resources": True, "pod_level_defaults": PodLevelDefaults.WHEN_READ},
    "1.35": {"device_class_requests": True},  # pods.go isExtendedResourceNameForQuota
    "1.36": {"device_class_claims": True},  # DRAExtendedResource
    # aggregateContainerResourcesByFn; PodLevelResourcesFixDefaulting, …FixKubeletQOSClass
    "1.37": {
        "container_status": StatusRule.BY_SUM,
        "pod_level_defaults": PodLevelDefaults.WHEN_CREATED,
        "empty_pod_level_decides": False,
    },
}
"""What each minor changed of the one before."""


def by_release(rules: T, changes: Mapping[str, Mapping[str, Any]]) -> Mapping[str, T]:
    """Returns the rules of each release, a frozen dataclass; `changes`, oldest first, are to the release before."""
    rules_by_release: dict[str, T] = {}
    for release, release_changes in changes.items():
        rules = rules_by_release[release] = replace(rules, **release_changes)
    return rules_by_release


def rules_at(rules_by_release: Mapping[str, T], version: Version) -> T:
    """Returns a version's rules from the result of `by_release`; the first release's for a version before all."""
    oldest, *later = rules_by_release
    candidates = [oldest, *(name for name in later if (start := version_of(name)) and start <= version)]
    return rules_by_release[candidates[-1]]


def version_of(text: str) -> Version | None:
    """Returns the version at the start of a text such as "v1.34.4+rke2r1" or "1.8", None if there is none."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


RELEASES = by_release(Release(), _CHANGES)
"""By the first minor that has them. Older ones are out of support and count as the first."""
Releases = tuple[Release, ...]
"""What may be running, the largest of whose counts holds: one, several during an upgrade, or `UNKNOWN`."""
NEWEST: Releases = (RELEASES["1.37"],)
UNKNOWN: Releases = tuple(RELEASES.values())
"""For a version that cannot be read or is newer than those known."""


def releases_of(versions: Iterable[str]) -> Releases:
    """Returns the rules of the versions that API servers report, each once; UNKNOWN if one is, or without any."""
    releases = [_release_of(version) for version in versions]
    return UNKNOWN if not releases or None in releases else tuple(dict.fromkeys(filter(None, releases)))


def doubt(versions: Sequence[str]) -> str:
    """Returns a sentence that explains why more is counted than one release does; "" if one known release counts."""
    if releases_of(versions) is UNKNOWN:
        unknown_versions = ", ".join(repr(version) for version in versions if _release_of(version) is None) or "''"
        return f"Kubernetes version {unknown_versions} is not known to headroom: the largest count of any release holds"
    has_several = len(releases_of(versions)) > 1
    return f"API servers differ ({', '.join(versions)}): the larger count holds" if has_several else ""


def _release_of(version: str) -> Release | None:
    parsed_version = version_of(version)
    return rules_at(RELEASES, parsed_version) if parsed_version and parsed_version < (1, 38, 0) else None
