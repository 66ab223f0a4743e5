"""ResourceQuota UPDATE and DELETE: who lowers or removes a quota under running migrations is told what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from pkg.api.core import ResourceQuota
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.planner import Policy, takes_part
from pkg.webhook.admission import ALLOW, AdmissionRequest, Decision, deny
from pkg.webhook.configurations import NAMESPACE_CONTROLLER
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


def refusal(quota: ResourceQuota, verdict: Verdict) -> Decision:
    """The denial of a limit that is too low."""
    wants = ", ".join(
        f"{name} can't be {quota.hard[name]}, the lowest allowed value is {value}"
        for name, value in sorted(verdict.lowest.items())
    )
    return deny(
        f"resource quota {quota.key} holds room for migrating VMs ({_listed(verdict.migrating)}):"
        f" {wants} until they are done"
    )


def correction(lowest: Mapping[str, Quantity]) -> list[dict[str, Any]]:
    """The JSON patch that puts the lowest allowed values in."""
    return [
        {"op": "replace", "path": f"/spec/hard/{_pointer(name)}", "value": str(lowest[name])}
        for name in sorted(lowest)
    ]


class Guard:
    """Answers both webhooks. The caches suggest, the API server decides: a live look precedes every refusal."""

    def __init__(self, view: View, policy: Policy, options: Options) -> None:
        self._view = view
        self._policy = policy
        self._options = options

    async def validate(self, request: AdmissionRequest) -> Decision:
        """UPDATE and DELETE."""
        if self._passes(request):
            return ALLOW
        if request.operation == "DELETE":
            return await self._validate_delete(request.old(ResourceQuota))
        quota = request.new(ResourceQuota)
        verdict = await self._judge(request.old(ResourceQuota), quota)
        return refusal(quota, verdict) if verdict else ALLOW

    async def mutate(self, request: AdmissionRequest) -> Decision:
        """UPDATE by Rancher: the write goes through with the limits that it may have."""
        corrects = self._options.quota_guard is QuotaGuard.CORRECT
        if not corrects or not self._options.is_rancher(request.user_info.username):
            return ALLOW
        verdict = await self._judge(request.old(ResourceQuota), request.new(ResourceQuota))
        return Decision(patch=correction(verdict.lowest)) if verdict else ALLOW

    def _passes(self, request: AdmissionRequest) -> bool:
        user = request.user_info.username
        return self._options.quota_guard is QuotaGuard.OFF or user in (
            NAMESPACE_CONTROLLER,
            self._options.passes,
        )

    async def _judge(self, old: ResourceQuota, new: ResourceQuota) -> Verdict:
        if not takes_part(old):
            return FINE
        # Taking the label off is no way to lower a quota in the same write.
        new = msgspec.structs.replace(
            new, metadata=msgspec.structs.replace(new.metadata, labels=old.metadata.labels)
        )
        cached = self._view.observe(new)
        journal, known = judge_by_journal(old, cached, self._policy), judge(old, cached, self._policy)
        if not journal and not known:
            return FINE
        if at_most(known, journal):
            # The journal came with the request; only the base is out of a cache.
            annotation = await self._view.annotation_live(new.namespace)
            if annotation in (None, cached.limits):
                return journal
            return judge_by_journal(old, replace(cached, limits=annotation), self._policy)
        live = await self._view.observe_live(new)
        if live is None:
            return known
        found = judge(old, live, self._policy)
        return found if at_most(journal, found) else judge_by_journal(old, live, self._policy)

    async def _validate_delete(self, quota: ResourceQuota) -> Decision:
        if not takes_part(quota) or not migrating(self._view.observe(quota), self._policy):
            return ALLOW
        namespace = await self._view.namespace_live(quota.namespace)
        if namespace is None or namespace.deleting:
            return ALLOW
        names = names_of_entries(self._view.observe(quota))
        if not names:
            # A migration without an entry yet, says the cache.
            names = migrating(await self._view.observe_live(quota) or self._view.observe(quota), self._policy)
        if not names:
            return ALLOW
        return deny(
            f"resource quota {quota.key} holds room for migrating VMs ({_listed(names)}): "
            "it can be deleted when they are done"
        )


def _listed(names: Sequence[str], most: int = 10) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "names unknown"


def _pointer(name: str) -> str:
    """A key in a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
