"""Writers of a quota that Rancher manages."""

import json
from typing import Any

import msgspec
import pytest

from kubeloop.webhook.admission import AdmissionRequest, decode_review, encode_answer
from lab.rancher import lock
from lab.rancher.lock import SUDO_USER, decide, webhooks

ALICE = {"username": "alice", "groups": ["system:masters"]}
SUDO = {"username": SUDO_USER, "groups": ["system:authenticated", "system:masters"]}
QUOTA_CONTROLLER = {"username": "system:serviceaccount:kube-system:resourcequota-controller"}
API_SERVER = {"username": "system:apiserver"}
NAMESPACE_CONTROLLER = {"username": "system:serviceaccount:kube-system:namespace-controller"}
MANAGED = {"metadata": {"labels": {"resourcequota.management.cattle.io/default-resource-quota": "true"}}}
OWN = {"metadata": {"labels": {"app": "x"}}}


def review(operation: str, old: Any, new: Any, user: Any, plural: str = "resourcequotas", sub: str = "") -> Any:
    request = {
        "uid": "u",
        "operation": operation,
        "resource": {"group": "", "version": "v1", "resource": plural},
        "subResource": sub,
        "userInfo": user,
        "object": new,
        "oldObject": old,
    }
    return decode_review(
        msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    )


CASES: dict[str, tuple[AdmissionRequest, str]] = {
    "somebody creates a managed quota": (review("CREATE", None, MANAGED, ALICE), lock.CREATE),
    "somebody creates a quota": (review("CREATE", None, OWN, ALICE), ""),
    "somebody changes a managed quota": (review("UPDATE", MANAGED, MANAGED, ALICE), lock.CHANGE),
    "somebody takes the label away": (review("UPDATE", MANAGED, OWN, ALICE), lock.CHANGE),
    "somebody gives a quota the label": (review("UPDATE", OWN, MANAGED, ALICE), lock.PROMOTE),
    "somebody changes a quota": (review("UPDATE", OWN, OWN, ALICE), ""),
    "somebody deletes a managed quota": (review("DELETE", MANAGED, None, ALICE), lock.DELETE),
    "somebody deletes a quota": (review("DELETE", OWN, None, ALICE), ""),
    "somebody writes a managed quota's status": (review("UPDATE", MANAGED, MANAGED, ALICE, sub="status"), lock.STATUS),
    "somebody writes a quota's status": (review("UPDATE", OWN, OWN, ALICE, sub="status"), ""),
    "the quota controller writes a status": (review("UPDATE", MANAGED, MANAGED, QUOTA_CONTROLLER, sub="status"), ""),
    "quota admission writes a status": (review("UPDATE", MANAGED, MANAGED, API_SERVER, sub="status"), ""),
    "the quota controller changes a managed quota": (review("UPDATE", MANAGED, MANAGED, QUOTA_CONTROLLER), lock.CHANGE),
    "the namespace goes": (review("DELETE", MANAGED, None, NAMESPACE_CONTROLLER), ""),
    "the namespace controller changes a quota": (review("UPDATE", MANAGED, OWN, NAMESPACE_CONTROLLER), lock.CHANGE),
    "Rancher creates": (review("CREATE", None, MANAGED, SUDO), ""),
    "Rancher changes": (review("UPDATE", MANAGED, MANAGED, SUDO), ""),
    "Rancher deletes": (review("DELETE", MANAGED, None, SUDO), ""),
    "Rancher's name without the group": (
        review("UPDATE", MANAGED, MANAGED, {"username": SUDO_USER, "groups": []}),
        lock.CHANGE,
    ),
    "Rancher's other account": (
        review("UPDATE", MANAGED, MANAGED, {"username": "system:serviceaccount:cattle-system:rancher"}),
        lock.CHANGE,
    ),
    "somebody changes a managed limit range": (review("UPDATE", MANAGED, MANAGED, ALICE, "limitranges"), lock.CHANGE),
    "somebody changes a limit range": (review("UPDATE", OWN, OWN, ALICE, "limitranges"), ""),
}


@pytest.mark.parametrize(("request_", "message"), CASES.values(), ids=CASES.keys())
def test_decide(request_: AdmissionRequest, message: str) -> None:
    decision = decide(request_)
    assert (decision.allowed, decision.message) == (not message, message)


def test_a_refusal_is_a_bad_request() -> None:
    answer = json.loads(encode_answer("u", decide(review("UPDATE", MANAGED, OWN, ALICE))))
    assert answer["response"]["status"] == {
        "status": "Failure",
        "message": "users are forbidden from changing resources managed by Rancher",
        "reason": "BadRequest",
        "code": 400,
    }


def test_the_configuration_has_quotas_and_fails_closed() -> None:
    quotas, ranges = webhooks("https://127.0.0.1:1", "Yg==")
    assert (quotas["name"], ranges["name"]) == ("rancher.cattle.io.resourcequotas", "rancher.cattle.io.limitranges")
    assert quotas["rules"][0]["resources"] == ["resourcequotas", "resourcequotas/status"]
    assert quotas["rules"][0]["operations"] == ["CREATE", "UPDATE", "DELETE"]
    assert quotas["failurePolicy"] == ranges["failurePolicy"] == "Fail"
