"""admission.k8s.io/v1: the review as it comes in, the answer as it goes out.

The objects inside a review stay undecoded bytes until a validator reads them: most requests are decided by a few
fields, and an object of 1 MB costs nothing then.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from kubeloop.api.meta import Object, Struct
from kubeloop.client.decode import decoder_for
from kubeloop.client.errors import ServerError
from kubeloop.client.lenient import UNDECODABLE, decode

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

T = TypeVar("T", bound=Object)

_NULL: Final = msgspec.Raw(b"null")
_PARTS: Final = (b'"', b"[", b"{")
_MOST_PARTS: Final = 20_000
"""Quotes and opening brackets cost time, other bytes do not: 3 MiB of them up to a second in which nothing else is
answered."""
_LONGEST_UID: Final = 1024
"""Characters; it comes back in the answer."""
REVIEW_SECONDS: Final = 3.0
"""Of a hook. The API server waits longer for an answer (the registered timeoutSeconds)."""
_REASONS: Final = {400: "BadRequest", 403: "Forbidden", 409: "Conflict", 422: "Invalid"}
_ENDS_AT: ContextVar[float] = ContextVar("review ends at")


class BadReview(Exception):
    """The request is not a review that can be answered; the text is for its sender."""


class TooLarge(BadReview):
    """It may be a review, which is not read."""


class UserInfo(Struct):
    """authentication.k8s.io/v1 UserInfo, the fields in use."""

    username: str = ""
    groups: list[str] | None = None


class GroupVersionResource(Struct):
    """metav1.GroupVersionResource."""

    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(Struct):
    """admission.k8s.io/v1 AdmissionRequest. `operation` is CREATE, UPDATE, DELETE or CONNECT."""

    uid: str = ""
    resource: GroupVersionResource = GroupVersionResource()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL
    dry_run: bool = False
    authenticated: bool = False
    """Whether the listener knows that the API server asks; never what a review says of itself."""

    def new(self, kind: type[T]) -> T:
        """The object as it shall be. Raises BadReview when there is none, or it is not a `kind`."""
        return _decoded(self.object, kind, "object")

    def old(self, kind: type[T]) -> T:
        """The object as it is. Raises BadReview."""
        return _decoded(self.old_object, kind, "oldObject")


class _Review(Struct):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


_REVIEW: Final = msgspec.json.Decoder(_Review)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is answered. `patch` is a JSON patch (RFC 6902) and only looked at in a mutating webhook."""

    allowed: bool = True
    message: str = ""
    reason: str = ""
    """The reason of a refusal, for metrics."""
    patch: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()
    audit: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the API server's audit event; it puts the webhook's name before the keys."""
    code: int = 403
    """Of a refusal. The API server makes 400 of one below 400."""


ALLOW: Final = Decision()
Hook = Callable[[AdmissionRequest], Awaitable[Decision]]
"""Answers one request. BadReview becomes a 400, for the API server's own a refusal: the failurePolicy must not let pass
what cannot be read. Whatever else it raises becomes a 500, and then the failurePolicy decides."""


def deny(message: str, *, reason: str = "invalid", code: int = 403) -> Decision:
    """A refusal; the person sees `admission webhook "…" denied the request: <message>`."""
    return Decision(allowed=False, message=message, reason=reason, code=code)


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """The review that is answered within the block has so much time; with 0 its hook asks nothing of others."""
    token = _ENDS_AT.set(asyncio.get_running_loop().time() + seconds)
    try:
        yield
    finally:
        _ENDS_AT.reset(token)


def time_left() -> float:
    """Seconds that are left of the review's time for what the hook asks of others: one deadline for all of it. Outside
    of a review REVIEW_SECONDS."""
    now = asyncio.get_running_loop().time()
    return _ENDS_AT.get(now + REVIEW_SECONDS) - now


def decode_review(body: bytes, *, authenticated: bool = False) -> AdmissionRequest:
    """The request of a review; `authenticated`: it is known to come from the API server. Raises BadReview, TooLarge."""
    if not authenticated and sum(map(body.count, _PARTS)) > _MOST_PARTS:
        raise TooLarge(f"a review of more than {_MOST_PARTS} parts is read for the API server alone")
    try:
        review = decode(_REVIEW, body)
    except (*UNDECODABLE, RecursionError) as exc:
        raise BadReview(f"the body is not an AdmissionReview: {exc}") from exc
    if review.kind != KIND or review.api_version != API_VERSION:
        raise BadReview(
            f"want {KIND} of {API_VERSION}, got {review.kind or 'no kind'} of {review.api_version or 'nothing'}"
        )
    if review.request is None or not review.request.uid:
        raise BadReview("the review has no request, or the request no uid")
    if len(review.request.uid) > _LONGEST_UID:
        raise BadReview(f"a uid has at most {_LONGEST_UID} characters")
    return msgspec.structs.replace(review.request, authenticated=authenticated)


def encode_answer(uid: str, decision: Decision) -> bytes:
    """The AdmissionReview that answers request `uid`."""
    response: dict[str, Any] = {"uid": uid, "allowed": decision.allowed}
    if not decision.allowed:
        refusal = {"reason": _REASONS.get(decision.code, ""), "code": decision.code}
        response["status"] = {"status": "Failure", "message": decision.message, **refusal}
    if decision.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(list(decision.patch))).decode("ascii")
    if decision.audit:
        response["auditAnnotations"] = dict(decision.audit)
    if decision.warnings:
        response["warnings"] = list(decision.warnings)
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def _decoded(raw: msgspec.Raw, kind: type[T], field: str) -> T:
    content = bytes(raw)
    if content in (b"", b"null"):
        raise BadReview(f"the request has no {field}")
    try:
        decoded: T = decoder_for(kind).object(content)
    except (ServerError, RecursionError) as exc:
        raise BadReview(f"{field}: {exc}") from exc
    return decoded
