"""What a ResourceQuota grants without migrations, by the names of its spec.hard: the base that is scaled. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pkg.api.core import ResourceQuota
from pkg.api.meta import RawResourceList
from pkg.util import constants
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.quantity import Quantity, QuantityError
from pkg.util.resource_list import ResourceList, parse_resource_list
from pkg.util.resourcequota.annotations import ENTRY_PREFIXES, parse_resources
from pkg.util.resourcequota.base import parse_base
from pkg.util.resourcequota.calculator import difference
from pkg.util.resourcequota.errors import InvalidBaseQuantity, InvalidEntry
from pkg.util.resourcequota.model import EstimateKind, Policy

_ALIASES = (
    ("cpu", "requests.cpu"),
    ("memory", "requests.memory"),
    ("ephemeral-storage", "requests.ephemeral-storage"),
)
"""Two names of one thing: quota counts requests under both."""
ALIAS: Mapping[str, str] = dict(_ALIASES) | {second: first for first, second in _ALIASES}
_PLAIN = {"cpu", "memory", "ephemeral-storage", "pods", "count/pods"}
_NO_POD_RESOURCES = {"requests.storage"}


def counts_of_pods(name: str) -> bool:
    """Whether a quota's resource is something that pods use up."""
    if name in _PLAIN or name.startswith("hugepages-"):
        return True
    return name.startswith(("requests.", "limits.")) and name not in _NO_POD_RESOURCES


def scaled_base(granted: Mapping[str, Quantity], hard: RawResourceList, policy: Policy) -> ResourceList:
    """The non-zero limits that entries are added to, by their name in spec.hard.

    Harvester's estimate: limits.cpu and limits.memory, which upstream adds to spec.hard where they are missing.
    Exact: whatever spec.hard counts of pods and the base names.
    """
    names = [name for name in (LIMITS_CPU, LIMITS_MEMORY) if name in granted]
    if policy.estimate is EstimateKind.EXACT:
        names += [name for name in hard if counts_of_pods(name) and name not in names]
    if policy.render:
        names += [name for name in granted if name not in names]
    found = {name: granted.get(name, granted.get(ALIAS.get(name, ""))) for name in names}
    return {name: limit for name, limit in found.items() if limit is not None and not limit.is_zero()}


def granted_by_namespace(annotation: str) -> ResourceList:
    """The base of Rancher's default quota. Raises InvalidNamespaceAnnotation, InvalidBaseQuantity."""
    return dict(parse_base(annotation)) if annotation else {}


def granted_by_record(quota: ResourceQuota) -> ResourceList:
    """The base of a quota without Rancher: its record, or spec.hard while nothing is added to it.

    So the record follows what people write to the quota outside migrations, and an entry that somebody removes
    does not make a raised spec.hard the base. Raises InvalidBaseQuantity when the record is garbage and entries
    stand, for then nothing else tells.
    """
    annotations = quota.annotations
    added = any(key.startswith(ENTRY_PREFIXES) for key in annotations)
    added |= constants.ANNOTATION_MIGRATING_COMPENSATION in annotations
    text = annotations.get(constants.ANNOTATION_BASE)
    if text is None or not (added or _is_as_applied(quota)):
        return _hard(quota)
    try:
        record = parse_resources(constants.ANNOTATION_BASE, text)
    except InvalidEntry as exc:
        raise InvalidBaseQuantity(str(exc)) from exc
    # Only what we scale differs from the base; the rest of spec.hard is people's at any time.
    kept = {name: limit for name, limit in record.items() if counts_of_pods(name)}
    hard = _hard(quota)
    return {name: kept.get(name, hard[name]) for name in hard} | {
        name: kept[name] for name in (LIMITS_CPU, LIMITS_MEMORY) if name in kept
    }


def _is_as_applied(quota: ResourceQuota) -> bool:
    """Whether spec.hard is what we raised it to."""
    text = quota.annotations.get(constants.ANNOTATION_APPLIED, "")
    try:
        applied = parse_resources(constants.ANNOTATION_APPLIED, text) if text else {}
    except InvalidEntry:
        return False
    return bool(applied) and not difference(quota.hard, applied)


def _hard(quota: ResourceQuota) -> ResourceList:
    try:
        return parse_resource_list(quota.hard)
    except QuantityError as exc:
        raise InvalidBaseQuantity(f"spec.hard: {exc}") from exc
