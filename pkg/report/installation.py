"""Describes whether the installed headroom runs and its webhooks answer: a report says so before all else. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from kubeloop.api.core import LeaseSpec
from pkg.config.causes import Cause
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.util.kubevirt.migration import seconds_of

_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_REFUSED = {
    "pods": "pods are refused in namespaces with added headroom",
    "resourcequotas": "writes that change the limits of managed quotas are refused",
    "namespaces": "changes of namespaces' quota annotations are refused",
    "virtualmachines": "changes of VMs' volume claim templates are refused",
}
"""The writes that the API server denies while a webhook with Fail does not answer."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A Lease, renewed or released `silent` seconds ago (None: never); or, not `elected`, the ConfigMap of a controller
    that runs without one."""

    holder: str
    silent: float | None
    duration: float
    elected: bool = True

    @property
    def is_live(self) -> bool:
        return bool(self.holder) and self.silent is not None and self.silent < self.duration


def lease_state(spec: LeaseSpec, now: float) -> LeaseState:
    """Returns the state of a Lease. `now`: seconds since the epoch by the API server's clock."""
    silent, duration = seconds_since(spec.renew_time, now), spec.lease_duration_seconds or 15  # client-go's default
    return LeaseState(spec.holder_identity or "", silent, float(duration))


def seconds_since(time: str | None, now: float) -> float | None:
    """Returns None where the RFC 3339 `time` is none; `now` in seconds since the epoch."""
    seconds = seconds_of(time or "")
    return None if seconds is None else max(0.0, now - seconds)


@dataclass(frozen=True, slots=True)
class Installed:
    """The facts about an installation, as far as they can be read. `lease` is None if there is none or it may not be
    read; `webhooks` are the registered ones, with their failure policies; `unreachable` is what the API server says of
    a webhook that it does not reach, "" if it answers, None if that is not known; `absent` are the namespaces in which
    headroom was looked for, if it is nowhere; `drift`: the webhooks were registered with other flags than those of the
    headroom that answers; `unserved` are KubeVirt's kinds that the API server does not know; `served` are patterns of
    the only namespaces that are served; `places` are the namespaces of controllers that may write the same quotas."""

    lease: LeaseState | None = None
    webhooks: Mapping[str, str] = field(default_factory=dict)
    unreachable: str | None = None
    absent: Sequence[str] = ()
    endpoint: str = ""
    drift: bool = False
    problem: str = ""
    causes: Sequence[Cause] = ()
    unserved: Sequence[str] = ()
    served: Sequence[str] = ()
    places: Sequence[str] = ()

    @property
    def is_stopped(self) -> bool:
        """Whether it is known that no controller runs."""
        return bool(self.absent) if self.lease is None else not self.lease.is_live

    def keeper_title(self, keeper: str) -> str:
        if keeper.startswith("none: "):
            return f"not scaled: {keeper.removeprefix('none: ')}"
        absent = ", which does not run" if self.is_stopped and keeper.endswith("headroom") else ""
        return f"kept by {keeper}{absent}"

    def refusal(self, kind: str, key: str) -> str:
        """Returns who refuses the running controller's requests for this object, and why; "" if nobody does."""
        return next((cause.text for cause in self.causes if f"{kind} {key}" in cause.objects), "")

    def unserved_reason(self, namespace: str) -> str:
        """Returns why the running controller leaves the namespace's quotas as they are; "" if it does not."""
        if not self.served or any(fnmatchcase(namespace, pattern) for pattern in self.served):
            return ""
        return f"headroom was started with --only-namespace {', '.join(self.served)}"

    @property
    def summary(self) -> str:
        """The state of controller and webhooks in a few words, without times, which go on."""
        runs = "does not run" if self.is_stopped else "may run" if self.lease is None else "runs"
        return ", its ".join(filter(None, [runs, self.webhooks_summary]))

    @property
    def leader(self) -> str:
        """The running controller in words; "" if none runs, or that is not known."""
        if self.lease is None or not self.lease.is_live:
            return ""
        scope = f", for namespace {', '.join(self.served)} alone" if self.served else ""
        return (f"leader {self.lease.holder}" if self.lease.elected else "without election") + scope

    @property
    def webhooks_summary(self) -> str:
        answer = {None: "may answer", "": "answer"}.get(self.unreachable, "do not answer")
        return f"webhooks {answer}" if self.webhooks else ""

    @property
    def registration(self) -> str:
        names = ", ".join(f"{name.partition('.')[0]} ({policy})" for name, policy in self.webhooks.items())
        answer = self.webhooks_summary.removeprefix("webhooks ")
        return f"webhooks registered at {self.endpoint}: {names}; they {answer}" if self.webhooks else ""

    def alarms(self, namespace: str = "") -> list[str]:
        """Returns what is known to be wrong, a line each; of refused requests first one in the namespace."""
        return [*self._alarms_of_controller(namespace), *self._alarms_of_webhooks()]

    def _alarms_of_controller(self, namespace: str) -> Iterator[str]:
        if self.absent:
            places = f"there is no Lease, ConfigMap or webhook of it in {', '.join(self.absent)}"
            yield f"headroom is not running here: {places} (--headroom-namespace names another namespace)"
        if self.lease is not None and not self.lease.is_live:
            since = "" if self.lease.silent is None else f" for {duration_text(self.lease.silent)}"
            yield f"headroom has not been running{since}: nothing is raised or given back"
        if self.places:
            yield f"headroom runs in {' and in '.join(self.places)}, and each writes the same quotas: stop all but one"
        if self.unserved:
            yield (
                "KubeVirt is not installed, or not as a whole: the API server does not know "
                f"{', '.join(self.unserved)} (kubevirt.io/v1), so that no migration is seen: apply KubeVirt's CRDs, or "
                "wait for its operator"
            )
        if self.problem:
            lines = (cause.line(namespace) for cause in self.causes if namespace and cause.waiting(namespace))
            yield f"headroom cannot do its work: {next(lines, self.problem)}"

    def _alarms_of_webhooks(self) -> Iterator[str]:
        blocking = [name for name, policy in self.webhooks.items() if policy == "Fail"]
        for name in blocking if self.unreachable else ():
            effect = _REFUSED.get(name.removesuffix(f".{WEBHOOK_CONFIGURATION_NAME}"), "what it is about is refused")
            yield f"webhook {name} is registered and does not answer: {effect} ({self.unreachable})"
        if self.unreachable and not blocking:
            effect = "what they are about waits for them, and is not checked"
            yield f"the webhooks are registered and do not answer: {effect} ({self.unreachable})"
        if self.drift:
            yield (
                "the webhooks were registered with other flags than those of the headroom that answers: "
                "`headroom release --only webhooks --force` removes what is left of before"
            )

    def missing(self, *, controller: bool, webhooks: bool) -> Iterator[str]:
        """Yields what keeps these from being known to work, beside the alarms."""
        if controller and self.lease is None and not self.absent:
            yield "no controller was found: there is no Lease or ConfigMap headroom, or they may not be read"
        if webhooks and not self.webhooks:
            yield "no webhooks are registered"
        elif webhooks and self.unreachable is None:
            yield "it is not known whether the API server reaches the webhooks"

    def document(self) -> dict[str, Any]:
        return {
            "running": False if self.is_stopped else None if self.lease is None else True,
            "holder": self.lease.holder or None if self.lease and self.lease.elected else None,
            "secondsSinceRenewal": None if self.lease is None else self.lease.silent,
            "webhooks": dict(self.webhooks),
            "unreachable": self.unreachable,
            "endpoint": self.endpoint or None,
            "drift": self.drift,
            "refused": msgspec.to_builtins(self.causes),
            "alarms": self.alarms(),
        }


def duration_text(seconds: float) -> str:
    """Returns a duration in the largest unit that holds two of it: 35 s, 119 s, 2 min, 47 h."""
    unit, size = next((unit_size for unit_size in _UNITS if seconds >= 2 * unit_size[1]), _UNITS[-1])
    return f"{int(seconds // size)} {unit}"
