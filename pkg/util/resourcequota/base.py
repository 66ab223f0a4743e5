"""The base of a quota, and spec.hard made of it: base + entries + compensation. Pure.

The base is what Rancher's namespace annotation grants, or what a quota without Rancher said before anything was added
for migrations. Source: rancher `NamespaceResourceQuota` (management.cattle.io/v3) and Harvester
pkg/util/resourcequota (calculator.go, utils.go). The arithmetic works on any resource name."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import RawQuantity
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, minimum, parse_resource_list, subtract
from pkg.util import constants
from pkg.util.amounts import format_amount, format_written
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.problems import (
    EVENT_BASE_CHANGED,
    InvalidBaseQuantity,
    InvalidEntry,
    InvalidNamespaceAnnotation,
    Problem,
    ResourceQuotaError,
)
from pkg.util.quotacount.usage import DEVICES_SUFFIX, STORAGE_CLASS_SUFFIX
from pkg.util.resourcequota.entries import MAX_LENGTH, MAX_RECORD_LENGTH, has_headroom, parse_resources, read
from pkg.util.resourcequota.managed import is_default, was_default
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy

RESOURCE_NAMES: Mapping[str, str] = {
    "pods": "pods",
    "services": "services",
    "replicationControllers": "replicationcontrollers",
    "secrets": "secrets",
    "configMaps": "configmaps",
    "persistentVolumeClaims": "persistentvolumeclaims",
    "servicesNodePorts": "services.nodeports",
    "servicesLoadBalancers": "services.loadbalancers",
    "requestsCpu": "requests.cpu",
    "requestsMemory": "requests.memory",
    "requestsStorage": "requests.storage",
    "limitsCpu": "limits.cpu",
    "limitsMemory": "limits.memory",
}
"""Rancher's name of a limit to the ResourceQuota's."""

_RESOURCES_BY_LOWER_CASE = {name.lower(): resource for name, resource in RESOURCE_NAMES.items()}
"""Names match as Go's JSON decoder matches them: whatever their case."""


def parse_limits(annotation: str) -> Mapping[str, str]:
    """Returns the annotation's limits as text, by the ResourceQuota's resource names, without empty ones; none without
    an annotation. `null` is not a limit. Raises InvalidNamespaceAnnotation when the text is no JSON of Rancher's shape,
    or longer than MAX_LENGTH."""
    if len(annotation) > MAX_LENGTH:
        raise InvalidNamespaceAnnotation(f"field.cattle.io/resourceQuota has more than {MAX_LENGTH} characters")
    try:
        document = json.loads(annotation or "{}")
    except (ValueError, RecursionError) as exc:
        raise InvalidNamespaceAnnotation(f"field.cattle.io/resourceQuota is not JSON: {exc}") from exc
    limits: dict[str, str] = {}
    for key, value in _fields_of(document).items():
        if resource := _RESOURCES_BY_LOWER_CASE.get(key.lower()):
            if isinstance(value, str):
                limits[resource] = value
            elif value is not None:
                text = f"field.cattle.io/resourceQuota: {key} must be a string, not {value!r}"
                raise InvalidNamespaceAnnotation(text)
        elif key.lower() == "extended" and isinstance(value, dict):  # with resource names as they are
            limits |= {name: text for name, text in value.items() if isinstance(text, str)}
    return MappingProxyType({name: value for name, value in limits.items() if value})


@lru_cache(maxsize=1024)
def parse_base(annotation: str) -> Mapping[str, Quantity]:
    """Returns the base of Rancher's default quota: the annotation's limits as quantities, by the ResourceQuota's
    resource names; none without an annotation.

    Raises InvalidNamespaceAnnotation, or InvalidBaseQuantity naming the limit that does not parse or is negative. Only
    the resources that headroom adds to are checked; a strange `secrets` limit is Rancher's affair."""
    base: dict[str, Quantity] = {}
    for name, text in parse_limits(annotation).items():
        try:
            base[name] = Quantity.parse(text)
        except QuantityError as exc:
            if name in (LIMITS_CPU, LIMITS_MEMORY):
                raise InvalidBaseQuantity(f"field.cattle.io/resourceQuota: {name} is {text[:80]!r}: {exc}") from exc
        else:
            if base[name] < ZERO and is_scaled(name):
                raise InvalidBaseQuantity(f"field.cattle.io/resourceQuota: {name} is {text[:80]!r}: negative")
    return MappingProxyType(base)


def _fields_of(document: object) -> dict[str, Any]:
    """Returns the object `limit` of an annotation's JSON; as Go decodes it, the last one."""
    if document is not None and not isinstance(document, dict):
        raise InvalidNamespaceAnnotation("field.cattle.io/resourceQuota: the document must be an object")
    fields = next((value for key, value in reversed((document or {}).items()) if key.lower() == "limit"), None)
    if fields is not None and not isinstance(fields, dict):
        raise InvalidNamespaceAnnotation("field.cattle.io/resourceQuota: limit must be an object")
    return fields or {}


def with_limits(text: str, limits: Mapping[str, str]) -> str:
    """Returns an annotation with other values for limits that it has, by the ResourceQuota's resource names; whatever
    else the JSON holds stays as it is. Raises InvalidNamespaceAnnotation."""
    parse_limits(text)
    if not limits:
        return text
    document = json.loads(text)
    fields = _fields_of(document)
    for key, value in fields.items():
        if key.lower() == "extended" and isinstance(value, dict):
            value |= {resource: limits[resource] for resource in value if resource in limits}
        elif (resource := _RESOURCES_BY_LOWER_CASE.get(key.lower(), "")) in limits:
            fields[key] = limits[resource]
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


_ALIASES = [(name, f"requests.{name}") for name in ("cpu", "memory", "ephemeral-storage")]
_ALIASES += [(name, alias) for alias, name in _ALIASES]
"""Two names of one thing each, both ways: quota counts requests under both."""
_OF_PODS = {"cpu", "memory", "ephemeral-storage", "pods", "count/pods"}
_OF_CLAIMS = {"persistentvolumeclaims", "count/persistentvolumeclaims", "requests.storage"}


def is_scaled(name: str) -> bool:
    """Reports whether a migration uses a quota's resource: its target's pods or PVCs count in it."""
    return counts_of_pods(name) or counts_of_claims(name)


@lru_cache(maxsize=4096)
def counts_of_claims(name: str) -> bool:
    """Reports whether PersistentVolumeClaims use a resource."""
    return name in _OF_CLAIMS or STORAGE_CLASS_SUFFIX in name


@lru_cache(maxsize=4096)
def counts_of_pods(name: str) -> bool:
    """Reports whether pods use a resource; an extended one has a domain. Of ResourceClaims' devices they use none."""
    if counts_of_claims(name) or name.endswith(DEVICES_SUFFIX):
        return False
    plain = name.removeprefix("requests.").removeprefix("limits.")
    return plain in _OF_PODS or plain.startswith("hugepages-") or (plain != name and "/" in plain)


def granted_by_record(quota: ResourceQuota) -> ResourceList:
    """Returns the base of a quota without Rancher: its record, or what people have written to it since.

    While the quota is raised, `applied` is what headroom made of each limit: a limit that differs from it was edited,
    and is the base as written. Without `applied` the record holds as long as the quota has entries. Where the record
    was removed, the base is what was applied less the headroom. Raises InvalidBaseQuantity when the record is
    garbage."""
    annotations, applied, edited = quota.annotations, applied_to(quota), edits_of(quota)
    text = annotations.get(constants.ANNOTATION_BASE)
    try:
        hard = parse_resource_list(quota.hard)
        if not (applied or (text is not None and has_headroom(annotations))):
            return hard
        if text is None:
            headroom = read(annotations).total
            return subtract(hard, {name: headroom.get(name, ZERO) for name in applied.keys() - edited.keys()})
        record = parse_resources(constants.ANNOTATION_BASE, text, MAX_RECORD_LENGTH)
    except (QuantityError, InvalidEntry) as exc:
        raise InvalidBaseQuantity(f"its base: {exc}") from exc
    # Only what we scale differs from the base; the rest of spec.hard is people's at any time.
    recorded = {name: limit for name, limit in record.items() if is_scaled(name) and name not in edited}
    restored = {name: recorded[name] for name in (LIMITS_CPU, LIMITS_MEMORY) if name in recorded}
    return {name: recorded.get(name, hard[name]) for name in hard} | restored


def edits_of(quota: ResourceQuota) -> Mapping[str, Quantity | None]:
    """Returns the limits that people changed while the quota was raised, with what headroom had made of them; None for
    one that is not scaled."""
    applied = applied_to(quota)
    changed = {name: limit for name, limit in applied.items() if difference(quota.hard, {name: limit})}
    return changed | {name: None for name in quota.hard if applied and is_scaled(name) and name not in applied}


def applied_to(quota: ResourceQuota) -> ResourceList:
    """Returns the limits to which headroom raised spec.hard; empty without a readable record of them."""
    text = quota.annotations.get(constants.ANNOTATION_APPLIED, "")
    with suppress(InvalidEntry):
        return dict(parse_resources(constants.ANNOTATION_APPLIED, text, MAX_RECORD_LENGTH)) if text else {}
    return {}


@dataclass(frozen=True, slots=True)
class Base:
    """The limits that entries are added to, none of them zero: empty if there are none, None if their source is
    garbage. `record` is the base that the quota shall carry: always without Rancher, while it is raised where Rancher
    validates."""

    limits: ResourceList | None
    record: Mapping[str, Quantity] | None = None
    problems: Sequence[Problem] = ()
    is_default: bool = True


def base_of(
    quota: ResourceQuota, annotation: str, policy: Policy, granted: Mapping[str, Quantity] | None = None
) -> Base:
    """Returns the base of a quota; `annotation` is its namespace's, "" without one, `granted` Rancher's grant
    (`rancher.granted_to`): where Rancher validates, the annotation lowers the base and raises it no further than that.
    There the grant is also the base of a raised limit that the annotation has lost, or does not say for it is garbage.

    Beside Harvester, and with its estimate: limits.cpu and limits.memory, which upstream adds to spec.hard where they
    are missing. Else also whatever spec.hard counts of pods and their claims and the base names."""
    # Of one that has lost Rancher's label while it is raised the annotation is the base all the same.
    default = is_default(quota) or (was_default(quota) and has_headroom(quota.annotations))
    record, problems = granted, list[Problem]()
    requested: ResourceList = {name: granted[name] for name in applied_to(quota) if name in granted} if granted else {}
    beside_harvester = policy.mode is Mode.ASSIST and default
    try:
        if default:
            requested |= parse_base(annotation)
        else:
            record = granted_by_record(quota)
            requested = dict(record)
    except ResourceQuotaError as exc:
        problems = [exc.problem]
        if not requested or beside_harvester:
            # Upstream: the order to compute again is answered where only a quantity is garbage.
            answered = beside_harvester and isinstance(exc, InvalidBaseQuantity)
            return Base({} if answered else None, None, problems, default)
    only_both = not policy.render and (beside_harvester or policy.estimate is EstimateKind.HARVESTER)
    if only_both and all(quantity_of(quota.hard, name).is_zero() for name in HARVESTERS):  # upstream: it is not scaled
        return Base({}, record, is_default=default)
    names = [name for name in HARVESTERS if name in requested]
    if policy.estimate is EstimateKind.EXACT and not only_both:
        names += [name for name in quota.hard if is_scaled(name) and name not in names]
    if policy.render:
        names += [name for name in requested if name not in names]
    limits = {alias: requested[name] for alias, name in _ALIASES if name in requested} | requested
    limits = minimum(limits, granted) if default and granted is not None else limits
    limits = {name: limits[name] for name in names if name in limits and not limits[name].is_zero()}
    return Base(limits, record, problems if default else _edited(quota), default)


def _edited(quota: ResourceQuota) -> tuple[Problem, ...]:
    changed = ", ".join(
        f"{name} from {format_amount(applied, name)} to {format_written(str(quota.hard.get(name, 'unset')), name)}"
        for name, applied in sorted(edits_of(quota).items())
        if applied is not None and constants.ANNOTATION_BASE in quota.annotations
    )
    text = f"changed while it was raised: {changed}; what was written is the new base"
    return (Problem(EVENT_BASE_CHANGED, text, kind="Normal"),) if changed else ()


HARVESTERS = (LIMITS_CPU, LIMITS_MEMORY)
"""The resources that Harvester scales."""


def hard(base: Mapping[str, Quantity], headroom: Mapping[str, Quantity]) -> ResourceList:
    """Returns the spec.hard that a quota shall have: each limit of the base with the headroom on top. A resource that
    the base does not limit is left alone (upstream CalculateNewResourceQuotaFromBaseDelta)."""
    return {name: limit + headroom.get(name, ZERO) for name, limit in base.items() if not limit.is_zero()}


def difference(hard: Mapping[str, RawQuantity], limits: Mapping[str, Quantity]) -> dict[str, str]:
    """Returns the part of `limits` that spec.hard does not already have by value, in canonical spelling."""
    return {name: str(value) for name, value in limits.items() if name not in hard or quantity_of(hard, name) != value}


def quantity_of(resources: Mapping[str, RawQuantity], name: str) -> Quantity:
    """Returns a resource's quantity; zero for one that is absent, or unreadable: the API server admits none."""
    try:
        return Quantity.parse(resources[name]) if name in resources else ZERO
    except QuantityError:
        return ZERO
