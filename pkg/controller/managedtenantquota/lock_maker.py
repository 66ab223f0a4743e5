"""How a lock shall look: where the webhook is that serves it, and whose requests it lets through."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from kubeloop.api.registry import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client, own_user
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.controllers.cache_reader import CacheReader
from pkg.api.kubevirt import KubeVirt
from pkg.config.probe import PROBE_CONFIGURATION, NotReached
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.util.kubevirt.installed import virt_controllers
from pkg.util.managedtenantquota.lock import Webhook, client_config, lock_webhook


class CannotLock(Exception):
    """Why a namespace cannot be locked; the text is for the administrator who can fix it."""


@dataclass(eq=False)
class LockMaker:
    """Reads our user name once, and the webhooks' address before every lock."""

    client: Client
    kubevirts: CacheReader[KubeVirt]
    probe: Callable[[], Awaitable[object]]
    """Raises NotReached when the API server does not reach us."""
    holders: Sequence[str]
    """User names beside our own whose writes pass."""
    kubevirt_users: Sequence[str]
    """Instead of virt-controller's."""
    never_lock: Sequence[str]
    """Shell patterns of namespaces."""
    _own: str = field(default="", init=False)

    async def webhook(self, namespace: str) -> tuple[Webhook, str]:
        """The webhook of a namespace's lock, and what the lock says of its holder. Raises CannotLock."""
        kubevirts = self.kubevirts.list()
        never = [*self.never_lock, *(kubevirt.namespace for kubevirt in kubevirts)]
        if any(fnmatchcase(namespace, pattern) for pattern in never):
            raise CannotLock("it is a system namespace, or one that --never-lock names")
        try:
            where = await self._where()
            await self.probe()
            self._own = self._own or await own_user(self.client)
        except NotReached as exc:
            raise CannotLock(f"the API server does not reach headroom's webhook: {exc}") from exc
        except ApiError as exc:
            raise CannotLock(f"the API server does not say whether it reaches headroom's webhook: {exc}") from exc
        users = [user for user in (self._own, *self.holders) if user]
        if not users:
            raise CannotLock("the API server does not report headroom's user name: set it with --controller-user")
        hook = lock_webhook(
            namespace, where, holders=users, virt_controllers=virt_controllers(kubevirts, self.kubevirt_users)
        )
        return hook, f"headroom ({self._own or ', '.join(users)}) on {socket.gethostname()}"

    async def _where(self) -> dict[str, Any]:
        """From the configuration that is probed next: a broken registration is not copied."""
        try:
            proven, registered = await asyncio.gather(
                self.client.resource(MUTATING_WEBHOOK_CONFIGURATIONS).get(name=PROBE_CONFIGURATION),
                self.client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS).get(name=WEBHOOK_CONFIGURATION_NAME),
            )
            found = client_config(proven.webhooks, registered.webhooks)
        except NotFound:
            found = None
        if found is None:
            raise CannotLock(
                f"headroom's webhooks are not registered ({PROBE_CONFIGURATION} and {WEBHOOK_CONFIGURATION_NAME}, with "
                "a caBundle): run `headroom controller --webhook` or `headroom webhook`"
            )
        return found
