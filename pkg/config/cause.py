"""Why headroom cannot do its work, as the running controller publishes it and the reports read it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Cause(msgspec.Struct, frozen=True):
    """One reason for which headroom cannot do its work, and what waits because of it.

    `by` names who refuses ("webhook X", "ValidatingAdmissionPolicy X (binding Y)", "RBAC"; "" where nobody answers),
    or who undoes what was written ("field manager X"). `status` is the HTTP status, 0 where no request was refused,
    `reason` the sentence that was given. `objects` are "Kind namespace/name", or a plural for a kind that may not be
    read: the first of `count`.
    """

    by: str
    status: int
    reason: str
    objects: Sequence[str] = ()
    count: int = 0

    @property
    def text(self) -> str:
        """Who refuses, and the sentence."""
        if not self.by:
            return self.reason
        if not self.status or self.status >= 500:
            return f"{self.by}: {self.reason}"
        return f"{self.by} refuses headroom's requests ({self.status}): {self.reason}"

    def line(self, namespace: str = "") -> str:
        """The same with what waits, in the namespace if there is something, and how many others."""
        here = (each for each in self.objects if _is_in(namespace, each))
        shown = next(here, self.objects[0] if self.objects else "")
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.text}: {shown}{more}" if shown else self.text

    def concerns(self, namespace: str) -> bool:
        """Whether something in the namespace waits, or the namespace itself."""
        return any(_is_in(namespace, each) for each in self.objects)

    def refuses(self, kind: str, key: str) -> bool:
        """Whether this very object waits."""
        return f"{kind} {key}" in self.objects


def _is_in(namespace: str, shown: str) -> bool:
    kind, _, key = shown.partition(" ")
    return key.startswith(f"{namespace}/") or (kind, key) == ("Namespace", namespace)


def encoded(causes: Sequence[Cause]) -> str:
    """For the ConfigMap; "" where there is none."""
    return msgspec.json.encode(causes).decode() if causes else ""


def decoded(text: str) -> list[Cause]:
    """What `encoded` wrote; nothing of what another program did."""
    try:
        return msgspec.json.decode(text, type=list[Cause]) if text else []
    except msgspec.MsgspecError:
        return []
