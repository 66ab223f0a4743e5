"""Gathers what a decision about a namespace with a budget looks at: from the caches, and from the API server itself."""

import asyncio
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from cachetools import LRUCache, TTLCache

from kubeloop.api.core import ValidatingWebhookConfiguration
from kubeloop.api.registry import MUTATING_WEBHOOK_CONFIGURATIONS, RESOURCE_QUOTAS, VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client, own_user
from kubeloop.client.errors import ApiError
from kubeloop.client.resource_reader import list_installed
from kubeloop.controllers.cache_reader import CacheReader, newer
from kubeloop.webhook.registration import NotReached, registered
from kubeloop.workqueue.queue import loop_time
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.config.rancher_quotas import RancherWrites
from pkg.config.settings import Settings
from pkg.selfcheck.api_server import PROBE_CONFIGURATION, probe
from pkg.util.constants import NEVER_LOCKED, WEBHOOK_CONFIGURATION_NAME
from pkg.util.kubevirt.rendering import virt_controllers
from pkg.util.managedtenantquota.lock import Webhook, client_config, lock_name, lock_webhook, recognise
from pkg.util.managedtenantquota.model import Observed, observe, record_of
from pkg.util.resourcequota.managed import is_default
from pkg.util.resourcequota.observe import Source
from pkg.util.resourcequota.policy import RancherQuotas

_KNOWN_SECONDS = 0.5
"""For so long the caches may lack what was written; then the API server is asked again: they may stand still."""
_PROVEN_SECONDS = 5.0
"""For so long it counts that the API server has reached the webhook: what gets no answer, a lock refuses."""
_NOT_REGISTERED = (
    f"headroom's webhooks are not registered ({PROBE_CONFIGURATION} and {WEBHOOK_CONFIGURATION_NAME}, with a "
    "caBundle): run `headroom controller --webhook` or `headroom webhook`"
)


class CannotLock(Exception):
    """The reason why a namespace cannot be locked; the text is for the administrator who can fix it."""


@dataclass(eq=False)
class WindowObserver:
    """Observes a namespace. `cached` costs no request and suggests; `live` decides, and costs three, or six where the
    webhook has to be proven. `clock`: the API server's, in seconds since the epoch."""

    source: Source
    client: Client
    locks: CacheReader[ValidatingWebhookConfiguration]
    settings: Settings
    clock: Callable[[], float]
    rancher: RancherWrites
    _own_user: str = field(default="", init=False)
    _proven: TTLCache[str, dict[str, Any]] = field(
        default_factory=lambda: TTLCache(1, _PROVEN_SECONDS, timer=loop_time), init=False
    )
    """The clientConfig by which the API server has reached the webhook."""
    windows: LRUCache[str, tuple[float, bool, Observed]] = field(default_factory=lambda: LRUCache(4096), init=False)
    """By locked namespace when the observation after its last write was kept, whether the cache had the lock by then,
    and the observation. None while something is being written."""

    def concerns_us(self, namespace: str) -> bool:
        """Reports whether there is a budget, a lock or a quota with a record: most namespaces have none."""
        if recognise(self.locks.get(name=lock_name(namespace))) or self.source.budgets.list(namespace):
            return True
        return any(map(record_of, self.source.list_quotas(namespace)))

    def cached(self, namespace: str) -> Observed:
        return observe(self.source, recognise(self.locks.get(name=lock_name(namespace))), namespace, self.clock())

    def keep(self, observed: Observed) -> None:
        """Keeps what the API server answered, with what was written since, for the time of the lock."""
        if observed.lock is not None:
            is_shown = self.locks.get(name=observed.lock.configuration.name) is not None
            self.windows[observed.namespace] = loop_time(), is_shown, observed

    def continued(self, namespace: str) -> Observed | None:
        """Returns the kept observation, with each object that is newer in the cache; None if the API server has to be
        asked: nothing is kept, or the caches have other objects, or older ones for long and may stand still."""
        if namespace not in self.windows:
            return None
        since, is_shown, kept = self.windows[namespace]
        cached, is_recent = self.cached(namespace), loop_time() - since <= _KNOWN_SECONDS
        if is_recent and not is_shown and cached.lock is None:
            cached = replace(cached, lock=kept.lock)
        known = {obj.uid: obj for obj in _objects(kept)}
        latest = {obj.uid: newer(obj, known.get(obj.uid)) for obj in _objects(cached)}
        is_behind = any(latest[obj.uid] is not obj for obj in _objects(cached))
        if known.keys() != latest.keys() or (is_behind and not is_recent):
            return None
        budgets = [latest[budget.uid] for budget in cached.budgets]
        quotas = [latest[quota.uid] for quota in cached.quotas]
        lock = recognise(latest[cached.lock.configuration.uid]) if cached.lock else None
        observed = replace(cached, budgets=budgets, quotas=quotas, lock=lock, lock_owner=kept.lock_owner)
        return replace(observed, render_webhook=kept.render_webhook if self._proven else None)

    async def live(self, namespace: str, *, opens: bool) -> Observed:
        """Returns the observation with live budgets, quotas and lock; `opens`: and with what a lock needs, once the
        webhook is proven. Raises ApiError. The budgets are read first: a status that holds nothing then means that the
        quotas, read after it, are as they were. The save is bound to the version of that status."""
        render_webhook, reason = None, ""
        try:
            render_webhook = await self._lock_renderer(namespace) if opens else None
        except CannotLock as exc:
            reason = str(exc)
        except ApiError as exc:  # what only a lock needs must not keep quotas from being restored
            reason = f"the API server does not say whether it reaches headroom's webhook: {exc}"
        budgets = await list_installed(self.client.resource(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS), namespace)
        quotas, configuration = await asyncio.gather(
            self.client.resource(RESOURCE_QUOTAS).list(namespace),
            registered(self.client, VALIDATING_WEBHOOK_CONFIGURATIONS, lock_name(namespace)),
        )
        lock = recognise(configuration)
        if configuration and not lock:
            reason = f"there is a ValidatingWebhookConfiguration {configuration.name} that is not a lock"
        users = self._own_user or ", ".join(self.settings.controller_users)
        owner = f"headroom ({users}) on {socket.gethostname()}"
        observed = replace(self.cached(namespace), budgets=budgets, quotas=quotas, lock=lock)
        return replace(observed, render_webhook=render_webhook, lock_owner=owner, lock_unavailable_reason=reason)

    async def _lock_renderer(self, namespace: str) -> Callable[[Collection[str]], Webhook]:
        """Returns the function that renders the namespace's lock, with the clientConfig by which the API server reaches
        the webhook: that of the probe, as a broken registration is not copied. Raises CannotLock, ApiError."""
        kubevirts, settings = self.source.kubevirts.list(), self.settings
        never = [*NEVER_LOCKED, settings.namespace, *settings.never_lock, *(obj.namespace for obj in kubevirts)]
        if any(fnmatchcase(namespace, pattern) for pattern in never):
            raise CannotLock("it is a system namespace, or one that --never-lock names")
        quotas, may_write = self.source.list_quotas(namespace), self.rancher.way is RancherQuotas.IMPERSONATE
        locked = ", ".join(quota.name for quota in quotas if is_default(quota) and self.rancher.lock)
        if locked and not may_write:
            raise CannotLock(f"only Rancher may write resource quota {locked} ({self.rancher.reason})")
        if (config := self._proven.get(PROBE_CONFIGURATION)) is None:
            proven, served = await asyncio.gather(
                registered(self.client, MUTATING_WEBHOOK_CONFIGURATIONS, PROBE_CONFIGURATION),
                registered(self.client, VALIDATING_WEBHOOK_CONFIGURATIONS, WEBHOOK_CONFIGURATION_NAME),
            )
            config = client_config(proven.webhooks if proven else None, served.webhooks if served else None)
            if config is None:
                raise CannotLock(_NOT_REGISTERED)
            try:
                await probe(self.client, settings.namespace)
            except NotReached as exc:
                raise CannotLock(f"the API server does not reach headroom's webhook: {exc}") from exc
            self._proven[PROBE_CONFIGURATION] = config
        self._own_user = self._own_user or await own_user(self.client)
        users = [user for user in (self._own_user, *settings.controller_users) if user]
        if not users:
            raise CannotLock("the API server does not report headroom's user name: set it with --controller-user")
        accounts = virt_controllers(kubevirts, settings.kubevirt_users)
        return partial(lock_webhook, namespace, config, owners=users, virt_controllers=accounts)


def _objects(observed: Observed) -> list[Any]:
    return [*observed.budgets, *observed.quotas, *([observed.lock.configuration] if observed.lock else [])]
