"""The webhook configurations: which requests the API server asks about. Pure.

As narrow as the API allows: rules by kind and operation, then conditions that the API server evaluates itself, so
that a write that cannot concern us costs nothing. CEL without optional types: they came later than matchConditions."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from kubeloop.webhook.registration import Endpoint, Webhook, rule, webhook
from pkg.config.settings import QuotaGuard, Settings
from pkg.selfcheck.api_server import PROBE_LABEL, PROBE_PATH
from pkg.util import constants
from pkg.util.constants import NAMESPACE_NAME_LABEL, WEBHOOK_CONFIGURATION_NAME

MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "headroom"}
NAMESPACE_CONTROLLER: Final = "system:serviceaccount:kube-system:namespace-controller"
QUOTA_CONTROLLERS: Final = (
    "system:serviceaccount:kube-system:resourcequota-controller",
    "system:kube-controller-manager",
    "system:apiserver",
)
"""Who writes a quota's status: that must not have to wait for us."""

VALIDATE_NAMESPACE: Final = "/validate-namespace"
VALIDATE_RESOURCE_QUOTA: Final = "/validate-resourcequota"
MUTATE_RESOURCE_QUOTA: Final = "/mutate-resourcequota"
VALIDATE_VIRTUAL_MACHINE: Final = "/validate-virtualmachine"
VALIDATE_POD: Final = "/validate-pod"
NAMES: Final = {
    VALIDATE_NAMESPACE: "namespaces",
    VALIDATE_RESOURCE_QUOTA: "resourcequotas",
    MUTATE_RESOURCE_QUOTA: "resourcequotas",
    VALIDATE_VIRTUAL_MACHINE: "virtualmachines",
    VALIDATE_POD: "pods",
    constants.LOCK_PATH: "locks",
    PROBE_PATH: "probe",
}
"""Path to the name that flags, metrics and pages have for the webhook."""


def validating(endpoint: Endpoint, settings: Settings, bundle: bytes | None) -> list[Webhook]:
    """Returns the webhooks of the ValidatingWebhookConfiguration. `bundle` None: no caBundle is set."""
    make, templates = partial(_webhook, endpoint, settings, bundle), constants.ANNOTATION_VOLUME_CLAIM_TEMPLATES
    # Metadata is written through the subresources too.
    namespaces = rule(["namespaces", "namespaces/status", "namespaces/finalize"], ["UPDATE"], scope="Cluster")
    quota_changes = f"{_changes(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA)} || ({_SWITCHED_OFF})"
    vms = rule(["virtualmachines"], ["CREATE", "UPDATE"], group="kubevirt.io")
    volumes_change = f"{_text('object', templates)} != '' && {_changes(templates)}"
    webhooks = [
        make(VALIDATE_NAMESPACE, [namespaces], {"quota-annotation-changes": quota_changes}),
        make(VALIDATE_VIRTUAL_MACHINE, [vms], {"volumes-change": volumes_change}),
    ]
    if settings.quota_guard is not QuotaGuard.OFF:
        quotas = rule(["resourcequotas", "resourcequotas/status"], ["UPDATE", "DELETE"])
        webhooks.append(make(VALIDATE_RESOURCE_QUOTA, [quotas], _guard_conditions(settings)))
    if settings.reserve:
        # A pod may also grow into the headroom.
        pods = [rule(["pods"], ["CREATE"]), rule(["pods/resize"], ["UPDATE"])]
        selector = {"matchLabels": {constants.LABEL_HOLDING: constants.TRUE}}
        webhooks.append(make(VALIDATE_POD, pods, {}, namespaceSelector=selector))
    return webhooks


def mutating(endpoint: Endpoint, settings: Settings, bundle: bytes | None) -> list[Webhook]:
    """Returns the webhooks of the MutatingWebhookConfiguration: only Rancher's writes are ever changed."""
    if settings.quota_guard is not QuotaGuard.CORRECT or not settings.rancher_users:
        return []
    make = partial(_webhook, endpoint, settings, bundle)
    by_rancher = {"by-rancher": _matches("request.userInfo.username", settings.rancher_users)}
    quotas, conditions = rule(["resourcequotas"], ["UPDATE"]), _guard_conditions(settings) | by_rancher
    # Asked again when a later webhook changed the object after us. What is corrected is reported by an Event.
    options = {"reinvocationPolicy": "IfNeeded", "sideEffects": "NoneOnDryRun"}
    return [make(MUTATE_RESOURCE_QUOTA, [quotas], conditions, **options)]


def probing(endpoint: Endpoint, settings: Settings, bundle: bytes | None) -> list[Webhook]:
    make = partial(_webhook, endpoint, settings, bundle)
    namespace = {"matchLabels": {NAMESPACE_NAME_LABEL: settings.namespace}}
    options = {"objectSelector": {"matchLabels": {PROBE_LABEL: constants.TRUE}}, "reinvocationPolicy": "Never"}
    events = rule(["events"], ["CREATE"])
    return [make(PROBE_PATH, [events], {}, namespaceSelector=namespace, failurePolicy="Fail", **options)]


def fingerprint(endpoint: Endpoint, settings: Settings) -> str:
    """Returns a hash of the webhooks, without their address; replicas with the same flags agree."""
    webhooks = validating(Endpoint(), settings, None), mutating(Endpoint(), settings, None)
    contents = [*webhooks, bool(endpoint.url), *([] if settings.register else ["left to another tool"])]
    return hashlib.sha256(msgspec.json.encode(contents, order="deterministic")).hexdigest()[:16]


def _webhook(
    endpoint: Endpoint,
    settings: Settings,
    bundle: bytes | None,
    path: str,
    rules: Sequence[Mapping[str, Any]],
    conditions: Mapping[str, str],
    **fields: Any,
) -> Webhook:
    name = NAMES[path]
    if settings.only_namespaces and path != PROBE_PATH:
        subject = "request.name" if path == VALIDATE_NAMESPACE else "request.namespace"
        conditions = {"served": _matches(subject, settings.only_namespaces), **conditions}
    if conditions:
        fields["matchConditions"] = [{"name": n, "expression": e} for n, e in conditions.items()]
    fields = {"failurePolicy": "Fail" if name in settings.strict else "Ignore", **fields}
    return webhook(f"{name}.{WEBHOOK_CONFIGURATION_NAME}", endpoint.client_config(path, bundle), rules, **fields)


def _guard_conditions(settings: Settings) -> dict[str, str]:
    base, owner = constants.ANNOTATION_BASE, constants.ANNOTATION_OWNER
    loses = " || ".join(f"({_is_true('oldObject', label)} && !({_is_true('object', label)}))" for label in _MANAGED)
    # A skip without that mark is a person's, and the quota left alone. Both go when a quota is given back, which has to
    # be possible while no webhook answers.
    is_skipped = _is_true("object", constants.ANNOTATION_SKIP_AUTO_SCALING, "annotations")
    loses_owner = f"{_has('oldObject', owner)} && !({_has('object', owner)}) && {is_skipped}"
    changes_base = f"{_has('oldObject', base)} && (!({_has('object', base)}) || {_changes(base)})"
    conditions = {
        "managed": " || ".join(_is_true("oldObject", label) for label in _MANAGED),
        # Most updates leave the limits alone.
        "limits-change": "request.operation == 'DELETE' || (has(object.spec.hard)"
        " && (!has(oldObject.spec.hard) || object.spec.hard != oldObject.spec.hard))"
        # What quota admission goes by.
        " || (has(object.status) && has(object.status.hard) && has(oldObject.status) && has(oldObject.status.hard)"
        " && object.status.hard != oldObject.status.hard"
        # Anybody may bring it to spec.hard.
        " && !(has(object.spec.hard) && object.status.hard == object.spec.hard))"
        # A label that goes takes all headroom with it; the base is recorded on quotas without Rancher.
        f" || ({_SWITCHED_OFF}) || ({loses}) || ({loses_owner})"
        f" || ({_is_true('oldObject', constants.LABEL_MANAGED)} && {changes_base})",
        "not-the-namespace-controller": f"request.userInfo.username != '{NAMESPACE_CONTROLLER}'",
        "not-the-quota-controller": "!(has(request.subResource) && request.subResource == 'status'"
        f" && request.userInfo.username in {json.dumps(QUOTA_CONTROLLERS)})",
    }
    if settings.passes:
        conditions["not-headroom"] = " && ".join(f"request.userInfo.username != '{user}'" for user in settings.passes)
    return conditions


def _matches(subject: str, patterns: Sequence[str]) -> str:
    """Returns the condition that a name matches a pattern. Raises ValueError where it would break the expression."""
    for pattern in patterns:
        if not re.fullmatch(r"[A-Za-z0-9:._@/*?-]+", pattern):
            raise ValueError(f"{pattern!r} is not a pattern of names")
    expressions = "|".join(map(re.escape, patterns)).replace(r"\*", ".*").replace(r"\?", ".")
    return f"{subject}.matches(r'^(?:{expressions})$')"


def _has(subject: str, key: str, marks: str = "annotations") -> str:
    """Returns the condition that an annotation, or a label (`marks`), is there, whatever its text."""
    return f"has({subject}.metadata.{marks}) && '{key}' in {subject}.metadata.{marks}"


def _text(subject: str, key: str, marks: str = "annotations") -> str:
    """Returns the expression of the text of an annotation, or of a label (`marks`): '' where it is missing."""
    return f"({_has(subject, key, marks)} ? {subject}.metadata.{marks}['{key}'] : '')"


def _is_true(subject: str, key: str, marks: str = "labels") -> str:
    return f"{_text(subject, key, marks)} == '{constants.TRUE}'"


def _is_off(subject: str) -> str:
    label, annotation = (_text(subject, constants.LABEL_MANAGED, marks) for marks in ("labels", "annotations"))
    return f"({label} == '{constants.FALSE}' || {annotation} == '{constants.FALSE}')"


def _changes(key: str) -> str:
    """Returns the condition that an annotation has another text than before; the object may be new."""
    return f"{_text('object', key)} != (oldObject == null ? '' : {_text('oldObject', key)})"


_MANAGED: Final = (constants.LABEL_DEFAULT_RESOURCE_QUOTA, constants.LABEL_MANAGED)
_SWITCHED_OFF: Final = f"{_is_off('object')} && !{_is_off('oldObject')}"
"""In an UPDATE: a person switches headroom off, and is warned which migrations lose their headroom."""
