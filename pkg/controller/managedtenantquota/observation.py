"""Gathers what a decision about a namespace with a budget looks at: from the caches, and from the API server itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import Lease
from kubeloop.api.registry import (
    LEASES,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    RESOURCE_QUOTAS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from kubeloop.client.client import Client, own_user
from kubeloop.client.errors import ApiError, Forbidden, NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.webhook.registration import NotReached
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.config.probe import PROBE_CONFIGURATION, probe
from pkg.controller.options import Options
from pkg.util.constants import NEVER_LOCKED, UPSTREAM_LEASE, WEBHOOK_CONFIGURATION_NAME
from pkg.util.kubevirt.installed import virt_controllers
from pkg.util.managedtenantquota.lock import Lock, Webhook, client_config, lock_name, lock_webhook, moment, recognise
from pkg.util.managedtenantquota.model import Observed
from pkg.util.managedtenantquota.record import record_of
from pkg.util.managedtenantquota.targets import observe
from pkg.util.resourcequota.observe import Observer as FactsObserver

T = TypeVar("T")


class CannotLock(Exception):
    """Why a namespace cannot be locked; the text is for the administrator who can fix it."""


@dataclass(eq=False)
class Observer:
    """`cached` costs no request and suggests; `live` costs seven and decides. `clock`: the API server's, in seconds
    since the epoch."""

    facts: FactsObserver
    client: Client
    locks: CacheReader[ValidatingWebhookConfiguration]
    options: Options
    clock: Callable[[], float]
    _own: str = field(default="", init=False)
    """Our user name."""

    def concerns_us(self, namespace: str) -> bool:
        """Whether there is a budget, a lock or a quota that records how it was: most namespaces have none."""
        if self._lock(namespace) or self.facts.source.budgets.list(namespace):
            return True
        return any(map(record_of, self.facts.source.quotas.list(namespace)))

    def cached(self, namespace: str) -> Observed:
        return observe(self.facts, self._lock(namespace), namespace, self.clock())

    async def live(self, namespace: str) -> Observed:
        """Budgets, quotas and lock as the API server has them now. Raises ApiError.

        The budgets are read first: a status that holds nothing then means that the quotas, read after it, are as they
        were. The save is bound to the version of that status.
        """
        budgets, (lock, no_lock), (upstream, unknown), (made, not_served) = await asyncio.gather(
            list_installed(self.client.resource(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS), namespace),
            _or_why(self._live_lock(namespace)),
            _or_why(self._upstream()),
            _or_why(self._wanted_lock(namespace)),
        )
        wanted, holder = made or (None, "")
        return replace(
            self.cached(namespace),
            budgets=budgets,
            quotas=await self.client.resource(RESOURCE_QUOTAS).list(namespace),
            lock=lock,
            upstream=upstream or "",
            wanted_lock=wanted,
            holder=holder,
            why_not=no_lock or unknown or not_served,
        )

    def _lock(self, namespace: str) -> Lock | None:
        return recognise(self.locks.get(name=lock_name(namespace)))

    async def _live_lock(self, namespace: str) -> Lock | None:
        try:
            found = await self.client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS).get(name=lock_name(namespace))
        except NotFound:
            return None
        if (lock := recognise(found)) is None:
            raise CannotLock(f"there is a ValidatingWebhookConfiguration {found.name} that is not a lock")
        return lock

    async def _upstream(self) -> str:
        """Who holds the Lease of KubeVirt's managed-tenant-quota controller, wherever that is installed."""
        try:
            leases = await self.client.resource(LEASES).list(field_selector=f"metadata.name={UPSTREAM_LEASE}")
        except (NotFound, Forbidden):
            return ""
        except ApiError as exc:
            raise CannotLock(f"the API server does not say whether KubeVirt's own controller runs: {exc}") from exc
        held = next((lease.key for lease in leases if _is_held(lease, self.clock())), "")
        return held and f"KubeVirt's managed-tenant-quota controller runs, it holds Lease {held}"

    async def _wanted_lock(self, namespace: str) -> tuple[Callable[[Collection[str]], Webhook], str]:
        """How a namespace's lock shall look, and what it says of its holder. Raises CannotLock."""
        kubevirts, options = self.facts.source.kubevirts.list(), self.options
        never = [*NEVER_LOCKED, options.namespace, *options.never_lock, *(each.namespace for each in kubevirts)]
        if any(fnmatchcase(namespace, pattern) for pattern in never):
            raise CannotLock("it is a system namespace, or one that --never-lock names")
        try:
            where = await self._where()
            await probe(self.client, options.namespace)
            self._own = self._own or await own_user(self.client)
        except NotReached as exc:
            raise CannotLock(f"the API server does not reach headroom's webhook: {exc}") from exc
        except ApiError as exc:
            raise CannotLock(f"the API server does not say whether it reaches headroom's webhook: {exc}") from exc
        users = [user for user in (self._own, *options.controller_users) if user]
        if not users:
            raise CannotLock("the API server does not report headroom's user name: set it with --controller-user")
        accounts = virt_controllers(kubevirts, options.kubevirt_users)

        def wanted(admitted: Collection[str]) -> Webhook:
            return lock_webhook(namespace, where, holders=users, virt_controllers=accounts, admitted=admitted)

        return wanted, f"headroom ({self._own or ', '.join(users)}) on {socket.gethostname()}"

    async def _where(self) -> dict[str, Any]:
        """From the configuration that is probed next: a broken registration is not copied."""
        found = None
        with suppress(NotFound):
            proven, registered = await asyncio.gather(
                self.client.resource(MUTATING_WEBHOOK_CONFIGURATIONS).get(name=PROBE_CONFIGURATION),
                self.client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS).get(name=WEBHOOK_CONFIGURATION_NAME),
            )
            found = client_config(proven.webhooks, registered.webhooks)
        if found is None:
            raise CannotLock(
                f"headroom's webhooks are not registered ({PROBE_CONFIGURATION} and {WEBHOOK_CONFIGURATION_NAME}, with "
                "a caBundle): run `headroom controller --webhook` or `headroom webhook`"
            )
        return found


async def _or_why(read: Awaitable[T]) -> tuple[T | None, str]:
    """What was read. What only a lock needs is no reason not to restore: None, and why."""
    try:
        return await read, ""
    except CannotLock as reason:
        return None, str(reason)


def _is_held(lease: Lease, now: float) -> bool:
    """Whether its holder has renewed it in time; `now` in seconds since the epoch."""
    spec = lease.spec
    return bool(spec.holder_identity) and moment(spec.renew_time) + (spec.lease_duration_seconds or 0) > now
