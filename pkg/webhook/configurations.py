"""The webhook configurations: which requests the API server asks about. Pure.

As narrow as the API allows: rules by kind and operation, then conditions that the API server evaluates itself, so
that a write that cannot concern us costs nothing. Every field is spelled out, defaults too: what the server
stores then equals what is wanted, and drift is seen by comparing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from pkg.config.probe import PROBE_LABEL, PROBE_PATH
from pkg.util import constants
from pkg.util.constants import NAMESPACE_NAME_LABEL, WEBHOOK_CONFIGURATION_NAME
from pkg.webhook.options import Options, QuotaGuard

MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "headroom"}
TIMEOUT_SECONDS: Final = 5
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

KEY_BYTES: Final = 16
_KEY = re.compile(f"[0-9a-f]{{{2 * KEY_BYTES}}}")
_SAFE_PATTERN = re.compile(r"[A-Za-z0-9:._@/*?-]+")

Webhook = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API server finds us: a URL, or a Service when `url` is "" (`https://host:port`, no path)."""

    url: str = ""
    service_namespace: str = ""
    service_name: str = ""
    key: str = ""
    """The last part of every path, by which the API server is known, also where it presents no client certificate: only
    readers of webhook configurations know it. Replicas share the one that is registered."""

    def client_config(self, path: str) -> dict[str, Any]:
        """WebhookClientConfig without a caBundle."""
        if self.key and path != PROBE_PATH:  # whose configuration is the same for all replicas
            path = f"{path}/{self.key}"
        if self.url:
            return {"url": self.url + path}
        service = {"namespace": self.service_namespace, "name": self.service_name, "path": path, "port": 443}
        return {"service": service}

    @property
    def hosts(self) -> list[str]:
        """The names that the API server calls, which the certificate is for."""
        if self.url:
            return [urlsplit(self.url).hostname or ""]
        service = f"{self.service_name}.{self.service_namespace}.svc"
        return [service, f"{service}.cluster.local"]


def key_of(webhooks: Iterable[Mapping[str, Any]]) -> str:
    """The key in which the paths of registered webhooks end; "": in none."""
    configs = [webhook.get("clientConfig") or {} for webhook in webhooks]
    paths = [urlsplit(c.get("url") or "").path or (c.get("service") or {}).get("path") or "" for c in configs]
    return next((key for key in (path.rpartition("/")[2] for path in paths) if _KEY.fullmatch(key)), "")


def without_key(path: str, key: str) -> tuple[str, bool]:
    """A request's path without a key, and whether it ended in this one."""
    rest, _, shown = path.rpartition("/")
    if not _KEY.fullmatch(shown):
        return path, False
    return rest, hmac.compare_digest(shown, key)


def validating(endpoint: Endpoint, options: Options, bundle: bytes | None) -> list[Webhook]:
    """The webhooks of the ValidatingWebhookConfiguration. `bundle` None: no caBundle is set."""
    make = partial(_webhook, endpoint, options, bundle)
    webhooks = [
        make(
            VALIDATE_NAMESPACE,
            # Metadata is written through the subresources too.
            [_rule(["namespaces", "namespaces/status", "namespaces/finalize"], ["UPDATE"], scope="Cluster")],
            {
                "quota-annotation-changes": f"({_annotation_changes(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA)})"
                f" || ({_annotation_goes(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA)}) || ({_SWITCHED_OFF})"
            },
        ),
        make(
            VALIDATE_VIRTUAL_MACHINE,
            [_rule(["virtualmachines"], ["CREATE", "UPDATE"], group="kubevirt.io")],
            {"volumes-change": _annotation_changes(constants.ANNOTATION_VOLUME_CLAIM_TEMPLATES)},
        ),
    ]
    if options.quota_guard is not QuotaGuard.OFF:
        resources = ["resourcequotas", "resourcequotas/status"]
        rule = _rule(resources, ["UPDATE", "DELETE"])
        webhooks.append(make(VALIDATE_RESOURCE_QUOTA, [rule], _guarded(options)))
    if options.reserve:
        rules = [
            _rule(["pods"], ["CREATE"]),
            # A pod may also grow into the headroom.
            _rule(["pods/resize"], ["UPDATE"]),
        ]
        selector = {"matchLabels": {constants.LABEL_HOLDING: constants.TRUE}}
        webhooks.append(make(VALIDATE_POD, rules, {}, selector))
    return webhooks


def mutating(endpoint: Endpoint, options: Options, bundle: bytes | None) -> list[Webhook]:
    """The webhooks of the MutatingWebhookConfiguration: only Rancher's writes are ever changed."""
    if options.quota_guard is not QuotaGuard.CORRECT or not options.rancher_users:
        return []
    make = partial(_webhook, endpoint, options, bundle)
    rule = _rule(["resourcequotas"], ["UPDATE"])
    conditions = {**_guarded(options), "by-rancher": _matches("request.userInfo.username", options.rancher_users)}
    webhook = make(MUTATE_RESOURCE_QUOTA, [rule], conditions)
    # Asked again when a later webhook changed the object after us.
    # What is corrected is reported by an Event.
    return [{**webhook, "reinvocationPolicy": "IfNeeded", "sideEffects": "NoneOnDryRun"}]


def probing(endpoint: Endpoint, options: Options, bundle: bytes | None) -> list[Webhook]:
    """The webhook of the probe's configuration: Events with its label in our own namespace, and nothing else."""
    make = partial(_webhook, endpoint, options, bundle)
    rule = _rule(["events"], ["CREATE"])
    selector = {"matchLabels": {NAMESPACE_NAME_LABEL: options.namespace}}
    webhook = make(PROBE_PATH, [rule], {}, selector)
    selected = {"objectSelector": {"matchLabels": {PROBE_LABEL: constants.TRUE}}}
    return [{**webhook, **selected, "failurePolicy": "Fail", "reinvocationPolicy": "Never"}]


def fingerprint(endpoint: Endpoint, options: Options) -> str:
    """A hash of what is asked of the API server, wherever it is answered; replicas with the same flags agree."""
    asked = [validating(Endpoint(), options, None), mutating(Endpoint(), options, None), bool(endpoint.url)]
    if not options.register:
        asked.append("left to another tool")
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()[:16]


def _webhook(
    endpoint: Endpoint,
    options: Options,
    bundle: bytes | None,
    path: str,
    rules: Sequence[Mapping[str, Any]],
    conditions: Mapping[str, str],
    namespace_selector: Mapping[str, Any] | None = None,
) -> Webhook:
    name, client_config = NAMES[path], endpoint.client_config(path)
    if bundle is not None:
        client_config["caBundle"] = base64.b64encode(bundle).decode("ascii")
    webhook: Webhook = {
        "name": f"{name}.{WEBHOOK_CONFIGURATION_NAME}",
        "admissionReviewVersions": ["v1"],
        "clientConfig": client_config,
        "failurePolicy": options.failure_policy_of(name).value,
        "matchPolicy": "Equivalent",
        "namespaceSelector": dict(namespace_selector or {}),
        "objectSelector": {},
        "rules": list(rules),
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
    }
    if options.only_namespaces and path != PROBE_PATH:
        subject = "request.name" if path == VALIDATE_NAMESPACE else "request.namespace"
        conditions = {"served": _matches(subject, options.only_namespaces), **conditions}
    if conditions:
        webhook["matchConditions"] = [{"name": n, "expression": e} for n, e in conditions.items()]
    return webhook


def _rule(resources: list[str], operations: list[str], *, group: str = "", scope: str = "Namespaced") -> Webhook:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "resources": resources,
        "operations": operations,
        "scope": scope,
    }


def _guarded(options: Options) -> dict[str, str]:
    conditions = {
        "managed": f"({_labelled(constants.LABEL_DEFAULT_RESOURCE_QUOTA)}) || ({_labelled(constants.LABEL_MANAGED)})",
        # Most updates leave the limits alone.
        "limits-change": "request.operation == 'DELETE' || (has(object.spec.hard)"
        " && (!has(oldObject.spec.hard) || object.spec.hard != oldObject.spec.hard))"
        # What quota admission goes by.
        " || (has(object.status) && has(object.status.hard) && has(oldObject.status) && has(oldObject.status.hard)"
        " && object.status.hard != oldObject.status.hard)"
        f" || ({_SWITCHED_OFF}) || ({_loses_label()}) || ({_loses_owner()}) || ({_changes_base()})",
        "not-the-namespace-controller": f"request.userInfo.username != '{NAMESPACE_CONTROLLER}'",
        "not-the-quota-controller": "!(has(request.subResource) && request.subResource == 'status'"
        f" && request.userInfo.username in {json.dumps(QUOTA_CONTROLLERS)})",
    }
    if options.passes:
        conditions["not-headroom"] = " && ".join(f"request.userInfo.username != '{user}'" for user in options.passes)
    return conditions


def _labelled(label: str) -> str:
    return _says("oldObject.metadata.labels", label, constants.TRUE)


def _loses_label() -> str:
    """The label that makes a quota managed goes: that takes all of its headroom."""
    new = "object.metadata.labels"
    labels = (constants.LABEL_DEFAULT_RESOURCE_QUOTA, constants.LABEL_MANAGED)
    return " || ".join(f"(({_labelled(label)}) && !({_says(new, label, constants.TRUE)}))" for label in labels)


def _loses_owner() -> str:
    """A skip without that mark is a person's, and the quota left alone. Both go when a quota is given back."""
    before, after = (_stands(subject, constants.ANNOTATION_OWNER) for subject in ("oldObject", "object"))
    skipped = _says("object.metadata.annotations", constants.ANNOTATION_SKIP_AUTO_SCALING, constants.TRUE)
    return f"({before}) && !({after}) && {skipped}"


def _changes_base() -> str:
    """Of a quota without Rancher."""
    before, after = (_stands(subject, constants.ANNOTATION_BASE) for subject in ("oldObject", "object"))
    new, old = (f"{subject}.metadata.annotations['{constants.ANNOTATION_BASE}']" for subject in ("object", "oldObject"))
    return f"({_labelled(constants.LABEL_MANAGED)}) && ({before}) && !({after} && {new} == {old})"


def _says(marks: str, key: str, value: str) -> str:
    return f"has({marks}) && '{key}' in {marks} && {marks}['{key}'] == '{value}'"


def _is_off(subject: str) -> str:
    places = (f"{subject}.metadata.labels", f"{subject}.metadata.annotations")
    return " || ".join(f"({_says(marks, constants.LABEL_MANAGED, constants.FALSE)})" for marks in places)


def _annotation_changes(annotation: str) -> str:
    """CEL without optional types: they came later than matchConditions did."""
    new, old = (f"{subject}.metadata.annotations['{annotation}']" for subject in ("object", "oldObject"))
    same = f"oldObject != null && {_stands('oldObject', annotation)} && {old} == {new}"
    return f"{_stands('object', annotation)} && {new} != '' && !({same})"


def _annotation_goes(annotation: str) -> str:
    new = f"object.metadata.annotations['{annotation}']"
    return f"({_stands('oldObject', annotation)}) && !({_stands('object', annotation)} && {new} != '')"


def _stands(subject: str, annotation: str) -> str:
    return f"has({subject}.metadata.annotations) && '{annotation}' in {subject}.metadata.annotations"


def _matches(subject: str, patterns: Sequence[str]) -> str:
    """Raises ValueError for a pattern that no name can match and that would break out of the expression."""
    for pattern in patterns:
        if not _SAFE_PATTERN.fullmatch(pattern):
            raise ValueError(f"{pattern!r} is not a pattern of names")
    expressions = "|".join(_expression(pattern) for pattern in patterns)
    return f"{subject}.matches(r'^(?:{expressions})$')"


def _expression(pattern: str) -> str:
    parts = {"*": ".*", "?": "."}
    return "".join(parts.get(character) or re.escape(character) for character in pattern)


_SWITCHED_OFF: Final = f"({_is_off('object')}) && !({_is_off('oldObject')})"
"""In an UPDATE: a person switches headroom off, and is warned which migrations lose their headroom."""
