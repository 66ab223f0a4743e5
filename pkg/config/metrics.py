"""The product's metrics: the one table that docs/metrics.md, the alerts and the dashboard are checked against."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from kubeloop.api.registry import Resource
from kubeloop.metrics import Metric, table

log = logging.getLogger(__name__)

_PLACE: Final = {"namespace": "a namespace; `_others` for all beyond the first 200"}
_LIMIT: Final = {"resource": "a name in spec.hard"}
_STATE: Final = {"state": "`migrating`, or `held`: no migration is under way, what it left still counts"}
_PATCH: Final = {"result": "`written`, `requested` of Rancher, or `dry-run`"}
_CLOSED: Final = {"reason": "`handshake`, `head`"}
_REFUSER: Final = {"by": "`webhook NAME`, `ValidatingAdmissionPolicy NAME (binding NAME)`, `RBAC`, …, or `no answer`"}
_REGISTERED: Final = {
    "webhook": "`namespaces`, `virtualmachines`, `resourcequotas`, `pods`",
    "failure_policy": "`Ignore`, `Fail`",
}
_WRITE: Final = {
    "kind": "`ValidatingWebhookConfiguration`, `MutatingWebhookConfiguration`",
    "operation": "`created`, `updated`, `removed`",
}
_ASKED: Final = {"webhook": "`namespaces`, `virtualmachines`, `resourcequotas`, `pods`, `locks`, `probe`, `unknown`"}
_ANSWER: Final = _ASKED | {"decision": "`allowed`, `patched`, `denied`"}
_DENIAL: Final = _ASKED | {
    "reason": "`migrating`: VMs migrate; `no-room`: nothing is left; `locked`: the namespace is; and what is"
    " wrong with the object: `invalid`, `too-large`, `unreadable`"
}
_webhook: Final = partial(Metric, exported="webhook")


def _leader(name: str, help: str, labels: Mapping[str, str] | None = None) -> Metric:
    return Metric(name, "gauge", help, labels or {}, "leader")


METRICS: Final = table(
    _leader("headroom_migrations_refused", "Migrations that a quota refuses now.", _PLACE),
    _leader("headroom_migrations_refused_oldest_seconds", "For how long the oldest of them has been refused.", _PLACE),
    Metric(
        "headroom_migration_wait_seconds", "histogram",
        "From a migration's creation until KubeVirt has created its target pod, to the second.", exported="leader",
    ),
    _leader("headroom_quotas_managed", "Quotas that are managed."),
    _leader("headroom_quotas_raised", "Quotas that something is added to now."),
    _leader("headroom_quotas_not_enforced", "Of these: status.hard, by which quota admission goes, is not spec.hard."),
    _leader("headroom_quota_added", "Added to quotas of a namespace now: cores, bytes or a count.", _PLACE | _LIMIT),
    _leader("headroom_quota_added_unused", "What of it nothing uses now: room up to spec.hard.", _PLACE | _LIMIT),
    _leader("headroom_quota_entries", "VMs that something is added for.", _PLACE | _STATE),
    _leader("headroom_quota_oldest_entry_seconds", "Age of the oldest entry, or since this process saw it.", _PLACE),
    _leader("headroom_last_decision_timestamp_seconds", "When a quota was last decided about without an error."),
    Metric("headroom_resourcequota_patches_total", "counter", "Patches of ResourceQuotas.", _PATCH),
    Metric("headroom_resourcequota_touches_total", "counter", "Patches that make KubeVirt retry a migration."),
    _leader("headroom_requests_refused", "Objects for which a request is refused, or not answered.", _REFUSER),
    Metric(
        "headroom_pod_policy_in_force", "gauge",
        "1 while the policies keep tenants from creating pods that look like a VM's, and name KubeVirt's account.",
    ),
    _leader("headroom_webhook_registered", "1 for each webhook that the API server has to ask.", _REGISTERED),
    Metric("headroom_webhook_unreachable", "gauge", "1 while the API server does not reach registered webhooks."),
    _webhook("headroom_webhook_last_reached_timestamp_seconds", "gauge", "When a probe last reached the webhooks."),
    _webhook("headroom_webhook_registration_drift", "gauge", "1 while a replica with other flags answers."),
    Metric(
        "headroom_webhook_configuration_writes_total", "counter",
        "Webhook configurations that were written: headroom's own and the locks of managed tenant quota.", _WRITE,
    ),
    _webhook("headroom_webhook_certificate_expiry_seconds", "gauge", "When the serving certificate expires."),
    _webhook("headroom_webhook_connections", "gauge", "Connections that are open now."),
    _webhook("headroom_webhook_connections_closed_total", "counter", "Connections that were closed early.", _CLOSED),
    _webhook("headroom_admission_decisions_total", "counter", "Admission decisions by what was answered.", _ANSWER),
    _webhook("headroom_admission_denials_total", "counter", "Denied requests by reason.", _DENIAL),
    _webhook("headroom_admission_timeouts_total", "counter", "Live reads without an answer in a review's time."),
    _webhook("headroom_reserve_remembered_pods", "gauge", "Pods that the reserve admitted and that are not seen yet."),
    _leader("headroom_mtq_locks_held", "Namespaces that are locked now."),
    _leader("headroom_mtq_oldest_lock_seconds", "Age of the oldest lock, 0 without one."),
    _leader("headroom_mtq_lock_limit_seconds", "After so long a lock is ended (`--lock-limit`)."),
    Metric("headroom_mtq_lock_seconds", "histogram", "How long namespaces were locked."),
    Metric("headroom_mtq_quota_released_total", "counter", "Amount added to quotas during locks.", _LIMIT),
    Metric("headroom_mtq_writes_total", "counter", "Writes of the sequence.", {"step": "the step's name in the code"}),
    Metric("headroom_mtq_lock_limit_reached_total", "counter", "Locks that were ended by their limit."),
)  # fmt: skip

_CONFIGURATION_WRITES = METRICS["headroom_webhook_configuration_writes_total"].counter()


def configuration_written(resource: Resource[Any], name: str, operation: str) -> None:
    """Counts and logs one write of a webhook configuration: `created`, `updated` or `removed`. An account that may
    create one sees and changes what the API server admits, and Kubernetes asks no admission policy about them."""
    _CONFIGURATION_WRITES.labels(resource.kind, operation).inc()
    log.info("%s %s %s", resource.kind, name, operation)
