"""ResourceQuota UPDATE and DELETE: a write that lowers or removes a quota under running migrations, or the limits in
its status, is denied, with what is allowed; one of Rancher's is corrected. The code that the controller plans with
works out what is allowed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from kubeloop.api.core import EventType, ResourceQuota
from kubeloop.api.quantity import Quantity
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision, deny
from pkg.config.settings import QuotaGuard, Settings
from pkg.util.constants import RANCHER_SUDO_USER
from pkg.util.resourcequota.entries import has_migrating_vm
from pkg.util.resourcequota.facts import pointer
from pkg.util.resourcequota.guard import lowered_too_far, postponed_change, records_of_correction
from pkg.util.resourcequota.managed import is_served, switched_off
from pkg.util.resourcequota.rancher import with_request
from pkg.webhook.configurations import NAMESPACE_CONTROLLER, QUOTA_CONTROLLERS
from pkg.webhook.view import NoAnswer, View

EVENT_CORRECTED: Final = "ResourceQuotaCorrected"


def switching_off(subject: str, names: Sequence[str]) -> Decision:
    """Admits the write, with a warning that names the VMs whose migrations may be refused now."""
    lost = f"the migrations of {_join_names(names)} lose the headroom that was added for them"
    return Decision(warnings=[f"{subject}: headroom gives it back; {lost}"]) if names else ALLOW


@dataclass(eq=False)
class Guard:
    """Answers both webhooks. The caches suggest, the API server decides: a live look precedes every refusal."""

    view: View
    settings: Settings
    tell: Callable[[ResourceQuota, EventType, str, str], None]

    async def validate(self, request: AdmissionRequest) -> Decision:
        of_status = request.sub_resource == "status"
        exempt = (NAMESPACE_CONTROLLER, *self.settings.passes, *(QUOTA_CONTROLLERS if of_status else ()))
        is_exempt = self.settings.quota_guard is QuotaGuard.OFF or request.user_info.username in exempt
        if is_exempt or _is_written_as_rancher(request):
            return ALLOW
        old = request.old(ResourceQuota)
        if request.operation == "DELETE":
            return await self._refuse_while_migrating(old, "it can be deleted")
        quota = request.new(ResourceQuota)
        if switched_off(quota):
            return switching_off(f"resource quota {quota.key}", self.view.migrating(old) if is_served(old) else ())
        if lowest := await self._too_low(old, quota, of_status=of_status):
            limits = (quota.status.hard or {}) if of_status else quota.hard
            wants = (f"{name} can't be {limits[name]}, the lowest allowed value is {lowest[name]}" for name in lowest)
            return deny(f"{self._describe(quota)}: {', '.join(wants)} until they are done", reason="migrating")
        later = postponed_change(old, quota)
        return await self._refuse_while_migrating(old, later) if later else ALLOW

    async def mutate(self, request: AdmissionRequest) -> Decision:
        """Answers an UPDATE by Rancher: the write goes through with the limits that it may have."""
        user = request.user_info.username
        if self.settings.quota_guard is not QuotaGuard.CORRECT or not self.settings.is_rancher(user):
            return ALLOW
        old, quota = request.old(ResourceQuota), request.new(ResourceQuota)
        if not (lowest := await self._too_low(old, quota, grants=not _is_written_as_rancher(request))):
            return ALLOW
        if not request.dry_run:
            # The same words each time: repeats are counted in one event.
            message = f"a write of {user} that lowered limits below what migrating VMs need was corrected"
            self.tell(quota, "Normal", EVENT_CORRECTED, message)
        limits = [{"op": "replace", "path": pointer("/spec/hard", name), "value": str(lowest[name])} for name in lowest]
        wants = ", ".join(f"{name} {quota.hard[name]} -> {value}" for name, value in lowest.items())
        return Decision(
            patch=[*limits, *records_of_correction(old, quota, lowest)],
            warnings=[f"{self._describe(quota)}, corrected: {wants}"],
            audit={"corrected": ",".join(f"{name}={value}" for name, value in lowest.items())},
        )

    async def _too_low(
        self, old: ResourceQuota, new: ResourceQuota, *, of_status: bool = False, grants: bool = False
    ) -> Mapping[str, Quantity]:
        decide = partial(lowered_too_far, old, new, self.settings.policy, of_status=of_status, grants=grants)
        suggested = decide(self.view.namespace(new.namespace))
        with suppress(NoAnswer):
            if suggested and (live := await self.view.namespace_live(new.namespace)) is not None:
                return decide(live)
        return suggested

    async def _refuse_while_migrating(self, quota: ResourceQuota, allowed_change: str) -> Decision:
        quota = with_request(quota, self.view.namespace(quota.namespace))
        if not is_served(quota) or not has_migrating_vm(quota.annotations):
            return ALLOW
        with suppress(NoAnswer):
            namespace = await self.view.namespace_live(quota.namespace)
            if namespace is None or namespace.deleting or switched_off(namespace):
                return ALLOW
        return deny(f"{self._describe(quota)}: {allowed_change} when they are done", reason="migrating")

    def _describe(self, quota: ResourceQuota) -> str:
        names = _join_names(self.view.migrating(quota))
        return f"resource quota {quota.key} holds headroom for migrating VMs ({names})"


def _is_written_as_rancher(request: AdmissionRequest) -> bool:
    """Reports whether headroom writes as Rancher (impersonate): entries, where Rancher writes spec.hard alone."""
    if request.user_info.username != RANCHER_SUDO_USER or request.operation != "UPDATE":
        return False
    return request.old(ResourceQuota).annotations != request.new(ResourceQuota).annotations


def _join_names(names: Sequence[str]) -> str:
    text = ", ".join(names[:10])
    return f"{text} and {len(names) - 10} more" if len(names) > 10 else text or "names unknown"
