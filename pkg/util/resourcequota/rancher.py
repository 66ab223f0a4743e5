"""Rancher's part of a ResourceQuota: the namespace's request, the project's grant, and headroom's own request. Pure.

The annotation `field.cattle.io/resourceQuota` is a request: Rancher validates it against the project and then writes
spec.hard, or leaves it. What Rancher wrote is the grant. Where nobody but Rancher may write the quota (Rancher ≥ 2.14.6
and 2.15.2), headroom requests base + headroom by the annotation, and records on the namespace, in the same patch, what
the person had requested and for which VMs it was raised.

Sources: rancher pkg/controllers/managementuser/resourcequota (resource_quota_sync.go) and pkg/resourcequota
(quota_validate.go); rancher/webhook, resourcequota validator."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from kubeloop.api.core import Namespace, ResourceQuota, ValidatingWebhookConfiguration
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, minimum, parse_resource_list
from pkg.util import constants
from pkg.util.problems import EVENT_STUCK, Problem, ResourceQuotaError
from pkg.util.resourcequota.base import granted_by_record, parse_base, parse_limits, quantity_of, with_limits
from pkg.util.resourcequota.entries import MAX_LENGTH, is_entry
from pkg.util.resourcequota.managed import OWN_MARKS, RECORDS, is_default, is_off

SILENCE = 10.0
"""Seconds within which a Rancher that runs has answered a request."""


class Validation(NamedTuple):
    """Rancher's condition ResourceQuotaValidated on a namespace; `text` tells it from an earlier one."""

    fits: bool
    message: str
    text: str


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record on a namespace whose annotation says more than the person requested, or whose quota carries entries
    that nobody may remove."""

    annotation: str
    """The person's annotation, byte for byte."""
    asked: ResourceList
    """The limits that the annotation got instead, by the ResourceQuota's resource names."""
    base: ResourceList = {}
    """The part of them that is not headroom: the grant if Rancher grants the request."""
    granted: ResourceList = {}
    """The limits that Rancher had granted before."""
    entries: dict[str, Any] = {}
    """The text of the quota's entries and compensation, by annotation key: they are kept here while only Rancher may
    write it. In the record's JSON they are objects, and the keys have no prefix."""
    at: float = 0.0
    """When the annotation was written, seconds since the epoch."""
    validation: str = ""
    """The condition ResourceQuotaValidated at that time, as text."""


def project_of(namespace: Namespace | None) -> str:
    """Returns Rancher's project of a namespace, `CLUSTER:PROJECT`, or ""."""
    return namespace.annotations.get(constants.ANNOTATION_PROJECT, "") if namespace else ""


def validation_of(namespace: Namespace | None) -> Validation | None:
    """Returns Rancher's verdict about the namespace's request, or None if there is none."""
    text = namespace.annotations.get(constants.ANNOTATION_RANCHER_STATUS, "") if namespace else ""
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        for condition in json.loads(text)["Conditions"] if 0 < len(text) <= MAX_LENGTH else ():
            if condition["Type"] == "ResourceQuotaValidated":
                fits, message = condition["Status"] == "True", str(condition.get("Message", ""))
                return Validation(fits, message, f"{fits} {condition.get('LastUpdateTime', '')} {message}")
    return None


def request_of(namespace: Namespace | None) -> Request | None:
    """Returns headroom's record on a namespace, or None if there is none that can be read."""
    return parse_request(namespace.annotations.get(constants.ANNOTATION_REQUEST, "")) if namespace else None


@lru_cache(8)  # one decision reads the same record several times, which may have 256 KiB
def parse_request(text: str) -> Request | None:
    """Returns the record, or None for text that is none."""
    try:
        wire = msgspec.json.decode(text, type=Request, dec_hook=lambda _, raw: Quantity.parse(raw))
    except (msgspec.DecodeError, QuantityError, RecursionError):
        return None
    entries = {constants.HARVESTER_PREFIX + key: _compact(value) for key, value in wire.entries.items()}
    request = replace(wire, entries={key: text for key, text in entries.items() if is_entry(key)})
    return request if len(request.annotation) <= MAX_LENGTH else None


def format_request(request: Request) -> str:
    """Returns the record's JSON, compact, keys sorted."""
    entries = {key.removeprefix(constants.HARVESTER_PREFIX): json.loads(v) for key, v in request.entries.items()}
    return _compact(msgspec.to_builtins(replace(request, entries=entries), enc_hook=str))


def annotation_of(namespace: Namespace | None) -> str:
    """Returns the quota annotation as the person means it, "" where there is none.

    While headroom has raised it, a limit that says what headroom wrote stands for the person's number; a limit that
    says something else was edited and counts as written. A form that saves the raised numbers changes nothing, nor does
    garbage."""
    text = namespace.annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, "") if namespace else ""
    request = request_of(namespace)
    if not (request and text):
        return text
    now, raised = limits_of_annotation(text), request.asked
    with suppress(ResourceQuotaError):
        parse_base(text)
        if now != raised:
            original = parse_limits(request.annotation)
            return with_limits(text, {n: original[n] for n in now if n in original and now[n] == raised.get(n)})
    return request.annotation


def limits_of_annotation(text: str) -> ResourceList:
    """Returns an annotation's limits that are quantities, by the ResourceQuota's resource names."""
    limits: ResourceList = {}
    with suppress(ResourceQuotaError):
        for name, value in parse_limits(text).items():
            with suppress(QuantityError):
                limits[name] = Quantity.parse(value)
    return limits


def granted_to(quota: ResourceQuota, namespace: Namespace | None) -> ResourceList | None:
    """Returns the limits that Rancher granted a quota, zeros included; None where nobody validates: then the annotation
    alone is the base.

    Rancher's last write of spec.hard is the grant. While headroom has raised the quota itself, its records tell that
    write from its own. While it has Rancher raise it, a request is granted when spec.hard says all of it, and a limit
    when spec.hard says the person's number; whatever else Rancher writes then may be an earlier request."""
    if namespace is None or not is_default(quota):
        return None
    # Either suffices: who may edit the namespace can remove the condition, but not the project.
    if not project_of(namespace) and validation_of(namespace) is None:
        return None
    try:
        hard = parse_resource_list(quota.hard)
        recorded = granted_by_record(quota)
    except (QuantityError, ResourceQuotaError):
        return {}
    request = request_of(namespace)
    if request is None:
        return recorded
    if is_granted(request, quota):
        return {**request.granted, **request.base}
    person = limits_of_annotation(annotation_of(namespace))
    return minimum(request.granted, hard) | {name: limit for name, limit in person.items() if hard.get(name) == limit}


def is_granted(request: Request, quota: ResourceQuota) -> bool:
    """Reports whether spec.hard says what was requested."""
    return all(quantity_of(quota.hard, name) == limit for name, limit in request.asked.items() if name in quota.hard)


def exceeding(annotation: str, granted: Mapping[str, Quantity] | None) -> dict[str, tuple[Quantity, Quantity]]:
    """Returns the limits that the annotation requests beyond the grant: what is requested, and what is granted."""
    with suppress(ResourceQuotaError):
        requested = sorted(parse_base(annotation).items()) if granted else ()
        return {n: (limit, granted[n]) for n, limit in requested if granted and limit > granted.get(n, limit)}
    return {}


def with_request(quota: ResourceQuota, namespace: Namespace | None, *, asks: bool = False) -> ResourceQuota:
    """Returns the quota as decisions see it: with the entries of the record instead of its own, and with headroom's
    marks. `asks`: it is raised by requests, though there is no record yet.

    Entries that were written before only Rancher might write the quota are left out: nobody can remove them."""
    request = request_of(namespace)
    if not is_default(quota) or not (asks or request):
        return quota
    left_out = {*OWN_MARKS, *RECORDS, constants.ANNOTATION_TOUCHED, constants.ANNOTATION_RESYNC_NEEDED}
    annotations = {key: text for key, text in quota.annotations.items() if not is_entry(key) and key not in left_out}
    persons_skip = {constants.ANNOTATION_SKIP_AUTO_SCALING: constants.TRUE}
    annotations |= persons_skip if is_off(quota.annotations) else OWN_MARKS
    annotations |= request.entries if request else {}
    if annotations == quota.annotations:
        return quota
    return replace(quota, metadata=replace(quota.metadata, annotations=annotations))


def locks_quotas(registrations: Iterable[ValidatingWebhookConfiguration]) -> bool:
    """Reports whether Rancher's webhooks are asked about updates of ResourceQuotas."""
    return any(
        {"*", "*/*", "resourcequotas"}.intersection(rule.get("resources") or ())
        and {"*", "UPDATE"}.intersection(rule.get("operations") or ())
        for registration in registrations
        if registration.name.startswith(constants.RANCHER_WEBHOOKS)
        for webhook in registration.webhooks or ()
        for rule in webhook.get("rules") or ()
    )


def stuck_entries(quota: ResourceQuota) -> tuple[str, ...]:
    """Returns the entries on a quota itself, by key: headroom cannot remove them where only Rancher may write it."""
    return tuple(sorted(filter(is_entry, quota.annotations))) if is_default(quota) else ()


def removal_command(quota: ResourceQuota, keys: Iterable[str]) -> str:
    """Returns the command by which an administrator removes annotations of a quota that only Rancher may write."""
    names = " ".join(f"{key}-" for key in keys)
    return (
        f"kubectl --as={constants.RANCHER_SUDO_USER} --as-group={constants.RANCHER_SUDO_GROUP} "
        f"-n {quota.namespace} annotate resourcequota {quota.name} {names}"
    )


def stuck_problem(quota: ResourceQuota, keys: Sequence[str]) -> Problem:
    return Problem(
        EVENT_STUCK,
        f"resource quota {quota.name} carries entries that only Rancher may remove, and they no longer count: "
        f"{', '.join(keys)}. As long as they are there, Harvester's webhook refuses every change of the namespace's "
        f"quota annotation. An administrator removes them: {removal_command(quota, keys)}",
    )


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
