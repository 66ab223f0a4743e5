"""Namespace UPDATE, when Rancher's quota annotation changes: not under running migrations, nor below what is used.

Source: Harvester pkg/webhook/resources/namespace/validator.go; its texts byte for byte, but for Go's of bad JSON."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.resource_list import parse_resource_list
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision, deny
from pkg.util.constants import ANNOTATION_RANCHER_RESOURCE_QUOTA, LIMITS_CPU, LIMITS_MEMORY
from pkg.util.problems import InvalidNamespaceAnnotation
from pkg.util.resourcequota.base import parse_limits, quantity_of
from pkg.util.resourcequota.entries import MAX_LENGTH, has_migrating_vm
from pkg.util.resourcequota.managed import is_served, switched_off
from pkg.util.resourcequota.rancher import annotation_of, with_request
from pkg.webhook.resources.resourcequota import switching_off
from pkg.webhook.view import NoAnswer, View, defaults

_CHECKED: Final = ((LIMITS_CPU, "LimitsCPU", "CPU"), (LIMITS_MEMORY, "LimitsMemory", "Memory"))
"""Resource, Rancher's name of the field, and what a person calls it."""
_FORMAT: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_PARTS: Final = re.compile(r"[+-]?[0-9]*\.?[0-9]*[eEinumkKMGTP]*[-+]?[0-9]*")


def decide(old: Namespace, new: Namespace, quotas: Sequence[ResourceQuota]) -> Decision:
    """Decides about an update; `quotas` are the namespace's default quotas. Without any, no annotation is refused."""
    written = new.annotations.get(ANNOTATION_RANCHER_RESOURCE_QUOTA, "")
    # Garbage changes nothing while headroom has a request there, and is denied all the same.
    annotation = written if denial_reason(written, {}) else annotation_of(new)
    old_annotation = annotation_of(old)
    quotas = [with_request(quota, old) for quota in quotas]
    if annotation == old_annotation or not quotas:
        return ALLOW
    if any(has_migrating_vm(quota.annotations) for quota in quotas):
        if not _lowers(old_annotation, annotation):  # upstream denies it: a VM that has grown could never migrate
            return ALLOW
        # Upstream lets the annotation be removed; that takes the headroom away just as a lower limit does.
        return deny(f"namespace {new.name} has migrating VMs, can't change resource quotas", reason="migrating")
    problem = next(filter(None, (denial_reason(annotation, quota.used) for quota in quotas)), None)
    return deny(f"can't update the resource quota of namespace {new.name}, error: {problem}") if problem else ALLOW


def _lowers(old_annotation: str, new_annotation: str) -> bool:
    """Reports whether a limit goes, comes or is lowered, or cannot be read."""
    try:
        old, new = (parse_resource_list(parse_limits(annotation)) for annotation in (old_annotation, new_annotation))
    except (InvalidNamespaceAnnotation, QuantityError):
        return True
    return old.keys() != new.keys() or any(limit < old[name] for name, limit in new.items())


def denial_reason(annotation: str, used: Mapping[str, str | int | float]) -> str | None:
    """Returns why an annotation cannot be the new quota of a namespace that uses `used`, or None."""
    try:
        limits = parse_limits(annotation)
    except InvalidNamespaceAnnotation as exc:
        return f"invalid NamespaceResourceQuota {annotation[:MAX_LENGTH]}, error: {exc}"
    for resource, field, word in _CHECKED:
        if (text := limits.get(resource)) is None:
            continue
        try:
            limit = Quantity.parse(text)
        except QuantityError:  # in apimachinery's words (resource.ParseQuantity)
            error = "unable to parse quantity's suffix" if text and _PARTS.fullmatch(text) else _FORMAT
            return f"invalid {field} {text}, error: {error}"
        current = quantity_of(used, resource)
        if current > limit:
            return f"new {word} limit {limit} is lower than the current used {word} limit {current}"
    return None


async def validate(view: View, request: AdmissionRequest) -> Decision:
    """Answers UPDATE. The caches suggest, the API server decides: a live look precedes a denial."""
    old, new = request.old(Namespace), request.new(Namespace)
    if switched_off(new) and not switched_off(old):
        names = {name for quota in filter(is_served, view.quotas(new.name)) for name in view.migrating(quota)}
        return switching_off(f"namespace {new.name}", sorted(names))
    decision = decide(old, new, defaults(view.quotas(new.name)))
    with suppress(NoAnswer):
        if not decision.allowed:
            return decide(old, new, defaults(await view.quotas_live(new.name)))
    return decision
