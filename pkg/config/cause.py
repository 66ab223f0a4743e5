"""Describes why headroom cannot do its work, as the running controller publishes it and the reports read it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Cause(msgspec.Struct, frozen=True):
    """A reason for which headroom cannot do its work, and what waits because of it.

    `by` names who refuses ("webhook X", "ValidatingAdmissionPolicy X (binding Y)", "RBAC"; "" where nobody answers), or
    who undoes what was written ("field manager X"). `status` is the HTTP status, 0 where no request was refused,
    `reason` the sentence that was given. `objects` are "Kind namespace/name", or a plural for a kind that may not be
    read: the first of `count`."""

    by: str
    status: int
    reason: str
    objects: Sequence[str] = ()
    count: int = 0

    @property
    def text(self) -> str:
        """The sentence with who refuses."""
        if not self.by:
            return self.reason
        if not self.status or self.status >= 500:
            return f"{self.by}: {self.reason}"
        return f"{self.by} refuses headroom's requests ({self.status}): {self.reason}"

    def line(self, namespace: str = "") -> str:
        """Returns the text with what waits, in the namespace if there is something, and how many others."""
        objects_here = (obj for obj in self.objects if _is_in(namespace, obj))
        waiting_object = next(objects_here, self.objects[0] if self.objects else "")
        rest = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.text}: {waiting_object}{rest}" if waiting_object else self.text

    def concerns(self, namespace: str) -> bool:
        """Reports whether something in the namespace waits, or the namespace itself."""
        return any(_is_in(namespace, obj) for obj in self.objects)

    def refuses(self, kind: str, key: str) -> bool:
        """Reports whether this very object waits."""
        return f"{kind} {key}" in self.objects


def _is_in(namespace: str, obj: str) -> bool:
    kind, _, key = obj.partition(" ")
    return key.startswith(f"{namespace}/") or (kind, key) == ("Namespace", namespace)


def encode_causes(causes: Sequence[Cause]) -> str:
    """Encodes the causes for the ConfigMap; "" for none."""
    return msgspec.json.encode(causes).decode() if causes else ""


def decode_causes(text: str) -> list[Cause]:
    """Decodes what `encode_causes` wrote; returns nothing of what another program did."""
    try:
        return msgspec.json.decode(text, type=list[Cause]) if text else []
    except msgspec.MsgspecError:
        return []
