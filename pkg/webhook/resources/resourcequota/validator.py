"""ResourceQuota UPDATE and DELETE: a write that lowers or removes a quota under running
migrations, or the limits in its status, is denied, with what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kubeloop.api.core import EventType, Namespace, ResourceQuota
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, marshal, parse_resource_list
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision, deny
from pkg.config.settings import QuotaGuard, Settings
from pkg.util import constants
from pkg.util.resourcequota.base import applied_to, granted_by_record
from pkg.util.resourcequota.entries import has_migrating_vm
from pkg.util.resourcequota.facts import pointer
from pkg.util.resourcequota.guard import status_too_low, too_low
from pkg.util.resourcequota.managed import is_default, is_managed, is_off, is_served, switched_off
from pkg.util.resourcequota.rancher import annotation_of, granted_to, request_of, with_request
from pkg.webhook.configurations import NAMESPACE_CONTROLLER, QUOTA_CONTROLLERS
from pkg.webhook.view import NoAnswer, View

EVENT_CORRECTED: Final = "ResourceQuotaCorrected"
_CORRECTED: Final = "a write of {user} that lowered limits below what migrating VMs need was corrected"
Tell = Callable[[ResourceQuota, EventType, str, str], None]
"""EventRecorder.event."""


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
    settings: Settings
    tell: Tell

    async def validate(self, request: AdmissionRequest) -> Decision:
        """UPDATE and DELETE."""
        if self._passes(request) or _is_written_as_rancher(request):
            return ALLOW
        if request.operation == "DELETE":
            return await self._refuse_while_migrating(request.old(ResourceQuota), "it can be deleted")
        old, quota = request.old(ResourceQuota), request.new(ResourceQuota)
        of_status = request.sub_resource == "status"
        if switched_off(quota):
            names = self.view.migrating(old) if is_served(old) else ()
            return switching_off(f"resource quota {quota.key}", names)
        if lowest := await self._too_low(old, quota, of_status=of_status):
            limits = (quota.status.hard or {}) if of_status else quota.hard
            wants = (
                f"{name} can't be {limits[name]}, the lowest allowed value is {value}" for name, value in lowest.items()
            )
            return self._denied(quota, f"{', '.join(wants)} until they are done")
        later = self._after_the_migrations(old, quota)
        return await self._refuse_while_migrating(old, later) if later else ALLOW

    def _after_the_migrations(self, old: ResourceQuota, new: ResourceQuota) -> str:
        """What the write does to the marks and records of a managed quota that has to wait; "": nothing."""
        if is_managed(old) and not is_managed(new):
            return "its label can be removed"
        if constants.ANNOTATION_OWNER in old.annotations and is_off(new.annotations):
            return f"{constants.ANNOTATION_OWNER} can be removed"
        base = old.annotations.get(constants.ANNOTATION_BASE)
        if base not in (None, new.annotations.get(constants.ANNOTATION_BASE)):
            return f"{constants.ANNOTATION_BASE} can be changed"
        return ""

    async def mutate(self, request: AdmissionRequest) -> Decision:
        """UPDATE by Rancher: the write goes through with the limits that it may have."""
        corrects = self.settings.quota_guard is QuotaGuard.CORRECT
        if not corrects or not self.settings.is_rancher(request.user_info.username):
            return ALLOW
        old, quota = request.old(ResourceQuota), request.new(ResourceQuota)
        lowest = await self._too_low(old, quota, grants=not _is_written_as_rancher(request))
        if not lowest:
            return ALLOW
        if not request.dry_run:
            # The same words each time: repeats are counted in one event.
            self.tell(quota, "Normal", EVENT_CORRECTED, _CORRECTED.format(user=request.user_info.username))
        wants = ", ".join(f"{name} {quota.hard[name]} -> {value}" for name, value in lowest.items())
        return Decision(
            patch=[
                *({"op": "replace", "path": pointer("/spec/hard", n), "value": str(v)} for n, v in lowest.items()),
                *_records(old, quota, lowest),
            ],
            warnings=[f"{self._holds(quota)}, corrected: {wants}"],
            audit={"corrected": ",".join(f"{name}={value}" for name, value in lowest.items())},
        )

    def _passes(self, request: AdmissionRequest) -> bool:
        user = request.user_info.username
        always = QUOTA_CONTROLLERS if request.sub_resource == "status" else ()
        return self.settings.quota_guard is QuotaGuard.OFF or user in (
            NAMESPACE_CONTROLLER,
            *always,
            *self.settings.passes,
        )

    async def _too_low(
        self, old: ResourceQuota, new: ResourceQuota, *, of_status: bool = False, grants: bool = False
    ) -> Mapping[str, Quantity]:
        """The limits that a write lowers too far, with the lowest allowed values. `of_status`: it is one of the status;
        `grants`: it is Rancher's, and its limits are a new grant.

        While headroom requests what it adds of Rancher, Rancher's own writes already hold that, and nobody else's are
        let through."""
        if not is_managed(old) or switched_off(new):
            return {}

        def lowest(namespace: Namespace | None) -> ResourceList:
            if namespace is not None and (switched_off(namespace) or request_of(namespace)):
                return {}
            if of_status:
                return status_too_low(old, new)
            granted = granted_to(old, namespace)
            if granted is not None and grants:
                with suppress(QuantityError):
                    granted = {**granted, **parse_resource_list(new.hard)}
            return too_low(old, new, annotation_of(namespace), self.settings.policy, granted)

        suggested = lowest(self.view.namespace(new.namespace))
        with suppress(NoAnswer):
            if suggested and (live := await self.view.namespace_live(new.namespace)) is not None:
                return lowest(live)
        return suggested

    async def _refuse_while_migrating(self, quota: ResourceQuota, what: str) -> Decision:
        """For a write that takes the quota away from the migrations whose entries stand on it. Without an answer from
        the API server it is refused."""
        quota = with_request(quota, self.view.namespace(quota.namespace))
        if not is_served(quota) or not has_migrating_vm(quota.annotations):
            return ALLOW
        with suppress(NoAnswer):
            namespace = await self.view.namespace_live(quota.namespace)
            if namespace is None or namespace.deleting or switched_off(namespace):
                return ALLOW
        return self._denied(quota, f"{what} when they are done")

    def _denied(self, quota: ResourceQuota, what: str) -> Decision:
        return deny(f"{self._holds(quota)}: {what}", reason="migrating")

    def _holds(self, quota: ResourceQuota) -> str:
        return f"resource quota {quota.key} holds headroom for migrating VMs ({_listed(self.view.migrating(quota))})"


def _is_written_as_rancher(request: AdmissionRequest) -> bool:
    """Reports whether headroom writes under Rancher's name (--rancher-quotas impersonate): entries and records, where
    Rancher writes spec.hard alone."""
    if request.user_info.username != constants.RANCHER_SUDO_USER or request.operation != "UPDATE":
        return False
    return request.old(ResourceQuota).annotations != request.new(ResourceQuota).annotations


def _records(old: ResourceQuota, new: ResourceQuota, corrected: Mapping[str, Quantity]) -> list[dict[str, str]]:
    """The patch by which a corrected write of Rancher's is recorded as its grant, on a quota that has records."""
    if not is_default(old) or constants.ANNOTATION_BASE not in old.annotations:
        return []
    records = {
        constants.ANNOTATION_BASE: marshal({**granted_by_record(old), **parse_resource_list(new.hard)}),
        constants.ANNOTATION_APPLIED: marshal({**applied_to(old), **corrected}),
    }
    return [{"op": "add", "path": pointer("/metadata/annotations", k), "value": v} for k, v in records.items()]


def _listed(names: Sequence[str], most: int = 10) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "names unknown"
