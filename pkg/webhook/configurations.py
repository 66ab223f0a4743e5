"""The webhook configurations: which requests the API server asks about. Pure.

As narrow as the API allows: rules by kind and operation, then conditions that the API server evaluates itself, so
that a write that cannot concern us costs nobody anything. Every field is spelled out, defaults too: what the server
stores then equals what is wanted, and drift is seen by comparing.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pkg.util import constants
from pkg.util.webhook_names import CONFIGURATION_NAME
from pkg.webhook.options import Options, QuotaGuard

MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "headroom"}
TIMEOUT_SECONDS: Final = 5
NAMESPACE_CONTROLLER: Final = "system:serviceaccount:kube-system:namespace-controller"

VALIDATE_NAMESPACE: Final = "/validate-namespace"
VALIDATE_RESOURCE_QUOTA: Final = "/validate-resourcequota"
MUTATE_RESOURCE_QUOTA: Final = "/mutate-resourcequota"
VALIDATE_VIRTUAL_MACHINE: Final = "/validate-virtualmachine"
VALIDATE_POD: Final = "/validate-pod"

_SAFE_PATTERN = re.compile(r"[A-Za-z0-9:._@/*?-]+")

Webhook = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API server finds us: a URL, or a Service when `url` is "" (`https://host:port`, no path)."""

    url: str = ""
    service_namespace: str = ""
    service_name: str = ""
    service_port: int = 443

    def client_config(self, path: str) -> dict[str, Any]:
        """WebhookClientConfig without a caBundle."""
        if self.url:
            return {"url": self.url + path}
        service = {"namespace": self.service_namespace, "name": self.service_name, "path": path}
        return {"service": {**service, "port": self.service_port}}


def validating(endpoint: Endpoint, options: Options, bundle: bytes | None) -> list[Webhook]:
    """The webhooks of the ValidatingWebhookConfiguration. `bundle` None: no caBundle is set."""
    make = _Maker(endpoint, options, bundle)
    webhooks = [
        make.webhook(
            "namespaces",
            VALIDATE_NAMESPACE,
            [_rule("", "v1", ["namespaces"], ["UPDATE"], "Cluster")],
            {"quota-annotation-changes": _annotation_changes(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA)},
        ),
        make.webhook(
            "virtualmachines",
            VALIDATE_VIRTUAL_MACHINE,
            [_rule("kubevirt.io", "v1", ["virtualmachines"], ["CREATE", "UPDATE"], "Namespaced")],
            {"volumes-change": _annotation_changes(constants.ANNOTATION_VOLUME_CLAIM_TEMPLATES)},
        ),
    ]
    if options.quota_guard is not QuotaGuard.OFF:
        rule = _rule("", "v1", ["resourcequotas"], ["UPDATE", "DELETE"], "Namespaced")
        webhooks.append(make.webhook("resourcequotas", VALIDATE_RESOURCE_QUOTA, [rule], _guarded(options)))
    if options.reserve:
        rules = [
            _rule("", "v1", ["pods"], ["CREATE"], "Namespaced"),
            # A pod may also grow into the room.
            _rule("", "v1", ["pods/resize"], ["UPDATE"], "Namespaced"),
        ]
        selector = {"matchLabels": {constants.LABEL_HOLDING: constants.TRUE}}
        webhooks.append(make.webhook("pods", VALIDATE_POD, rules, {}, selector))
    return webhooks


def mutating(endpoint: Endpoint, options: Options, bundle: bytes | None) -> list[Webhook]:
    """The webhooks of the MutatingWebhookConfiguration: only Rancher's writes are ever changed."""
    if options.quota_guard is not QuotaGuard.CORRECT or not options.rancher_users:
        return []
    make = _Maker(endpoint, options, bundle)
    rule = _rule("", "v1", ["resourcequotas"], ["UPDATE"], "Namespaced")
    conditions = {**_guarded(options), "by-rancher": _users(options.rancher_users)}
    webhook = make.webhook("resourcequotas", MUTATE_RESOURCE_QUOTA, [rule], conditions)
    # Asked again when a later webhook changed the object after us.
    return [{**webhook, "reinvocationPolicy": "IfNeeded"}]


@dataclass(frozen=True, slots=True)
class _Maker:
    """What all webhooks have in common."""

    endpoint: Endpoint
    options: Options
    bundle: bytes | None

    def webhook(
        self,
        name: str,
        path: str,
        rules: Sequence[Mapping[str, Any]],
        conditions: Mapping[str, str],
        namespace_selector: Mapping[str, Any] | None = None,
    ) -> Webhook:
        client_config = self.endpoint.client_config(path)
        if self.bundle is not None:
            client_config["caBundle"] = base64.b64encode(self.bundle).decode("ascii")
        webhook: Webhook = {
            "name": f"{name}.{CONFIGURATION_NAME}",
            "admissionReviewVersions": ["v1"],
            "clientConfig": client_config,
            "failurePolicy": self.options.failure_policy.value,
            "matchPolicy": "Equivalent",
            "namespaceSelector": dict(namespace_selector or {}),
            "objectSelector": {},
            "rules": list(rules),
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_SECONDS,
        }
        if conditions:
            webhook["matchConditions"] = [{"name": n, "expression": e} for n, e in conditions.items()]
        return webhook


def _rule(group: str, version: str, resources: list[str], operations: list[str], scope: str) -> Webhook:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "resources": resources,
        "operations": operations,
        "scope": scope,
    }


def _guarded(options: Options) -> dict[str, str]:
    conditions = {
        "managed": f"({_labelled(constants.LABEL_DEFAULT_RESOURCE_QUOTA)})"
        f" || ({_labelled(constants.LABEL_MANAGED)})",
        # status is a subresource and does not come here; most other updates leave spec.hard alone.
        "limits-change": "request.operation == 'DELETE' || (has(object.spec.hard)"
        " && (!has(oldObject.spec.hard) || object.spec.hard != oldObject.spec.hard))",
        "not-the-namespace-controller": f"request.userInfo.username != '{NAMESPACE_CONTROLLER}'",
    }
    if options.passes:
        conditions["not-headroom"] = f"request.userInfo.username != '{options.passes}'"
    return conditions


def _labelled(label: str) -> str:
    labels = "oldObject.metadata.labels"
    return f"has({labels}) && '{label}' in {labels} && {labels}['{label}'] == 'true'"


def _annotation_changes(annotation: str) -> str:
    """CEL without optional types: they came later than matchConditions did."""

    def stands(subject: str) -> str:
        return f"has({subject}.metadata.annotations) && '{annotation}' in {subject}.metadata.annotations"

    new, old = (f"{subject}.metadata.annotations['{annotation}']" for subject in ("object", "oldObject"))
    same = f"oldObject != null && {stands('oldObject')} && {old} == {new}"
    return f"{stands('object')} && {new} != '' && !({same})"


def _users(patterns: Sequence[str]) -> str:
    """Raises ValueError for a pattern that no user name can match and that would break out of the expression."""
    for pattern in patterns:
        if not _SAFE_PATTERN.fullmatch(pattern):
            raise ValueError(f"{pattern!r} is no pattern of user names")
    expressions = "|".join(_expression(pattern) for pattern in patterns)
    return f"request.userInfo.username.matches(r'^(?:{expressions})$')"


def _expression(pattern: str) -> str:
    parts = {"*": ".*", "?": "."}
    return "".join(parts.get(character) or re.escape(character) for character in pattern)
