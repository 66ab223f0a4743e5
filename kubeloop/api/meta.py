"""metav1: what every object has, and the envelopes of lists and watches."""

import contextlib
import datetime
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import msgspec

RawQuantity = str | int | float
"""A quantity as it stands on the wire: a CRD without a schema lets plain numbers through beside strings."""
RawResourceList = dict[str, RawQuantity]
"""A ResourceList as it stands on the wire: resource name to quantity."""

# Passed as a dict: type checkers want `frozen` repeated on every subclass, msgspec inherits it.
_OPTIONS: dict[str, Any] = {"kw_only": True, "frozen": True}
_ACRONYMS = {
    word.lower(): word
    for word in (
        "API", "CIDR", "CIDRs", "CPU", "FQDN", "ID", "IDs", "IP", "IPs", "IPC", "PID", "TLS", "UID", "UIDs", "URI",
        "URL", "URLs", "UUID", "WWNs",
    )
}  # fmt: skip
"""Words that Kubernetes writes in capitals within a field's name: podIP, externalIPs, nonResourceURLs."""
PropagationPolicy = Literal["Orphan", "Background", "Foreground"]
"""The order of deletion: an object is deleted before those that it owns, after them, or without them."""


def wire_name(name: str) -> str:
    """A field's name in JSON: pod_ip is podIP. Others are in the struct: `msgspec.field(name="migrationUid")`."""
    head, *words = name.split("_")
    return head + "".join(_ACRONYMS.get(word) or word.title() for word in words)


class Struct(msgspec.Struct, rename=wire_name, omit_defaults=True, gc=False, **_OPTIONS):
    """Base of every API type. Frozen: cached objects are shared by all readers. Without the garbage collector: API
    objects are trees, and a cache of thousands stays out of its way."""

    whole: ClassVar[bool] = False
    """True if the struct declares all that the kind has on the wire; only then a list of it may be rewritten."""


class OwnerReference(Struct):
    whole: ClassVar[bool] = True

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Struct):
    """metav1.ObjectMeta, the fields in use. Timestamps stay RFC 3339 strings."""

    name: str = ""
    generate_name: str | None = None
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[OwnerReference] | None = None


class LabelSelectorRequirement(Struct):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(Struct):
    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelSelectorRequirement] | None = None


class Object(Struct):
    """Base of every kind."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` where there is no namespace: client-go's MetaNamespaceKeyFunc."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name

    @property
    def annotations(self) -> Mapping[str, str]:
        return MappingProxyType(self.metadata.annotations or {})

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels; read only."""
        return MappingProxyType(self.metadata.labels or {})

    @property
    def deleting(self) -> bool:
        """Reports whether the object has a deletionTimestamp: only finalizers or its grace period hold it."""
        return self.metadata.deletion_timestamp is not None


class PartialObjectMetadata(Object):
    """metav1.PartialObjectMetadata: the metadata of an object of any kind."""


class ListMeta(Struct):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


def as_number(version: str) -> int:
    """A resourceVersion as what it counts; -1 for one that is no number, as the API server's own are."""
    return int(version) if version.isdigit() else -1


def is_older(version: str, than: str) -> bool:
    """Reports whether a resourceVersion is before another one of its collection; False where that is not known."""
    return 0 <= as_number(version) < as_number(than)


class Condition(Struct):
    """A status condition: metav1.Condition with what core kinds, wrangler and Cluster API have beside that."""

    whole: ClassVar[bool] = True

    type: str = ""
    status: str = ""
    severity: str | None = None
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None
    last_probe_time: str | None = None
    last_update_time: str | None = None
    last_heartbeat_time: str | None = None
    observed_generation: int | None = None


def rfc3339(seconds: float, timespec: str = "seconds") -> str:
    """Formats a time as metav1.Time: RFC 3339, UTC; with `timespec="microseconds"` metav1.MicroTime."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


def from_rfc3339(text: str) -> float:
    """Seconds since the epoch of a metav1.Time or MicroTime. Raises ValueError, in words for a person."""
    with contextlib.suppress(ValueError, OverflowError):
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.timestamp()
    raise ValueError(f"{text!r} is not a time such as 2026-11-21T16:30:14Z")


def now_rfc3339() -> str:
    return rfc3339(time.time())


class Status(Struct):
    """metav1.Status: the body of a refused request and of a watch's ERROR event."""

    status: str | None = None
    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: dict[str, Any] | None = None
