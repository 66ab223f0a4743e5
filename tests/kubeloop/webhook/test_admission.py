"""Reviews in, answers out."""

import base64
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import ConfigMap, Namespace
from kubeloop.api.meta import ObjectMeta
from kubeloop.api.objects import edit
from kubeloop.api.registry import CONFIG_MAPS, DEPLOYMENTS
from kubeloop.testing.reviews import admission_request
from kubeloop.webhook.admission import (
    ALLOW,
    BadReview,
    Decision,
    GroupVersionKind,
    GroupVersionResource,
    UserInfo,
    decode_review,
    deny,
    encode_answer,
)


def review(**fields: Any) -> bytes:
    request = {"uid": "u-1", "operation": "UPDATE", **fields}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def test_a_request_is_read_by_field_and_its_objects_stay_bytes() -> None:
    scale = {"group": "apps", "version": "v1beta1"}
    body = review(
        name="n", namespace="ns1", dryRun=True, subResource="resize", requestSubResource="scale",
        kind={"group": "apps", "version": "v1", "kind": "Deployment"},
        requestKind=scale | {"kind": "Deployment"}, requestResource=scale | {"resource": "deployments"},
        userInfo={"username": "alice", "groups": ["a"], "uid": "7", "extra": {"example.org/x": ["y"]}},
        resource={"group": "", "version": "v1", "resource": "namespaces"},
        object={"metadata": {"name": "n", "labels": {"a": "b"}}, "unknown": [1, {"deep": None}]},
        oldObject=None, options={"kind": "UpdateOptions", "fieldManager": "kubectl"},
    )  # fmt: skip
    request = decode_review(body)
    assert (request.uid, request.name, request.namespace, request.operation) == ("u-1", "n", "ns1", "UPDATE")
    assert request.user_info == UserInfo(username="alice", groups=["a"], uid="7", extra={"example.org/x": ["y"]})
    assert (request.dry_run, request.sub_resource, request.request_sub_resource) == (True, "resize", "scale")
    assert (request.resource.resource, request.kind.kind) == ("namespaces", "Deployment")
    assert request.request_kind == GroupVersionKind(group="apps", version="v1beta1", kind="Deployment")
    assert request.request_resource == GroupVersionResource(group="apps", version="v1beta1", resource="deployments")
    assert msgspec.json.decode(request.options)["fieldManager"] == "kubectl"
    assert request.new(Namespace).labels == {"a": "b"}
    with pytest.raises(BadReview, match="the request has no oldObject"):
        request.old(Namespace)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not an AdmissionReview"),
        (b"{", "not an AdmissionReview"),
        (b"[]", "not an AdmissionReview"),
        (b"\xff\xfe", "not an AdmissionReview"),
        (b"{}", "got no kind of nothing"),
        (b'{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}', "of admission.k8s.io/v1beta1"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"Pod"}', "got Pod"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', "no request"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}', "no uid"),
        (b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":7}}', "not an Admission"),
    ],
)  # fmt: skip
def test_what_is_no_review_is_told_so(body: bytes, message: str) -> None:
    with pytest.raises(BadReview, match=message):
        decode_review(body)


def test_an_object_of_thousands_of_levels_is_read() -> None:
    deep = "[" * 9000 + "]" * 9000
    body = review(object={"metadata": {"name": "a"}, "other": "DEEP"}).replace(b'"DEEP"', deep.encode())
    assert decode_review(body).new(Namespace).name == "a"


def test_an_object_of_another_shape_is_the_senders_fault() -> None:
    with pytest.raises(BadReview, match="object: "):
        decode_review(review(object={"metadata": []})).new(Namespace)


def answer(decision: Decision) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(encode_answer("u-1", decision))
    assert (decoded["apiVersion"], decoded["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = decoded["response"]
    return response


FAILURE = {"status": "Failure", "message": "no: ü", "reason": "Forbidden", "code": 403}


@pytest.mark.parametrize(
    ("decision", "response"),
    [
        (ALLOW, {"allowed": True}),
        (deny("no: ü"), {"allowed": False, "status": FAILURE}),
        (Decision(warnings=("mind this",)), {"allowed": True, "warnings": ["mind this"]}),
    ],
)
def test_an_answer(decision: Decision, response: dict[str, Any]) -> None:
    assert answer(decision) == {"uid": "u-1", **response}


def test_patched() -> None:
    patch = [{"op": "replace", "path": "/spec/hard/limits.cpu", "value": "5"}]
    response = answer(Decision(patch=patch))
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    assert msgspec.json.decode(base64.b64decode(response["patch"])) == patch


REFUSALS: dict[str, tuple[Decision, dict[str, Any]]] = {
    "no more than a message": (deny("no"), {"code": 403, "reason": "Forbidden"}),
    "a reason for metrics alone": (deny("no", reason="no-room"), {"code": 403, "reason": "Forbidden"}),
    "a reason of metav1": (deny("no", reason="Conflict"), {"code": 409, "reason": "Conflict"}),
    "another one": (deny("no", reason="TooManyRequests"), {"code": 429, "reason": "TooManyRequests"}),
    "a code": (deny("no", code=422), {"code": 422, "reason": "Invalid"}),
    "a code that metav1 has no reason for": (deny("no", code=418), {"code": 418, "reason": ""}),
    "both": (deny("no", code=400, reason="Expired"), {"code": 400, "reason": "Expired"}),
    "a field": (
        deny("no", field="spec.size"),
        {
            "code": 422,
            "reason": "Invalid",
            "details": {"causes": [{"reason": "FieldValueInvalid", "message": "no", "field": "spec.size"}]},
        },
    ),
    "a field and a code": (
        deny("no", code=400, field="a"),
        {
            "code": 400,
            "reason": "BadRequest",
            "details": {"causes": [{"reason": "FieldValueInvalid", "message": "no", "field": "a"}]},
        },
    ),
}


@pytest.mark.parametrize(("decision", "status"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_with(decision: Decision, status: dict[str, Any]) -> None:
    assert answer(decision)["status"] == {"status": "Failure", "message": "no", **status}


@pytest.mark.parametrize("code", [200, 399, 600, -1])
def test_a_refusal_has_no_code_of_success(code: int) -> None:
    with pytest.raises(ValueError, match="400 to 599"):
        deny("no", code=code)


def test_a_patch_is_made_from_an_edit() -> None:
    sent = {"metadata": {"name": "n"}, "spec": {"finalizers": ["kubernetes"]}}
    request = decode_review(review(object=sent))
    changed = edit(request.new(Namespace), metadata={"labels": {"a": "b"}})
    assert request.patch(changed) == [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]
    with pytest.raises(BadReview, match="has no object"):
        decode_review(review(object=None)).patch(changed)


def test_a_request_is_named_in_one_line() -> None:
    fields = {"operation": "CREATE", "resource": {"resource": "pods"}, "namespace": "ns"}
    assert str(decode_review(review(name="a\nb", **fields))) == "CREATE pods ns/a b"
    assert len(str(decode_review(review(name="x" * 5000, **fields)))) == 300


OBJECT = ConfigMap(metadata=ObjectMeta(name="a", namespace="ns"), data={"k": "v"})


def test_a_request_about_a_typed_object_or_a_mapping() -> None:
    body = {"metadata": {"name": "a", "namespace": "ns"}, "data": {"k": "old"}}
    request = admission_request(CONFIG_MAPS, "UPDATE", OBJECT, body, username="bob", dryRun=True, subResource="x")
    assert str(request) == "UPDATE configmaps ns/a"
    assert (request.new(ConfigMap).data, request.old(ConfigMap).data) == ({"k": "v"}, {"k": "old"})
    assert (request.new(ConfigMap).kind, request.kind.kind) == ("ConfigMap", "ConfigMap")
    assert (request.user_info.username, request.dry_run, request.sub_resource) == ("bob", True, "x")


def test_a_deletion_has_the_old_object_alone() -> None:
    request = admission_request(DEPLOYMENTS, "DELETE", old={"metadata": {"name": "d", "namespace": "ns"}})
    assert (request.name, request.namespace, request.resource.group) == ("d", "ns", "apps")
    assert msgspec.json.decode(request.object) is None
    with pytest.raises(BadReview):
        request.new(ConfigMap)
