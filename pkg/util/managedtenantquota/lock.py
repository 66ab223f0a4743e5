"""A namespace's lock: the ValidatingWebhookConfiguration `lock.<namespace>.com`, rendered and recognised. Pure."""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from kubeloop.api.core import ValidatingWebhookConfiguration
from kubeloop.api.meta import rfc3339
from pkg.util import constants
from pkg.util.constants import ANNOTATION_SINCE, LABEL_MIGRATION_JOB_UID, LOCK_LABELS
from pkg.util.kubevirt.migration import parse_time

NAMESPACE_CONTROLLERS: Final = (
    "system:serviceaccount:kube-system:namespace-controller",
    "system:kube-controller-manager",
)
"""Who empties a namespace that is being deleted: that must not wait for us."""

Webhook = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock that exists. Times are in seconds since the epoch by the API server's clock."""

    configuration: ValidatingWebhookConfiguration
    namespace: str
    since: float
    owner: str
    reason: str
    longest: float  # seconds after which it is ended at the latest; 0 where nothing says
    known_since: float = 0.0  # since when the controller knows it; for others as `since`

    def age(self, now: float) -> float:
        """Returns the seconds since it was made. A clock that was set back must not keep a lock for ever."""
        return abs(now - self.since)


def lock_name(namespace: str) -> str:
    """Returns the name of the configuration and of its webhook: a webhook's has to have three parts at least."""
    return f"lock.{namespace}.com"


def recognise(configuration: ValidatingWebhookConfiguration | None) -> Lock | None:
    """Returns the lock that a configuration is, whichever process made it, or None. It is known by its name, and by the
    label or our annotations: one of ours that was edited by hand has to end all the same."""
    if configuration is None:
        return None
    annotations, name = configuration.annotations, configuration.name
    namespace = name.removeprefix("lock.").removesuffix(".com")
    is_labelled = LOCK_LABELS.items() <= configuration.labels.items()
    if name != lock_name(namespace) or not (is_labelled or ANNOTATION_SINCE in annotations):
        return None
    created_at = parse_time(configuration.metadata.creation_timestamp)  # without a time, 0, a lock does not stay
    written_since, until = (parse_time(annotations.get(key)) for key in (ANNOTATION_SINCE, constants.ANNOTATION_UNTIL))
    # The API server's second; where in it, the clock of the process that made the lock may tell.
    since = min(max(written_since, created_at), created_at + 1.0) if created_at else written_since
    owner, reason = (annotations.get(key, "") for key in (constants.ANNOTATION_HOLDER, constants.ANNOTATION_REASON))
    return Lock(configuration, namespace, since, owner, reason, max(0.0, until - written_since), since)


def client_config(
    proven: Sequence[Mapping[str, Any]] | None, registered: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any] | None:
    """Returns the clientConfig of a lock: address and CA of the probe's webhook, which the API server has just reached,
    with the lock's path and the key in which the paths of `registered` webhooks end; None if a part is missing."""
    if not proven or not registered:
        return None
    config, main_config = dict(proven[0].get("clientConfig") or {}), registered[0].get("clientConfig") or {}
    # /webhook or /webhook/key
    served = urlsplit(main_config.get("url") or "").path or (main_config.get("service") or {}).get("path") or ""
    path = "/".join([constants.LOCK_PATH, *served.split("/")[2:]])
    if config.get("url"):
        config["url"] = urlsplit(config["url"])._replace(path=path).geturl()
    elif config.get("service"):
        config["service"] = {**config["service"], "path": path}
    return config if config.get("caBundle") and (config.get("url") or config.get("service")) else None


_BUDGETS = "virtualmachinemigrationresourcequotas"
_RULES: Final = [
    {"apiGroups": [group], "apiVersions": ["*"], "resources": resources, "operations": verbs, "scope": "Namespaced"}
    for group, resources, verbs in (
        ("", ["resourcequotas"], ["UPDATE", "DELETE"]),
        ("mtq.kubevirt.io", [_BUDGETS, f"{_BUDGETS}/status"], ["CREATE", "UPDATE", "DELETE"]),
        ("", ["pods"], ["CREATE"]),
        ("", ["pods/resize"], ["UPDATE"]),  # a pod may also grow into the headroom
    )
]
_IS_TARGET: Final = (
    "request.resource.resource == 'pods' && request.operation == 'CREATE' && has(object.metadata.labels)"
    f" && '{LABEL_MIGRATION_JOB_UID}' in object.metadata.labels"
)
_ADMITTED: Final = (
    " && has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(owner,"
    " owner.kind == 'VirtualMachineInstance'"
    f" && object.metadata.labels['{LABEL_MIGRATION_JOB_UID}'] + '/' + owner.name in "
)


def lock_webhook(
    namespace: str,
    config: Mapping[str, Any],
    admitted: Collection[str] = (),
    *,
    owners: Sequence[str],
    virt_controllers: Sequence[str],
) -> Webhook:
    """Returns the lock's webhook. What the holder itself writes, and the target launchers of the migrations that are
    `admitted` (by `UID/VM`), the API server lets through by itself. Other targets are looked at: they could take what
    is added for these. User names without wildcards; patterns are decided about by the webhook."""
    is_admitted = f"{_IS_TARGET} && {_is_one_of(virt_controllers)}{_ADMITTED}{json.dumps(sorted(admitted))})"
    conditions = {
        "not-the-holder": f"request.resource.resource in ['resourcequotas', '{_BUDGETS}'] && {_is_one_of(owners)}",
        "not-a-target-pod": is_admitted,
        "not-the-end-of-the-namespace": f"request.operation == 'DELETE' && {_is_one_of(NAMESPACE_CONTROLLERS)}",
    }
    return {
        "name": lock_name(namespace),
        "admissionReviewVersions": ["v1"],
        "clientConfig": dict(config),
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {"matchLabels": {constants.NAMESPACE_NAME_LABEL: namespace}},
        "objectSelector": {},
        "rules": _RULES,
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "matchConditions": [{"name": name, "expression": f"!({text})"} for name, text in conditions.items()],
    }


def admitted_by(lock: Lock) -> Collection[str]:
    """Returns the migrations that a lock admits, by `UID/VM`; none if its conditions were edited."""
    for webhook in lock.configuration.webhooks or ():
        for condition in webhook.get("matchConditions") or ():
            with suppress(ValueError):
                return set(json.loads(condition["expression"].partition(_ADMITTED)[2].removesuffix("))")))
    return ()


def lock_body(
    namespace: str, webhook: Mapping[str, Any], *, now: float, owner: str, reason: str, longest: float = 0.0
) -> Webhook:
    """Returns the whole configuration, to be created. `longest`: seconds that it lasts at most, 0 when nothing says."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {
            "name": lock_name(namespace),
            "labels": LOCK_LABELS,
            "annotations": {
                ANNOTATION_SINCE: rfc3339(now, "microseconds"),
                constants.ANNOTATION_UNTIL: rfc3339(now + longest, "microseconds"),
                constants.ANNOTATION_HOLDER: owner,
                constants.ANNOTATION_REASON: reason,
            },
        },
        "webhooks": [dict(webhook)],
    }


def _is_one_of(users: Sequence[str]) -> str:
    """Returns the condition in CEL that the user is one of these. JSON's strings are CEL's too."""
    plain = [user for user in users if user and not any(character in user for character in "*?[")]
    return f"request.userInfo.username in {json.dumps(plain)}"
