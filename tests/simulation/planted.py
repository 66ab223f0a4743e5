"""Faults to plant: the simulation has to find each of them (`make simulate PLANTED=clock`). They stand at headroom's
edges (its webhooks by path, what it sends), so that they stay what they are while its inside changes.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kubeloop.api.resource_list import maximum
from kubeloop.client.errors import ApiError
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision, Hook
from pkg.config.management import Management
from pkg.controller.resourcequota import resourcequota_controller
from pkg.util.constants import LABEL_MIGRATION_JOB_UID, LOCK_PATH
from pkg.util.kubevirt.migration import parse_time
from pkg.util.managedtenantquota.targets import RefusedTarget, WindowQuota
from pkg.util.resourcequota import side_usage
from pkg.util.resourcequota.vm import VmUsage
from pkg.webhook.configurations import VALIDATE_POD
from pkg.webhook.resources import pod
from tests.simulation import programs, server
from tests.simulation.admission import HEADROOM, KUBEVIRT

Hooks = Mapping[str, Hook]
Instead = Callable[[AdmissionRequest, Management], "Any"]
"""Whether the request is let through, whatever the webhook would say; async."""


def _lets_through(path: str, instead: Instead) -> None:
    def plant(hooks: Hooks, management: Management) -> Hooks:
        async def hook(request: AdmissionRequest) -> Decision:
            return ALLOW if await instead(request, management) else await hooks[path](request)

        return {**hooks, path: hook}

    programs.PLANTED.append(plant)


def targets() -> None:
    """A migration's target passes the reserve whatever its size."""

    async def is_target(request: AdmissionRequest, _: Management) -> bool:
        return request.user_info.username == KUBEVIRT and LABEL_MIGRATION_JOB_UID.encode() in bytes(request.object)

    _lets_through(VALIDATE_POD, is_target)


def label() -> None:
    """The reserve ends with the last entry, though status.hard is still above spec.hard."""

    async def holds_nothing(request: AdmissionRequest, management: Management) -> bool:
        quotas = management.resource_quotas.cache().list(request.namespace)
        return not any("migrating" in key for quota in quotas for key in quota.annotations)

    _lets_through(VALIDATE_POD, holds_nothing)


def unread() -> None:
    """While nothing can be read live, the caches decide, and what they let in is forgotten."""

    async def fits_the_cache(request: AdmissionRequest, management: Management) -> bool:
        try:
            await management.client.transport.request("GET", "/api/v1/namespaces", timeout=1.0, retry=False)
        except ApiError:
            return True
        return False

    _lets_through(VALIDATE_POD, fits_the_cache)


def clock() -> None:
    """A lock's age is told by the replica's own clock."""

    async def is_over(request: AdmissionRequest, management: Management) -> bool:
        lock = management.locks.cache().get(name=f"lock.{request.namespace}.com")
        return lock is not None and time.time() - parse_time(lock.metadata.creation_timestamp) > programs.LOCK_LIMIT

    _lets_through(LOCK_PATH, is_over)


def windows() -> None:
    """A window adds the whole of a target, whatever its source has."""
    original = WindowQuota._vm

    def whole(self: WindowQuota, target: RefusedTarget) -> VmUsage:
        vm = original(self, target)
        return replace(vm, need=maximum(vm.need or {}, vm.pending_usage))

    WindowQuota._vm = whole  # type: ignore[method-assign]


def defaults() -> None:
    """Adds what a LimitRange gives to later pods."""
    side_usage.source_usage_today = side_usage.target_usage  # type: ignore[attr-defined]


def retries() -> None:
    """A pod that another quota refuses is let through, and holds its place for as long as it is remembered."""

    async def never(*_: object) -> str:
        return ""

    pod.PodValidator._refused_by_quota = never  # type: ignore[method-assign, assignment]


def memory() -> None:
    """Forgets what is remembered of an entry before what it led to is written."""
    plan = resourcequota_controller.plan  # type: ignore[attr-defined]

    def forgetful(*observed: Any) -> Any:
        decided = plan(*observed)
        return replace(decided, timers=replace(decided.timers, unexplained={})) if decided else decided

    resourcequota_controller.plan = forgetful  # type: ignore[attr-defined, assignment]


def greedy() -> None:
    """A pod is refused as long as a migration is under way."""

    def plant(hooks: Hooks, management: Management) -> Hooks:
        async def hook(request: AdmissionRequest) -> Decision:
            quotas = management.resource_quotas.cache().list(request.namespace)
            has_migration = any("migrating-" in key for quota in quotas for key in quota.annotations)
            if has_migration and request.user_info.username != KUBEVIRT:
                return Decision(allowed=False, message="the quota is used up")
            return await hooks[VALIDATE_POD](request)

        return {**hooks, VALIDATE_POD: hook}

    programs.PLANTED.append(plant)


def _never_sends(method: str, path: str) -> None:
    """Requests of headroom's that are lost."""
    send = server.ServerConnection.request

    async def request(self: server.ServerConnection, sent: str, resource_path: str, **options: Any) -> bytes:
        if self.user == HEADROOM and sent == method and path in resource_path:
            return b"{}"
        return await send(self, sent, resource_path, **options)

    server.ServerConnection.request = request  # type: ignore[method-assign, assignment]


def locked() -> None:
    """Locks are never deleted."""
    _never_sends("DELETE", "/validatingwebhookconfigurations/lock.")


def dry_run() -> None:
    """--dry-run writes."""
    programs.DRY_RUN = {}


FAULTS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (*(targets, windows, label, unread, clock, defaults, retries), *(memory, greedy, locked, dry_run))
}
