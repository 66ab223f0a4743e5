"""Whether the headroom that is installed runs and its webhooks answer: a report says so before all else. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kubeloop.api.core import LeaseSpec
from kubeloop.api.meta import from_rfc3339
from pkg.config.cause import Cause
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME

FAIL = "Fail"
_DURATION = 15.0
"""Seconds that a Lease is valid for where it does not say: client-go's default."""
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_REFUSED = {
    "pods": "pods are refused in namespaces with added headroom",
    "resourcequotas": "writes that change the limits of managed quotas are refused",
    "namespaces": "changes of namespaces' quota annotations are refused",
    "virtualmachines": "changes of VMs' volume claim templates are refused",
}
"""What the API server does not let through while a webhook with Fail does not answer."""


@dataclass(frozen=True, slots=True)
class Held:
    """A Lease as its holder has left it: `silent` seconds ago it was renewed or released, None where it was never; or,
    not `elected`, the ConfigMap of a controller that runs without one."""

    holder: str
    silent: float | None
    duration: float
    elected: bool = True

    @property
    def live(self) -> bool:
        """Whether the holder may still write: it has not let the Lease run out."""
        return bool(self.holder) and self.silent is not None and self.silent < self.duration


def held(spec: LeaseSpec, now: float) -> Held:
    """`now` in seconds since the epoch, by the API server's clock; the Lease's times are its holder's."""
    return Held(
        spec.holder_identity or "", seconds_since(spec.renew_time, now), float(spec.lease_duration_seconds or _DURATION)
    )


def seconds_since(time: str | None, now: float) -> float | None:
    """Returns None where the RFC 3339 `time` is none; `now` in seconds since the epoch."""
    try:
        return max(0.0, now - from_rfc3339(time or ""))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Installed:
    """What could be found out. `lease` is None where there is none or it may not be read; `webhooks` are those that are
    registered, with their failure policies; `unreachable` is what the API server says of a webhook that it does not
    reach, "" where it answers, None where that is not known; `absent` are the namespaces where headroom was looked for,
    if it is nowhere; `endpoint` is where the API server calls the webhooks, and `drift` whether they were registered
    with other flags than those of the headroom that answers; `problem` is what a controller says keeps it from its
    work, and `causes` are who refuses its requests, and for what; `unserved` are KubeVirt's kinds that the API server
    does not know."""

    lease: Held | None = None
    webhooks: Mapping[str, str] = field(default_factory=dict)
    unreachable: str | None = None
    absent: Sequence[str] = ()
    endpoint: str = ""
    drift: bool = False
    problem: str = ""
    causes: Sequence[Cause] = ()
    unserved: Sequence[str] = ()

    @property
    def stopped(self) -> bool:
        """Whether it is known that no controller runs."""
        return bool(self.absent) if self.lease is None else not self.lease.live

    @property
    def in_the_way(self) -> Sequence[str]:
        """The webhooks that do not answer and without which the API server refuses what they are about."""
        return [name for name, policy in self.webhooks.items() if policy == FAIL] if self.unreachable else ()

    def keeps(self, keeper: str) -> str:
        """Who scales a quota, in a title."""
        if keeper.startswith("none: "):
            return f"not scaled: {keeper.removeprefix('none: ')}"
        absent = ", which does not run" if self.stopped and keeper.endswith("headroom") else ""
        return f"kept by {keeper}{absent}"

    def refusal(self, kind: str, key: str) -> str:
        """Who refuses the running controller's requests for this object, and why; "" where nobody does."""
        return next((cause.text for cause in self.causes if cause.refuses(kind, key)), "")

    @property
    def in_short(self) -> str:
        """Without the times, which go on."""
        runs = "does not run" if self.stopped else "may run" if self.lease is None else "runs"
        if not self.webhooks:
            return runs
        answer = {None: "may answer", "": "answer"}.get(self.unreachable, "do not answer")
        return f"{runs}, its webhooks {answer}"

    @property
    def leader(self) -> str:
        """Who runs, as words; "" where nobody does, or that is not known."""
        if self.lease is None or not self.lease.live:
            return ""
        return f"leader {self.lease.holder}" if self.lease.elected else "without election"

    @property
    def answering(self) -> str:
        """Whether the webhooks do, as words; "" without webhooks."""
        if not self.webhooks:
            return ""
        return {None: "webhooks registered", "": "webhooks answer"}.get(self.unreachable, "webhooks do not answer")

    @property
    def registration(self) -> str:
        """A sentence, "" without webhooks."""
        if not self.webhooks:
            return ""
        answer = {None: "it is not known whether they answer", "": "they answer"}.get(
            self.unreachable, "they do not answer"
        )
        names = ", ".join(f"{name.partition('.')[0]} ({policy})" for name, policy in self.webhooks.items())
        return f"webhooks registered at {self.endpoint}: {names}; {answer}"

    def alarms(self, namespace: str = "") -> list[str]:
        """What is wrong, a line each, of refused requests first one in the namespace; empty for an installation that
        works, or is not known."""
        said = []
        if self.absent:
            said.append(
                "headroom is not running here: there is no Lease, ConfigMap or webhook of it in "
                f"{', '.join(self.absent)} (--headroom-namespace names another namespace)"
            )
        if self.lease is not None and not self.lease.live:
            since = "" if self.lease.silent is None else f" for {lasting(self.lease.silent)}"
            said.append(f"headroom has not been running{since}: nothing is raised or given back")
        if self.unserved:
            said.append(
                "KubeVirt is not installed, or not as a whole: the API server does not know "
                f"{', '.join(self.unserved)} (kubevirt.io/v1), so that no migration is seen: apply KubeVirt's CRDs, or "
                "wait for its operator"
            )
        if self.problem:
            here = (cause.line(namespace) for cause in self.causes if namespace and cause.concerns(namespace))
            said.append(f"headroom cannot do its work: {next(here, self.problem)}")
        for name in self.in_the_way:
            what = _REFUSED.get(name.removesuffix(f".{WEBHOOK_CONFIGURATION_NAME}"), "what it is about is refused")
            said.append(f"webhook {name} is registered and does not answer: {what} ({self.unreachable})")
        if self.unreachable and not self.in_the_way:
            said.append(
                "the webhooks are registered and do not answer: what they are about waits for them, "
                f"and is not checked ({self.unreachable})"
            )
        if self.drift:
            said.append(
                "the webhooks were registered with other flags than those of the headroom that answers: "
                "`headroom release --only webhooks --force` removes what is left of before"
            )
        return said

    def missing(self, *, controller: bool, webhooks: bool) -> list[str]:
        """What keeps these from being known to work, beside the alarms; a line each."""
        said = []
        if controller and self.lease is None and not self.absent:
            said.append("no controller was found: there is no Lease or ConfigMap headroom, or they may not be read")
        if webhooks and not self.webhooks:
            said.append("no webhooks are registered")
        elif webhooks and self.unreachable is None:
            said.append("it is not known whether the API server reaches the webhooks")
        return said

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "running": False if self.stopped else None if self.lease is None else True,
            "holder": self.lease.holder or None if self.lease and self.lease.elected else None,
            "secondsSinceRenewal": None if self.lease is None else self.lease.silent,
            "webhooks": dict(self.webhooks),
            "unreachable": self.unreachable,
            "endpoint": self.endpoint or None,
            "drift": self.drift,
            "refused": msgspec.to_builtins(self.causes),
            "alarms": self.alarms(),
        }


def lasting(seconds: float) -> str:
    """The largest unit that holds two of it: 35 s, 119 s, 2 min, 47 h."""
    unit, size = next((each for each in _UNITS if seconds >= 2 * each[1]), _UNITS[-1])
    return f"{int(seconds // size)} {unit}"
