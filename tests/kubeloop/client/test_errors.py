"""Errors by status: which class, which words, how long to wait."""

import json
import time
from typing import Any

import pytest

from kubeloop.api.meta import Status
from kubeloop.client import errors
from kubeloop.client.errors import error_from_response, error_from_status, refusal_of


def refusal(reason: str, message: str, **fields: object) -> bytes:
    return json.dumps({"kind": "Status", "status": "Failure", "reason": reason, "message": message} | fields).encode()


QUOTA = 'pods "a" is forbidden: exceeded quota: q, requested: limits.cpu=2'


@pytest.mark.parametrize(("headers", "seconds"), [({"Retry-After": "2"}, 2.0), ({}, 9.0)])
def test_the_headers_wait_comes_before_the_bodys(headers: dict[str, str], seconds: float) -> None:
    body = refusal("TooManyRequests", "slow", details={"retryAfterSeconds": 9})
    assert error_from_response(429, body, headers).retry_after == seconds


def test_a_status_without_a_message_has_words() -> None:
    error = error_from_response(404, refusal("NotFound", ""), {})
    assert type(error) is errors.NotFound
    assert str(error).startswith("the server answered 404")


PAGES: dict[str, tuple[int, bytes, type[errors.ApiError], str]] = {
    "no such kind": (404, b"404 page not found\n", errors.NotServed, ": 404 page not found"),
    "a proxy's": (404, b"<html>no such backend</html>", errors.NotServed, ": <html>no such backend</html>"),
    "a gateway's fault": (502, b"", errors.ServerError, ""),
    "away": (503, b"not ready", errors.ServiceUnavailable, ": not ready"),
    "a time-out behind a gateway": (504, b"", errors.ServerError, ""),
    "bytes that are no text": (500, b"\xff\xfe", errors.ServerError, ": \ufffd\ufffd"),
    "JSON of another shape": (400, b'{"message": 5}', errors.BadRequest, ': {"message": 5}'),
    "HTML is cut and put on one line": (
        503,
        b"<html>\n<body>\n" + b"x" * 5000,
        errors.ServiceUnavailable,
        ": <html> <body> " + "x" * 286,
    ),
}


@pytest.mark.parametrize("page", PAGES)
def test_what_is_no_status_is_shown(page: str) -> None:
    code, body, kind, text = PAGES[page]
    error = error_from_response(code, body, {})
    assert type(error) is kind
    assert (error.status, error.reason, error.retry_after) == (code, "", None)
    assert str(error) == f"the server answered {code}{text}"


def test_an_error_event_of_a_watch_becomes_the_same_error() -> None:
    error = error_from_status(Status(code=410, reason="Expired", message="too old resource version"))
    assert (type(error), error.status, error.reason) == (errors.Gone, 410, "Expired")
    assert str(error) == "too old resource version"
    nothing = error_from_status(Status())
    assert (type(nothing), str(nothing)) == (errors.ApiError, "the server answered 0")


def test_conflict_and_already_exists_are_told_apart() -> None:
    assert not issubclass(errors.AlreadyExists, errors.Conflict)
    assert issubclass(errors.ServiceUnavailable, errors.ServerError)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("5", 5.0),
        (" 12 ", 12.0),
        ("soon", None),
        ("-3", None),
        ("1.5", None),
        ("²", None),
        ("60", 60.0),
        ("3600", 60.0),
        ("9" * 400, 60.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", None),
    ],
)
def test_retry_after_is_capped_and_nonsense_is_ignored(value: str | None, seconds: float | None) -> None:
    headers = {} if value is None else {"Retry-After": value}
    assert error_from_response(429, b"", headers).retry_after == seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(1, 1.0), (3600, 60.0), (0, None), (-5, None), (10**30, 60.0), (1.5, None), (True, None), ("3", None)],
)
def test_retry_after_in_a_status_likewise(value: Any, seconds: float | None) -> None:
    assert error_from_status(Status(code=429, details={"retryAfterSeconds": value})).retry_after == seconds


INAPPLICABLE = "the server rejected our request due to an error in our request"
WEBHOOK = 'admission webhook "quotas.example.org" denied the request: not by you'
EVICTION = 'admission webhook "evict.example.org" denied the request: the VM migrates first'
POLICY = (
    "resourcequotas \"q\" is forbidden: ValidatingAdmissionPolicy 'no-quotas' with binding 'all' denied request: "
    "quotas are ours"
)
MAY_NOT = 'User "u" cannot patch resource "resourcequotas" in API group "" in the namespace "a"'
RBAC = f'resourcequotas "q" is forbidden: {MAY_NOT}'
VERDICTS: dict[str, tuple[int, str, str, type[errors.ApiError], bool]] = {
    "a webhook that gives no status": (400, "BadRequest", WEBHOOK, errors.BadRequest, True),
    "a webhook's 403": (403, "Forbidden", WEBHOOK, errors.Forbidden, True),
    "a webhook's 422 is no failed test": (422, "Invalid", WEBHOOK, errors.Invalid, True),
    "a webhook's 404 does not mean that the object is gone": (404, "NotFound", WEBHOOK, errors.Forbidden, True),
    "a webhook's 409 is no conflict": (409, "Conflict", WEBHOOK, errors.Forbidden, True),
    "a webhook's 401 says nothing about the credentials": (401, "Unauthorized", WEBHOOK, errors.Forbidden, True),
    "a webhook's own mistake": (500, "InternalError", WEBHOOK, errors.ServerError, True),
    "an eviction that KubeVirt's webhook puts off": (429, "TooManyRequests", EVICTION, errors.TooManyRequests, False),
    "a policy": (422, "Invalid", POLICY, errors.Invalid, True),
    "a policy's 403": (403, "Forbidden", POLICY, errors.Forbidden, True),
    "no name": (401, "Unauthorized", "who?", errors.Unauthorized, True),
    "a malformed request": (400, "BadRequest", "no", errors.BadRequest, True),
    "an object that is there": (409, "AlreadyExists", "there", errors.AlreadyExists, False),
    "missing rights": (403, "Forbidden", RBAC, errors.Forbidden, True),
    "quota": (403, "Forbidden", QUOTA, errors.Forbidden, True),
    "validation": (422, "Invalid", 'ResourceQuota "q" is invalid: spec.hard: bad', errors.Invalid, True),
    "a method that is not allowed": (405, "MethodNotAllowed", "no", errors.ApiError, True),
    "an object that is too large": (413, "RequestEntityTooLarge", "limit is 3145728", errors.ApiError, True),
    "a failed test of a JSON patch": (422, "Invalid", INAPPLICABLE, errors.PatchConflict, False),
    "an object that is gone": (404, "NotFound", 'pods "a" not found', errors.NotFound, False),
    "a conflict": (409, "Conflict", "changed", errors.Conflict, False),
    "a request that took too long": (408, "Timeout", "slow", errors.ApiError, False),
    "an old version": (410, "Expired", "too old", errors.Gone, False),
    "too many": (429, "TooManyRequests", "slow", errors.TooManyRequests, False),
    "a server that fails": (500, "InternalError", "etcd", errors.ServerError, False),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_refused_is_what_the_same_request_cannot_get(case: str) -> None:
    code, reason, message, kind, refused = VERDICTS[case]
    error = error_from_response(code, refusal(reason, message), {})
    assert (type(error), error.status, error.reason, error.retry_after) == (kind, code, reason, None)
    assert str(error) == error.message == message
    assert (error.is_refusal, error.needs_repair) == (refused, refused)


def test_a_silent_webhook_needs_a_repair_and_is_no_refusal() -> None:
    message = 'Internal error occurred: failed calling webhook "q.example.org": failed to call webhook: EOF'
    error = error_from_response(500, refusal("InternalError", message), {})
    assert (error.is_refusal, error.needs_repair) == (False, True)
    assert error.refusal[:2] == ("webhook q.example.org", "it does not answer: failed to call webhook: EOF")


NAMES: dict[str, tuple[str, str, str]] = {
    "a webhook": (WEBHOOK, "webhook quotas.example.org", "not by you"),
    "a webhook that says nothing": (
        'admission webhook "a.b" denied the request without explanation', "webhook a.b", "without explanation",
    ),
    "a webhook without dry runs": (
        'admission webhook "a.b" does not support dry run', "webhook a.b", "does not support dry run",
    ),
    "a sentence of several lines": ('admission webhook "a.b" denied the request: one\ntwo', "webhook a.b", "one\ntwo"),
    "a policy": (POLICY, "ValidatingAdmissionPolicy no-quotas (binding all)", "quotas are ours"),
    "a policy without a binding": (
        "ValidatingAdmissionPolicy 'p' denied request: no", "ValidatingAdmissionPolicy p", "no",
    ),
    "a mutating policy": ("policy 'p' with binding 'b' denied request: no", "policy p (binding b)", "no"),
    "rights in a namespace": (RBAC, "RBAC", MAY_NOT),
    "rights to a path": ('forbidden: User "u" cannot get path "/x"', "RBAC", 'User "u" cannot get path "/x"'),
    "a quota": (QUOTA, "quota q", "requested: limits.cpu=2"),
    "another admission plugin": ('pods "a" is forbidden: violates "x"', "admission", 'violates "x"'),
    "validation": ('ResourceQuota "q" is invalid: spec.hard: bad', "validation", "spec.hard: bad"),
    "anything else": ("the body was not decodable", "the API server", "the body was not decodable"),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMES)
def test_who_refused_and_the_sentence_are_read_from_the_message(case: str) -> None:
    message, by, reason = NAMES[case]
    assert refusal_of(message)[:2] == (by, reason)


def test_a_message_of_one_long_word_is_read_at_once() -> None:
    """Validation repeats values that tenants wrote: 60,000 characters took 8 s."""
    message = 'VirtualMachine "a" is invalid: spec: Invalid value: ' + "x" * 200_000
    began = time.process_time()
    assert refusal_of(message).by == "validation"
    assert time.process_time() - began < 1.0
