"""admission.k8s.io/v1: the review as it comes in, the answer as it goes out.

The objects inside a review stay undecoded bytes until a validator reads them: most requests are decided by a few
fields, and an object of 1 MB costs nothing then."""

import asyncio
import base64
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from kubeloop.api.bodies import Operation, json_patch
from kubeloop.api.meta import Object, Struct
from kubeloop.client.decode import decoder_for
from kubeloop.client.errors import ServerError
from kubeloop.client.lenient import UNDECODABLE, decode
from kubeloop.errors import one_line

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

T = TypeVar("T", bound=Object)

_NULL: Final = msgspec.Raw(b"null")
_LONGEST_UID: Final = 1024
"""Characters; it comes back in the answer."""
REVIEW_SECONDS: Final = 3.0
"""The time of a hook for what it asks of others: `time_left`. The API server waits longer (its timeoutSeconds)."""
_ENDS_AT: ContextVar[float] = ContextVar("review ends at")
_CODES: Final = {
    "BadRequest": 400, "Unauthorized": 401, "Forbidden": 403, "NotFound": 404, "MethodNotAllowed": 405,
    "NotAcceptable": 406, "Conflict": 409, "AlreadyExists": 409, "Gone": 410, "Expired": 410,
    "RequestEntityTooLarge": 413, "UnsupportedMediaType": 415, "Invalid": 422, "TooManyRequests": 429,
    "InternalError": 500, "ServerTimeout": 500, "ServiceUnavailable": 503, "Timeout": 504,
}  # fmt: skip
"""metav1.StatusReason and its code; of two with one code the first is meant by the code alone."""


class BadReview(Exception):
    """The request is not a review that can be answered; the text is for its sender."""


class UserInfo(Struct):
    """authentication.k8s.io/v1 UserInfo."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class GroupVersionKind(Struct):
    """metav1.GroupVersionKind."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(Struct):
    """metav1.GroupVersionResource."""

    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(Struct):
    """admission.k8s.io/v1 AdmissionRequest. `operation` is CREATE, UPDATE, DELETE or CONNECT; `options` are its
    CreateOptions, UpdateOptions or DeleteOptions. `request_kind` and the like are what the client asked for, where the
    webhook gets another version of it (matchPolicy Equivalent)."""

    uid: str = ""
    kind: GroupVersionKind = GroupVersionKind()
    resource: GroupVersionResource = GroupVersionResource()
    sub_resource: str = ""
    request_kind: GroupVersionKind | None = None
    request_resource: GroupVersionResource | None = None
    request_sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL
    options: msgspec.Raw = _NULL
    dry_run: bool = False

    def new(self, kind: type[T]) -> T:
        """The object as it shall be. Raises BadReview when there is none, or it is not a `kind`."""
        return _decode(self.object, kind, "object")

    def old(self, kind: type[T]) -> T:
        """The object as it is. Raises BadReview."""
        return _decode(self.old_object, kind, "oldObject")

    def patch(self, changed: Object) -> list[Operation]:
        """The JSON patch that makes the request's object `changed`: `Decision(patch=request.patch(edit(pod, ...)))`.
        What the struct does not declare stays. Raises BadReview, and PartlyDeclared for a list in another order."""
        sent = decode(_ANY, bytes(self.object)) if bytes(self.object) else None
        return json_patch(self.new(type(changed)), changed, sent if isinstance(sent, dict) else {})

    def __str__(self) -> str:
        """Returns `CREATE pods ns/name`, in one line whatever a review says."""
        key = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return one_line(f"{self.operation} {self.resource.resource} {key}")[:_SHOWN]


class _Review(Struct):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


_REVIEW: Final = msgspec.json.Decoder(_Review)
_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()
_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class Decision:
    """A webhook's answer. `patch` is a JSON patch (RFC 6902) and only looked at in a mutating webhook."""

    allowed: bool = True
    message: str = ""
    reason: str = ""
    """The reason of a refusal: one of metav1.Status (Invalid, Conflict, …), or a word for metrics alone."""
    code: int = 0
    field: str = ""
    """The field that a refusal is about; see `deny`."""
    patch: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()
    audit: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Annotations of the API server's audit event; it puts the webhook's name before the keys."""


ALLOW: Final = Decision()
Hook = Callable[[AdmissionRequest], Awaitable[Decision]]
"""Answers one request. BadReview becomes a 400, for the API server's own a refusal: the failurePolicy must not let pass
what cannot be read. Whatever else it raises becomes a 500, and then the failurePolicy decides."""


def deny(message: str, *, reason: str = "invalid", code: int = 0, field: str = "") -> Decision:
    """A refusal; the person sees `admission webhook "…" denied the request: <message>`.

    Clients see 403 Forbidden, unless a `reason` of metav1.Status (Invalid, Conflict, NotFound, TooManyRequests, …) or a
    `code` says otherwise: each brings the other one. `field` is the wrong one (`spec.size`), and makes it 422 Invalid
    with a cause. Raises ValueError for a code that is none of a refusal."""
    if code and not 400 <= code < 600:
        raise ValueError(f"a refusal has a code of 400 to 599, not {code}")
    return Decision(allowed=False, message=message, reason=reason, code=code, field=field)


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """The review that is answered within the block has so much time."""
    token = _ENDS_AT.set(asyncio.get_running_loop().time() + seconds)
    try:
        yield
    finally:
        _ENDS_AT.reset(token)


def time_left() -> float:
    """Seconds that are left of the review's time for all that a hook asks of others; outside of one REVIEW_SECONDS."""
    now = asyncio.get_running_loop().time()
    return _ENDS_AT.get(now + REVIEW_SECONDS) - now


def decode_review(body: bytes) -> AdmissionRequest:
    """The request of a review. Raises BadReview."""
    try:
        review = decode(_REVIEW, body)
    except (*UNDECODABLE, RecursionError) as exc:
        raise BadReview(f"the body is not an AdmissionReview: {exc}") from exc
    if review.kind != KIND or review.api_version != API_VERSION:
        kind, version = review.kind or "no kind", review.api_version or "nothing"
        raise BadReview(f"want {KIND} of {API_VERSION}, got {kind} of {version}")
    if review.request is None or not review.request.uid:
        raise BadReview("the review has no request, or the request no uid")
    if len(review.request.uid) > _LONGEST_UID:
        raise BadReview(f"a uid has at most {_LONGEST_UID} characters")
    return review.request


def encode_answer(uid: str, decision: Decision) -> bytes:
    """The AdmissionReview that answers request `uid`."""
    response: dict[str, Any] = {"uid": uid, "allowed": decision.allowed}
    if not decision.allowed:
        response["status"] = _status(decision)
    if decision.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(list(decision.patch))).decode("ascii")
    if decision.audit:
        response["auditAnnotations"] = dict(decision.audit)
    if decision.warnings:
        response["warnings"] = list(decision.warnings)
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def _status(decision: Decision) -> dict[str, Any]:
    """The metav1.Status of a refusal."""
    usual = "Invalid" if decision.field else "Forbidden"
    code = decision.code or _CODES.get(decision.reason) or _CODES[usual]
    reason = decision.reason if decision.reason in _CODES else next((r for r, c in _CODES.items() if c == code), "")
    status: dict[str, Any] = {"status": "Failure", "message": decision.message, "reason": reason, "code": code}
    if decision.field:
        cause = {"reason": "FieldValueInvalid", "message": decision.message, "field": decision.field}
        status["details"] = {"causes": [cause]}
    return status


def _decode(raw: msgspec.Raw, kind: type[T], field: str) -> T:
    content = bytes(raw)
    if content in (b"", b"null"):
        raise BadReview(f"the request has no {field}")
    try:
        decoded: T = decoder_for(kind).object(content)
    except (ServerError, RecursionError) as exc:
        raise BadReview(f"{field}: {exc}") from exc
    return decoded
