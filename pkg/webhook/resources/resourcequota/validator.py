"""ResourceQuota UPDATE and DELETE: a write that lowers or removes a quota under running
migrations is denied, with what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec

from kubeloop.api.core import ResourceQuota
from pkg.util import constants
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.managed import is_labelled, is_managed, is_off, switched_off
from pkg.util.resourcequota.policy import Policy
from pkg.webhook.admission import ALLOW, AdmissionRequest, Decision, deny
from pkg.webhook.configurations import NAMESPACE_CONTROLLER
from pkg.webhook.deadline import NoAnswer
from pkg.webhook.options import Options, QuotaGuard
from pkg.webhook.resources.resourcequota.guard import (
    FINE,
    Verdict,
    at_most,
    judge,
    judge_by_journal,
    migrating,
    names_of_entries,
)
from pkg.webhook.view import View

EVENT_CORRECTED: Final = "ResourceQuotaCorrected"
Tell = Callable[[ResourceQuota, str, str, str], None]
"""EventRecorder.event."""


def _no_event(_quota: ResourceQuota, _type: str, _reason: str, _message: str) -> None:
    """Writes no event."""


def refusal(quota: ResourceQuota, verdict: Verdict) -> Decision:
    """The denial of a limit that is too low."""
    wants = ", ".join(
        f"{name} can't be {quota.hard[name]}, the lowest allowed value is {value}"
        for name, value in sorted(verdict.lowest.items())
    )
    return deny(
        f"resource quota {quota.key} holds headroom for migrating VMs ({_listed(verdict.migrating)}):"
        f" {wants} until they are done",
        reason="migrating",
    )


def corrected(quota: ResourceQuota, verdict: Verdict) -> str:
    """What became of a write that was too low."""
    wants = ", ".join(
        f"{name} {quota.hard[name]} -> {value}" for name, value in sorted(verdict.lowest.items())
    )
    vms = _listed(verdict.migrating)
    return f"resource quota {quota.key} holds headroom for migrating VMs ({vms}), corrected: {wants}"


def correction(lowest: Mapping[str, Quantity]) -> list[dict[str, Any]]:
    """The JSON patch that puts the lowest allowed values in."""
    return [
        {"op": "replace", "path": f"/spec/hard/{_pointer(name)}", "value": str(lowest[name])}
        for name in sorted(lowest)
    ]


def switching_off(what: str, names: Sequence[str]) -> Decision:
    """Always admitted, with a warning that names the VMs whose migrations may be refused now."""
    if not names:
        return ALLOW
    return Decision(
        warnings=[
            f"{what}: headroom gives it back; "
            f"the migrations of {_listed(names)} lose the headroom that was added for them"
        ]
    )


class Guard:
    """Answers both webhooks. The caches suggest, the API server decides: a live look precedes every refusal."""

    def __init__(self, view: View, policy: Policy, options: Options, tell: Tell = _no_event) -> None:
        """`tell` writes an Event."""
        self._tell = tell
        self._view = view
        self._policy = policy
        self._options = options

    async def validate(self, request: AdmissionRequest) -> Decision:
        """UPDATE and DELETE."""
        if self._passes(request):
            return ALLOW
        if request.operation == "DELETE":
            return await self._validate_delete(request.old(ResourceQuota))
        old, quota = request.old(ResourceQuota), request.new(ResourceQuota)
        if switched_off(quota):
            names = () if switched_off(old) else migrating(self._view.observe(old), self._policy)
            return switching_off(f"resource quota {quota.key}", names)
        verdict = await self._judge(old, quota)
        if verdict:
            return refusal(quota, verdict)
        later = "" if quota.deleting else self._after_the_migrations(old, quota)
        return await self._refuse_while_migrating(old, later) if later else ALLOW

    def _after_the_migrations(self, old: ResourceQuota, new: ResourceQuota) -> str:
        """What the write does to the marks and records of a managed quota that has to wait; "": nothing."""
        if is_managed(old) and not is_managed(new):
            return "its label can be removed"
        if constants.ANNOTATION_OWNER in old.annotations and is_off(new.annotations, self._policy.mode):
            return f"{constants.ANNOTATION_OWNER} can be removed"
        base = old.annotations.get(constants.ANNOTATION_BASE)
        if is_labelled(old) and base not in (None, new.annotations.get(constants.ANNOTATION_BASE)):
            return f"{constants.ANNOTATION_BASE} can be changed"
        return ""

    async def mutate(self, request: AdmissionRequest) -> Decision:
        """UPDATE by Rancher: the write goes through with the limits that it may have."""
        corrects = self._options.quota_guard is QuotaGuard.CORRECT
        if not corrects or not self._options.is_rancher(request.user_info.username):
            return ALLOW
        quota = request.new(ResourceQuota)
        verdict = await self._judge(request.old(ResourceQuota), quota)
        if not verdict:
            return ALLOW
        what = corrected(quota, verdict)
        if request.authenticated and not request.dry_run:
            self._tell(quota, "Normal", EVENT_CORRECTED, what)
        audit = {"corrected": ",".join(f"{name}={value}" for name, value in sorted(verdict.lowest.items()))}
        return Decision(patch=correction(verdict.lowest), warnings=[what], audit=audit)

    def _passes(self, request: AdmissionRequest) -> bool:
        user = request.user_info.username
        return self._options.quota_guard is QuotaGuard.OFF or user in (
            NAMESPACE_CONTROLLER,
            *self._options.passes,
        )

    async def _judge(self, old: ResourceQuota, new: ResourceQuota) -> Verdict:
        if not is_managed(old) or switched_off(new):
            return FINE
        # Taking the label off is no way to lower a quota in the same write.
        new = msgspec.structs.replace(
            new, metadata=msgspec.structs.replace(new.metadata, labels=old.metadata.labels)
        )
        cached = self._view.observe(new)
        if cached.namespace_off:
            return FINE
        journal, known = judge_by_journal(old, cached, self._policy), judge(old, cached, self._policy)
        if not journal and not known:
            return FINE
        if at_most(known, journal):
            # The journal came with the request; only the base is out of a cache.
            try:
                annotation = await self._view.annotation_live(new.namespace)
            except NoAnswer:
                return journal
            if annotation in (None, cached.limits):
                return journal
            return judge_by_journal(old, replace(cached, limits=annotation), self._policy)
        try:
            live = await self._view.observe_live(new)
        except NoAnswer:
            return known
        if live is None:
            return known
        if live.namespace_off:
            return FINE
        found = judge(old, live, self._policy)
        return found if at_most(journal, found) else judge_by_journal(old, live, self._policy)

    async def _validate_delete(self, quota: ResourceQuota) -> Decision:
        if not is_managed(quota):
            return ALLOW
        return await self._refuse_while_migrating(quota, "it can be deleted")

    async def _refuse_while_migrating(self, quota: ResourceQuota, what: str) -> Decision:
        """For a write that takes the quota away from the migrations. Without an answer from the API server it is
        refused when the quota's own entries or the caches show one."""
        cached = self._view.observe(quota)
        if cached.namespace_off or is_off(quota.annotations, self._policy.mode):
            return ALLOW
        entries, known = names_of_entries(cached), migrating(cached, self._policy)
        names = entries or known
        if not names:
            return ALLOW
        with suppress(NoAnswer):
            namespace = await self._view.namespace_live(quota.namespace)
            if namespace is None or namespace.deleting:
                return ALLOW
            if not (entries and known):
                # An entry that is not written yet, or one whose migration the cache does not show.
                names = migrating(await self._view.observe_live(quota) or cached, self._policy)
                if not names:
                    return ALLOW
        return deny(
            f"resource quota {quota.key} holds headroom for migrating VMs ({_listed(names)}): "
            f"{what} when they are done",
            reason="migrating",
        )


def _listed(names: Sequence[str], most: int = 10) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "names unknown"


def _pointer(name: str) -> str:
    """A key in a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
