"""ResourceQuota UPDATE and DELETE: a write that lowers or removes a quota under running
migrations, or the limits in its status, is denied, with what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from kubeloop.api.core import ResourceQuota
from pkg.util import constants
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.entries import has_migrating_vm
from pkg.util.resourcequota.managed import annotation_of, is_labelled, is_managed, is_off, is_served, switched_off
from pkg.util.resourcequota.plan import pointer
from pkg.util.resourcequota.policy import Policy
from pkg.webhook.admission import ALLOW, AdmissionRequest, Decision, deny
from pkg.webhook.configurations import NAMESPACE_CONTROLLER, QUOTA_CONTROLLERS
from pkg.webhook.deadline import NoAnswer
from pkg.webhook.options import Options, QuotaGuard
from pkg.webhook.resources.resourcequota.guard import too_low
from pkg.webhook.view import View

EVENT_CORRECTED: Final = "ResourceQuotaCorrected"
_CORRECTED: Final = "a write of {user} that lowered limits below what migrating VMs need was corrected"
Tell = Callable[[ResourceQuota, str, str, str], None]
"""EventRecorder.event."""


def _no_event(_quota: ResourceQuota, _type: str, _reason: str, _message: str) -> None:
    """Writes no event."""


def refusal(quota: ResourceQuota, lowest: Mapping[str, Quantity], migrating: Sequence[str]) -> Decision:
    """The denial of a limit that is too low."""
    wants = ", ".join(
        f"{name} can't be {quota.hard[name]}, the lowest allowed value is {value}" for name, value in lowest.items()
    )
    return deny(
        f"resource quota {quota.key} holds headroom for migrating VMs ({_listed(migrating)}):"
        f" {wants} until they are done",
        reason="migrating",
    )


def corrected(quota: ResourceQuota, lowest: Mapping[str, Quantity], migrating: Sequence[str]) -> str:
    """What became of a write that was too low."""
    wants = ", ".join(f"{name} {quota.hard[name]} -> {value}" for name, value in lowest.items())
    vms = _listed(migrating)
    return f"resource quota {quota.key} holds headroom for migrating VMs ({vms}), corrected: {wants}"


def correction(lowest: Mapping[str, Quantity]) -> list[dict[str, Any]]:
    """The JSON patch that puts the lowest allowed values in."""
    return [
        {"op": "replace", "path": pointer("/spec/hard", name), "value": str(value)} for name, value in lowest.items()
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


@dataclass(eq=False)
class Guard:
    """Answers both webhooks. The caches suggest, the API server decides: a live look precedes every refusal."""

    view: View
    policy: Policy
    options: Options
    tell: Tell = _no_event
    """Writes an Event."""

    async def validate(self, request: AdmissionRequest) -> Decision:
        """UPDATE and DELETE."""
        if self._passes(request):
            return ALLOW
        if request.operation == "DELETE":
            return await self._validate_delete(request.old(ResourceQuota))
        old, quota = request.old(ResourceQuota), request.new(ResourceQuota)
        if request.sub_resource == "status":
            old, quota = _as_enforced(old), _as_enforced(quota)
        if switched_off(quota):
            names = () if switched_off(old) or not is_served(old) else self.view.migrating(old)
            return switching_off(f"resource quota {quota.key}", names)
        lowest = await self._too_low(old, quota)
        if lowest:
            return refusal(quota, lowest, self.view.migrating(quota))
        later = "" if quota.deleting else self._after_the_migrations(old, quota)
        return await self._refuse_while_migrating(old, later) if later else ALLOW

    def _after_the_migrations(self, old: ResourceQuota, new: ResourceQuota) -> str:
        """What the write does to the marks and records of a managed quota that has to wait; "": nothing."""
        if is_managed(old) and not is_managed(new):
            return "its label can be removed"
        if constants.ANNOTATION_OWNER in old.annotations and is_off(new.annotations):
            return f"{constants.ANNOTATION_OWNER} can be removed"
        base = old.annotations.get(constants.ANNOTATION_BASE)
        if is_labelled(old) and base not in (None, new.annotations.get(constants.ANNOTATION_BASE)):
            return f"{constants.ANNOTATION_BASE} can be changed"
        return ""

    async def mutate(self, request: AdmissionRequest) -> Decision:
        """UPDATE by Rancher: the write goes through with the limits that it may have."""
        corrects = self.options.quota_guard is QuotaGuard.CORRECT
        if not corrects or not self.options.is_rancher(request.user_info.username):
            return ALLOW
        quota = request.new(ResourceQuota)
        lowest = await self._too_low(request.old(ResourceQuota), quota)
        if not lowest:
            return ALLOW
        what = corrected(quota, lowest, self.view.migrating(quota))
        if request.authenticated and not request.dry_run:
            # The same words each time: repeats are counted in one event.
            self.tell(quota, "Normal", EVENT_CORRECTED, _CORRECTED.format(user=request.user_info.username))
        audit = {"corrected": ",".join(f"{name}={value}" for name, value in lowest.items())}
        return Decision(patch=correction(lowest), warnings=[what], audit=audit)

    def _passes(self, request: AdmissionRequest) -> bool:
        user = request.user_info.username
        always = QUOTA_CONTROLLERS if request.sub_resource == "status" else ()
        return self.options.quota_guard is QuotaGuard.OFF or user in (
            NAMESPACE_CONTROLLER,
            *always,
            *self.options.passes,
        )

    async def _too_low(self, old: ResourceQuota, new: ResourceQuota) -> Mapping[str, Quantity]:
        """The limits that a write lowers too far, with the lowest allowed values."""
        if not is_managed(old) or switched_off(new):
            return {}
        cached = self.view.namespace(new.namespace)
        if cached is not None and switched_off(cached):
            return {}
        lowest = too_low(old, new, annotation_of(cached), self.policy)
        if not lowest:
            return {}
        live = None
        with suppress(NoAnswer):
            live = await self.view.namespace_live(new.namespace)
        if live is None:
            return lowest
        return {} if switched_off(live) else too_low(old, new, annotation_of(live), self.policy)

    async def _validate_delete(self, quota: ResourceQuota) -> Decision:
        if not is_managed(quota):
            return ALLOW
        return await self._refuse_while_migrating(quota, "it can be deleted")

    async def _refuse_while_migrating(self, quota: ResourceQuota, what: str) -> Decision:
        """For a write that takes the quota away from the migrations whose entries stand on it. Without an answer from
        the API server it is refused."""
        if not is_served(quota) or not has_migrating_vm(quota.annotations):
            return ALLOW
        with suppress(NoAnswer):
            namespace = await self.view.namespace_live(quota.namespace)
            if namespace is None or namespace.deleting or switched_off(namespace):
                return ALLOW
        return deny(
            f"resource quota {quota.key} holds headroom for migrating VMs ({_listed(self.view.migrating(quota))}): "
            f"{what} when they are done",
            reason="migrating",
        )


def _as_enforced(quota: ResourceQuota) -> ResourceQuota:
    """With the limits by which quota admission goes."""
    return replace(quota, spec=replace(quota.spec, hard=quota.status.hard))


def _listed(names: Sequence[str], most: int = 10) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "names unknown"
