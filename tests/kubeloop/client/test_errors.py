"""Errors by status: which class, which words, how long to wait."""

from __future__ import annotations

import email.utils
import json
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from kubeloop.api.meta import Status
from kubeloop.client import errors
from kubeloop.client.errors import error_from_response, error_from_status, parse_retry_after


@dataclass(frozen=True)
class Case:
    name: str
    code: int
    body: bytes
    kind: type[errors.ApiError]
    message: str
    reason: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    retry_after: float | None = None


def refusal(reason: str, message: str, **more: object) -> bytes:
    return json.dumps(
        {"kind": "Status", "status": "Failure", "reason": reason, "message": message} | more
    ).encode()


CASES = [
    Case("a bad request", 400, refusal("BadRequest", "no"), errors.BadRequest, "no", "BadRequest"),
    Case("no credentials", 401, refusal("Unauthorized", "who?"), errors.Unauthorized, "who?", "Unauthorized"),
    Case(
        "quota's refusal keeps its words",
        403,
        refusal("Forbidden", 'pods "a" is forbidden: exceeded quota: q, requested: limits.cpu=2'),
        errors.Forbidden,
        'pods "a" is forbidden: exceeded quota: q, requested: limits.cpu=2',
        "Forbidden",
    ),
    Case("no such object", 404, refusal("NotFound", "gone"), errors.NotFound, "gone", "NotFound"),
    Case(
        "no such kind is a page of text",
        404,
        b"404 page not found\n",
        errors.NotServed,
        "the server answered 404: 404 page not found",
    ),
    Case(
        "a proxy's page says nothing about an object",
        404,
        b"<html>no such backend</html>",
        errors.NotServed,
        "the server answered 404: <html>no such backend</html>",
    ),
    Case("a changed object", 409, refusal("Conflict", "changed"), errors.Conflict, "changed", "Conflict"),
    Case(
        "a second create",
        409,
        refusal("AlreadyExists", "there"),
        errors.AlreadyExists,
        "there",
        "AlreadyExists",
    ),
    Case("an old resourceVersion", 410, refusal("Expired", "too old"), errors.Gone, "too old", "Expired"),
    Case("a failed validation", 422, refusal("Invalid", "bad"), errors.Invalid, "bad", "Invalid"),
    Case(
        "throttled, with the header's wait",
        429,
        refusal("TooManyRequests", "slow", details={"retryAfterSeconds": 9}),
        errors.TooManyRequests,
        "slow",
        "TooManyRequests",
        {"Retry-After": "2"},
        2.0,
    ),
    Case(
        "throttled, with the body's wait",
        429,
        refusal("TooManyRequests", "slow", details={"retryAfterSeconds": 9}),
        errors.TooManyRequests,
        "slow",
        "TooManyRequests",
        retry_after=9.0,
    ),
    Case(
        "a server's fault", 500, refusal("InternalError", "oops"), errors.ServerError, "oops", "InternalError"
    ),
    Case("a gateway's fault", 502, b"", errors.ServerError, "the server answered 502"),
    Case("away", 503, b"not ready", errors.ServiceUnavailable, "the server answered 503: not ready"),
    Case("a time-out behind a gateway", 504, b"", errors.ServerError, "the server answered 504"),
    Case("another 4xx", 405, refusal("MethodNotAllowed", "no"), errors.ApiError, "no", "MethodNotAllowed"),
    Case(
        "bytes that are no text",
        500,
        b"\xff\xfe",
        errors.ServerError,
        "the server answered 500: \ufffd\ufffd",
    ),
    Case(
        "JSON of another shape",
        400,
        b'{"message": 5}',
        errors.BadRequest,
        'the server answered 400: {"message": 5}',
    ),
    Case(
        "a page of HTML is cut and put on one line",
        503,
        b"<html>\n<body>\n" + b"x" * 5000,
        errors.ServiceUnavailable,
        "the server answered 503: <html> <body> " + "x" * 286,
    ),
    Case("a Status without a message", 404, refusal("NotFound", ""), errors.NotFound, "", "NotFound"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_an_answer_becomes_an_error(case: Case) -> None:
    error = error_from_response(case.code, case.body, case.headers)
    assert type(error) is case.kind
    assert error.status == case.code
    assert error.reason == case.reason
    assert error.retry_after == case.retry_after
    if case.message:
        assert str(error) == error.message == case.message
    assert str(error)
    assert "\n" not in str(error)


def test_an_error_event_of_a_watch_becomes_the_same_error() -> None:
    error = error_from_status(Status(code=410, reason="Expired", message="too old resource version"))
    assert type(error) is errors.Gone
    assert (error.status, error.reason, str(error)) == (410, "Expired", "too old resource version")


def test_an_error_event_that_says_nothing_is_an_api_error_with_words() -> None:
    error = error_from_status(Status())
    assert type(error) is errors.ApiError
    assert str(error) == "the server answered 0"


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
        ("86400", None),
        ("9" * 400, None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", None),
    ],
)
def test_retry_after_is_capped_at_60_s_and_nonsense_in_it_is_ignored(
    value: str | None, seconds: float | None
) -> None:
    assert parse_retry_after(value) == seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(3, 3.0), (3600, 60.0), (0, None), (-5, None), (10**30, None), (1.5, None), (True, None), ("3", None)],
)
def test_retry_after_in_a_status_likewise(value: Any, seconds: float | None) -> None:
    assert error_from_status(Status(code=429, details={"retryAfterSeconds": value})).retry_after == seconds


def test_retry_after_as_a_date() -> None:
    before = time.time()
    date = int(before) + 60
    ahead = parse_retry_after(email.utils.formatdate(date, usegmt=True))
    assert ahead is not None
    assert date - time.time() <= ahead <= date - before
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
