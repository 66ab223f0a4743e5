"""Gathers what a decision about a namespace with a budget looks at: from the caches, and from the API server itself."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from cachetools import LRUCache

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.registry import MUTATING_WEBHOOK_CONFIGURATIONS, RESOURCE_QUOTAS, VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client, own_user
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.controllers.cache_reader import CacheReader, newer
from kubeloop.webhook.registration import NotReached
from kubeloop.workqueue.queue import loop_time
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.api.mtq import VirtualMachineMigrationResourceQuota as Budget
from pkg.config.rancher_quotas import RancherWrites
from pkg.config.settings import Settings
from pkg.selfcheck.probe import PROBE_CONFIGURATION, probe
from pkg.util.constants import NEVER_LOCKED, WEBHOOK_CONFIGURATION_NAME
from pkg.util.kubevirt.rendering import virt_controllers
from pkg.util.managedtenantquota.lock import Webhook, client_config, lock_name, lock_webhook, recognise
from pkg.util.managedtenantquota.model import Observed, observe
from pkg.util.managedtenantquota.record import record_of
from pkg.util.resourcequota.managed import is_default
from pkg.util.resourcequota.observe import Observer as FactsObserver
from pkg.util.resourcequota.policy import RancherQuotas

T = TypeVar("T")
Known = TypeVar("Known", bound=Object)

_UID, _VERSION = attrgetter("uid"), attrgetter("metadata.resource_version")
_PROVEN_SECONDS = 5.0
"""For so long it counts that the API server has reached the webhook. A lock that stands then needs no answer for what
it lets through, and refuses the rest."""


class CannotLock(Exception):
    """The reason why a namespace cannot be locked; the text is for the administrator who can fix it."""


@dataclass(eq=False)
class WindowObserver:
    """Observes a namespace. `cached` costs no request and suggests; `live` costs three, and three more to prove the
    webhook, and decides. `clock`: the API server's, in seconds since the epoch."""

    facts: FactsObserver
    client: Client
    locks: CacheReader[ValidatingWebhookConfiguration]
    settings: Settings
    clock: Callable[[], float]
    rancher: RancherWrites
    _cached_locks: LRUCache[str, None] = field(default_factory=lambda: LRUCache(4096), init=False)
    """The uids of locks that the cache has shown: one of these that it no longer shows was deleted."""
    _own_user: str = field(default="", init=False)
    """Our user name."""
    _proven: tuple[float, dict[str, Any]] = field(default=(-math.inf, {}), init=False)
    """Until when it counts that the API server has reached the webhook, and where."""

    def concerns_us(self, namespace: str) -> bool:
        """Reports whether there is a budget, a lock or a quota with a record: most namespaces have none."""
        source = self.facts.source
        if recognise(self.locks.get(name=lock_name(namespace))) or source.budgets.list(namespace):
            return True
        return any(map(record_of, source.quotas.list(namespace)))

    def cached(self, namespace: str) -> Observed:
        lock = recognise(self.locks.get(name=lock_name(namespace)))
        if lock:
            self._cached_locks[lock.configuration.uid] = None
        return observe(self.facts, lock, namespace, self.clock())

    def continued(self, previous: Observed, opens: bool, is_recent: bool) -> Observed | None:
        """Returns the last observation, with each object that is newer in the cache. Every write is bound to the
        version of what it changes. None if the API server has to be asked: the caches have other objects, or older ones
        although the last observation is not recent, or a window is to be widened and the webhook is not proven."""
        cached = self.cached(previous.namespace)
        if is_recent and previous.lock and previous.lock.configuration.uid not in self._cached_locks:
            cached = replace(cached, lock=previous.lock)
        if _fields(cached, _UID) != _fields(previous, _UID) or (opens and not self.is_proven()):
            return None
        locks = [observed.lock.configuration for observed in (cached, previous) if observed.lock]
        observed = replace(
            previous,
            exists=cached.exists,
            facts=cached.facts,
            now=cached.now,
            refused_writes=(),
            budgets=_newest(cached.budgets, previous.budgets),
            quotas=_newest(cached.quotas, previous.quotas),
            lock=recognise(newer(*locks)) if locks else None,
        )
        return observed if is_recent or _fields(observed, _VERSION) == _fields(cached, _VERSION) else None

    async def live(self, namespace: str) -> Observed:
        """Returns the observation with live budgets, quotas and lock. Raises ApiError."""
        (budgets, quotas), configuration, (render_webhook, not_served) = await asyncio.gather(
            self._budgets_and_quotas(namespace),
            _get_or_none(self.client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS).get(name=lock_name(namespace))),
            _value_or_reason(self._lock_renderer(namespace)),
        )
        lock, foreign = recognise(configuration), ""
        if configuration and not lock:
            foreign = f"there is a ValidatingWebhookConfiguration {configuration.name} that is not a lock"
        return replace(
            self.cached(namespace),
            budgets=budgets,
            quotas=quotas,
            lock=lock,
            render_webhook=render_webhook,
            lock_owner=f"headroom ({self._own_user or ', '.join(self.settings.controller_users)})"
            f" on {socket.gethostname()}",
            lock_unavailable_reason=foreign or not_served,
        )

    async def _budgets_and_quotas(self, namespace: str) -> tuple[Sequence[Budget], Sequence[ResourceQuota]]:
        """Reads the budgets first: a status that holds nothing then means that the quotas, read after it, are as they
        were. The save is bound to the version of that status."""
        budgets = await list_installed(self.client.resource(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS), namespace)
        return budgets, await self.client.resource(RESOURCE_QUOTAS).list(namespace)

    async def _lock_renderer(self, namespace: str) -> Callable[[Collection[str]], Webhook]:
        """Returns the function that renders the namespace's lock. Raises CannotLock, ApiError."""
        kubevirts, settings = self.facts.source.kubevirts.list(), self.settings
        never = [*NEVER_LOCKED, settings.namespace, *settings.never_lock, *(obj.namespace for obj in kubevirts)]
        if any(fnmatchcase(namespace, pattern) for pattern in never):
            raise CannotLock("it is a system namespace, or one that --never-lock names")
        if locked := ", ".join(obj.name for obj in self.facts.source.quotas.list(namespace) if self._is_locked(obj)):
            raise CannotLock(f"only Rancher may write resource quota {locked} ({self.rancher.reason})")
        config = await self._proven_config()
        self._own_user = self._own_user or await own_user(self.client)
        users = [user for user in (self._own_user, *settings.controller_users) if user]
        if not users:
            raise CannotLock("the API server does not report headroom's user name: set it with --controller-user")
        accounts = virt_controllers(kubevirts, settings.kubevirt_users)
        return partial(lock_webhook, namespace, config, owners=users, virt_controllers=accounts)

    def _is_locked(self, quota: ResourceQuota) -> bool:
        return is_default(quota) and self.rancher.is_locked() and self.rancher.way is not RancherQuotas.IMPERSONATE

    async def _proven_config(self) -> dict[str, Any]:
        """Returns the clientConfig by which the API server reaches the webhook. Raises CannotLock, ApiError."""
        if not self.is_proven():
            self._proven, config = (-math.inf, {}), await self._read_client_config()
            try:
                await probe(self.client, self.settings.namespace)
            except NotReached as exc:
                raise CannotLock(f"the API server does not reach headroom's webhook: {exc}") from exc
            self._proven = loop_time() + _PROVEN_SECONDS, config
        return self._proven[1]

    def is_proven(self) -> bool:
        """Reports whether the API server has reached the webhook just now."""
        return loop_time() <= self._proven[0]

    async def _read_client_config(self) -> dict[str, Any]:
        """Reads the clientConfig from the configuration that is probed next: a broken registration is not copied."""
        proven, registered = await asyncio.gather(
            _get_or_none(self.client.resource(MUTATING_WEBHOOK_CONFIGURATIONS).get(name=PROBE_CONFIGURATION)),
            _get_or_none(self.client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS).get(name=WEBHOOK_CONFIGURATION_NAME)),
        )
        config = client_config(proven.webhooks if proven else None, registered.webhooks if registered else None)
        if config is None:
            raise CannotLock(
                f"headroom's webhooks are not registered ({PROBE_CONFIGURATION} and {WEBHOOK_CONFIGURATION_NAME}, with "
                "a caBundle): run `headroom controller --webhook` or `headroom webhook`"
            )
        return config


def _fields(observed: Observed, read: Callable[[Any], str | None]) -> set[str | None]:
    locks = [observed.lock.configuration] if observed.lock else []
    return set(map(read, [*observed.budgets, *observed.quotas, *locks]))


def _newest(cached: Iterable[Known], written: Iterable[Known]) -> list[Known]:
    by_uid = {obj.uid: obj for obj in written}
    return [newer(obj, by_uid[obj.uid]) for obj in cached]


async def _get_or_none(read: Awaitable[T]) -> T | None:
    """Returns the object, or None if it does not exist."""
    try:
        return await read
    except NotFound:
        return None


async def _value_or_reason(read: Awaitable[T]) -> tuple[T | None, str]:
    """Returns the value, or None and the reason: what only a lock needs must not keep quotas from being restored."""
    try:
        return await read, ""
    except CannotLock as reason:
        return None, str(reason)
    except ApiError as exc:
        return None, f"the API server does not say whether it reaches headroom's webhook: {exc}"
