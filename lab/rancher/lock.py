"""Rancher's webhook for the ResourceQuotas and LimitRanges that it manages: nobody else writes them. Pure.

Source: rancher/webhook 0.11.2, pkg/resources/core/v1/resourcequota and limitrange, pkg/admission.
"""

from typing import Any, Final

from kubeloop.api.meta import Object
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision, Hook, deny
from kubeloop.webhook.registration import Webhook, rule
from pkg.util import constants

CONFIGURATION: Final = "rancher.cattle.io"
SUDO_USER: Final = "system:serviceaccount:cattle-system:rancher-webhook-sudo"
SUDO_GROUP: Final = "system:masters"
"""The user and group that pass every webhook of Rancher's: Rancher itself, by impersonation."""
CHANGE: Final = "users are forbidden from changing resources managed by Rancher"
CREATE: Final = "users are forbidden from creating resources managed by Rancher. Remove the marker label"
DELETE: Final = "users are forbidden from deleting resources managed by Rancher"
PROMOTE: Final = "users are forbidden from promoting resources to Rancher management. Remove the marker label"
STATUS: Final = "status is immutable"
_QUOTAS, _RANGES = "resourcequotas", "limitranges"
_STATUS_USERS = ("system:serviceaccount:kube-system:resourcequota-controller", "system:apiserver")
_NAMESPACE_CONTROLLER = "system:serviceaccount:kube-system:namespace-controller"
_BAD_REQUEST = 400


def decide(request: AdmissionRequest) -> Decision:
    """Answers a review of a ResourceQuota or a LimitRange. Raises BadReview."""
    user = request.user_info
    if user.username == SUDO_USER and SUDO_GROUP in (user.groups or ()):
        return ALLOW
    if request.operation == "CREATE":
        return _refuse(CREATE) if _is_managed(request.new(Object)) else ALLOW
    was_managed = _is_managed(request.old(Object))
    if request.operation == "DELETE":
        exempt = request.resource.resource == _QUOTAS and user.username == _NAMESPACE_CONTROLLER
        return _refuse(DELETE) if was_managed and not exempt else ALLOW
    is_managed = _is_managed(request.new(Object))
    if request.sub_resource == "status":
        return _decide_status(user.username, was_managed, is_managed)
    if was_managed:
        return _refuse(CHANGE)
    return _refuse(PROMOTE) if is_managed else ALLOW


async def answer(request: AdmissionRequest) -> Decision:
    return decide(request)


HOOKS: Final[dict[str, Hook]] = {f"/v1/webhook/validation/{plural}": answer for plural in (_QUOTAS, _RANGES)}


def webhooks(url: str, bundle: str) -> list[Webhook]:
    """Returns the configuration's webhooks, served under `url`; `bundle` is the CA, base64."""
    parts = {_QUOTAS: [_QUOTAS, f"{_QUOTAS}/status"], _RANGES: [_RANGES]}
    return [_webhook(plural, resources, {"url": url, "caBundle": bundle}) for plural, resources in parts.items()]


def _webhook(plural: str, resources: list[str], config: dict[str, Any]) -> Webhook:
    return {
        "name": f"{CONFIGURATION}.{plural}",
        "clientConfig": {**config, "url": f"{config['url']}/v1/webhook/validation/{plural}"},
        "rules": [rule(resources, ["CREATE", "UPDATE", "DELETE"])],
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1", "v1beta1"],
    }


def _decide_status(username: str, was_managed: bool, is_managed: bool) -> Decision:
    if username in _STATUS_USERS or not (was_managed or is_managed):
        return ALLOW
    if was_managed == is_managed:
        return _refuse(STATUS)
    return _refuse(CHANGE if was_managed else PROMOTE)


def _is_managed(obj: Object) -> bool:
    return obj.labels.get(constants.LABEL_DEFAULT_RESOURCE_QUOTA) == constants.TRUE


def _refuse(message: str) -> Decision:
    return deny(message, code=_BAD_REQUEST)
