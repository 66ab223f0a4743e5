"""Errors by status, as apimachinery's `api/errors` has them: callers choose by class, never by a message's text."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from kubeloop.api.meta import Status
from kubeloop.api.registry import Resource
from kubeloop.client.lenient import UNDECODABLE, decode
from kubeloop.errors import ReportedError

_STATUS = msgspec.json.Decoder(Status)
_SHOWN = 300
"""Characters of an answer that is no metav1.Status (a proxy's HTML page) that a message shows."""
_LONGEST_RETRY_AFTER = 60
"""Seconds: a longer Retry-After is cut to this."""
_NOT_FOR_GOOD = frozenset({404, 408, 409, 410, 429})
"""The statuses of 4xx by which the object, the version or the moment is the wrong one, so that another try can help."""
_MEANT_OF_OBJECTS = (_NOT_FOR_GOOD - {429}) | {401}
_INAPPLICABLE_PATCH = "the server rejected our request due to an error in our request"
"""Nothing but this text tells it from a validation's or a policy's 422 (apiserver's handlers/patch.go)."""


class ConfigError(ReportedError):
    """The configuration can't work: one line that names the file or field and what is wrong with it."""

    exit_code = 2


_USUAL: "dict[type[ApiError], tuple[int, str]]" = {}


class ApiError(ReportedError):
    """A request that was refused, or never answered: the HTTP status (0: no answer) and metav1.Status' reason (or ""),
    by default those of the class, and the seconds that the server asks to wait (60 at most), or None."""

    def __init_subclass__(cls, *, usual: tuple[int, str] | None = None) -> None:
        super().__init_subclass__()
        if usual is not None:
            _USUAL[cls] = usual

    def __init__(
        self, message: str, *, status: int | None = None, reason: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        usual = _USUAL.get(type(self), (0, ""))
        self.status = usual[0] if status is None else status
        self.reason = usual[1] if reason is None else reason
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message

    @property
    def refusal(self) -> "Refusal":
        return refusal_of(self.message)

    @property
    def is_refusal(self) -> bool:
        """Reports whether the server refused for good, so that the same request cannot help: 4xx but 404, 408, 409, 410
        and 429, and what a webhook or a policy denied with a status of its choice, but 429."""
        if self.status < 400 or self.status == 429 or isinstance(self, PatchConflict):
            return False
        return (self.status < 500 and self.status not in _NOT_FOR_GOOD) or self.refusal.by_admission

    @property
    def needs_repair(self) -> bool:
        """Reports whether the error lasts until somebody acts: a refusal, or a webhook that does not answer."""
        return self.is_refusal or (self.status >= 500 and self.refusal.by.startswith("webhook "))


class BadRequest(ApiError, usual=(400, "BadRequest")):
    """400: the server rejects the request as malformed, or a webhook that gives no status denies it."""


class Unauthorized(ApiError, usual=(401, "Unauthorized")):
    """401: the credentials are missing, expired or unknown."""


class Forbidden(ApiError, usual=(403, "Forbidden")):
    """403: refused by RBAC, an admission webhook or quota ("exceeded quota: …"). And a denial of a webhook or policy
    whose status would mean another thing from the API server itself (401, 404, 408, 409, 410)."""


class NotFound(ApiError, usual=(404, "NotFound")):
    """404 with reason NotFound: the API server says that there is no such object."""


class NotServed(ApiError, usual=(404, "")):
    """404 without that reason: the kind is not installed, or a proxy or a starting server answers: see `is_served`."""


STATUS_404 = (NotFound, NotServed)
"""Both are the answers of a list whose kind is missing."""


class NotInstalled(NotServed, usual=(404, "")):
    """404, and the server's discovery confirms that it does not know the kind."""


class Conflict(ApiError, usual=(409, "Conflict")):
    """409: another client changed the object since the resourceVersion that the write was based on."""


class AlreadyExists(ApiError, usual=(409, "AlreadyExists")):
    """409 with reason AlreadyExists: a create of something that is there. Not a Conflict: reading again won't help."""


class Gone(ApiError, usual=(410, "Expired")):
    """410: a resourceVersion or continue token that the server no longer has; list again."""


class Invalid(ApiError, usual=(422, "Invalid")):
    """422: validation or a policy refuses the object."""


class PatchConflict(Invalid, Conflict, usual=(422, "Invalid")):
    """422 of a JSON patch that does not apply: a `test` did not hold, or a path does not exist. The object is another
    one than the patch was made for: a Conflict, although the status is that of Invalid."""


class TooManyRequests(ApiError, usual=(429, "TooManyRequests")):
    """429: throttled, or an eviction that a PodDisruptionBudget refuses for now."""


class ServerError(ApiError, usual=(500, "")):
    """5xx: the server failed; the write may or may not have happened."""


class ServiceUnavailable(ServerError, usual=(503, "ServiceUnavailable")):
    """503: the server (or what is behind it) does not take requests at the moment."""


class Unreachable(ApiError):
    """No (whole) answer: refused, reset, timed out, or a watch that broke off. Status 0; the message names the host."""


class ReadOnly(ApiError):
    """A write that was not sent, because of `--dry-run`."""


def refuse_write() -> None:
    """A transport's `before_write` in a dry run. Raises ReadOnly."""
    raise ReadOnly("nothing is written in a dry run")


def error_from_status(status: Status, *, code: int = 0, retry_after: float | None = None) -> ApiError:
    """The error of a metav1.Status, a body or a watch's ERROR event; an answer's code and Retry-After beat its own."""
    code = code or status.code or 0
    seconds = (status.details or {}).get("retryAfterSeconds")
    if retry_after is None and type(seconds) is int and seconds > 0:  # 0: the server says nothing
        retry_after = min(seconds, _LONGEST_RETRY_AFTER)
    reason = status.reason or ""
    message = status.message or reason or f"the server answered {code}"
    return _class_of(code, reason, message)(message, status=code, reason=reason, retry_after=retry_after)


def error_from_response(code: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """The error of an HTTP answer with a status of 400 or more."""
    try:
        status = decode(_STATUS, body)
    except UNDECODABLE:
        status = Status()
    if not status.message:
        text = " ".join(body.decode("utf-8", "replace").split())
        status = Status(message=f"the server answered {code}: {text[:_SHOWN]}".rstrip(": "), reason=status.reason)
    seconds = headers.get("Retry-After", "").strip()  # or a date, which client-go does not read either
    is_number = seconds.isascii() and seconds.isdigit()
    retry_after = min(float(seconds), _LONGEST_RETRY_AFTER) if is_number else None
    return error_from_status(status, code=code, retry_after=retry_after)


def not_found(resource: Resource[Any], name: str) -> NotFound:
    """The error in the API server's words, for what a cache does not have."""
    return NotFound(f'{resource.group_resource} "{name}" not found')


def check_namespace(resource: Resource[Any], namespace: str, name: str = "") -> None:
    """Raises BadRequest where an object of a namespaced kind is meant and no namespace is given."""
    if resource.namespaced and not namespace:
        subject = f"{resource.kind} {name}".rstrip()
        raise BadRequest(f"{subject} has a namespace, and none is given: say namespace=")


def _class_of(code: int, reason: str, message: str) -> type[ApiError]:
    if code in _MEANT_OF_OBJECTS and refusal_of(message).by_admission:
        return Forbidden
    if code == 422 and message == _INAPPLICABLE_PATCH:
        return PatchConflict
    if code == 409 and reason == "AlreadyExists":
        return AlreadyExists
    if code == 404 and reason != "NotFound":
        return NotServed
    error_class = next((kind for kind, (status, _) in _USUAL.items() if status == code), ApiError)
    return ServerError if code >= 500 and error_class is ApiError else error_class


class Refusal(NamedTuple):
    """`by` names who refused a request; `reason` is the sentence that was given."""

    by: str
    reason: str
    by_admission: bool = False
    """A webhook or a policy denied the request, with a status of its choice."""


_REFUSALS = (
    (r'admission webhook "([^"]+)" (?:denied the request[: ]*|(?=does not support))(.*)', r"webhook \1", r"\2", True),
    (r'failed calling webhook "([^"]+)"[:;] ?(.*)', r"webhook \1", r"it does not answer: \2", False),
    (
        r"""\b(\w*AdmissionPolicy|policy) ['"]([^'"]+)['"](?: with (binding) '([^']+)')? denied request: (.*)""",
        *(r"\1 \2 (\3 \4)", r"\5", True),
    ),
    (r'(User "[^"]*" cannot \S+ (?:resource|path) .*)', "RBAC", r"\1", False),
    (r"exceeded quota: ([^,\s]+)(?:, (.*))?", r"quota \1", r"\2", False),
    (r'(?:^|: )\S+ "[^"]*" is forbidden: (.*)', "admission", r"\1", False),
    (r'(?:^|: )\S+ "[^"]*" is invalid: (.*)', "validation", r"\1", False),
)
"""Message, and the three parts of a Refusal. An admission webhook chooses the status of its denial (400 where it gives
none), a policy too (422 by default), RBAC answers 403, a webhook that does not answer costs a 500: the texts alone tell
them apart. They are apiserver's own (admission/plugin/webhook/errors, admission/plugin/policy, util/webhook,
endpoints/handlers/responsewriters), unchanged since the webhooks exist."""


def refusal_of(message: str) -> Refusal:
    """The refusal of an error's message; `by` is "the API server" where it names nobody."""
    for pattern, by, reason, by_admission in _REFUSALS:
        if match := re.search(pattern, message, re.S):
            refuser = match.expand(by).removesuffix(" ( )")  # a policy without a binding
            return Refusal(refuser, match.expand(reason) or "without explanation", by_admission)
    return Refusal("the API server", message)
