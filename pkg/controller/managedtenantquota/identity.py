"""The accounts that create target pods and hold locks, and the webhook that serves a lock."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from kubeloop.api.registry import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client, own_user
from kubeloop.client.errors import NotFound
from kubeloop.controllers.cache_reader import CacheReader
from pkg.api.kubevirt import KubeVirt
from pkg.config.probe import PROBE_CONFIGURATION, NotReached
from pkg.util.constants import NEVER_LOCKED, WEBHOOK_CONFIGURATION_NAME
from pkg.util.kubevirt.installed import virt_controllers
from pkg.util.managedtenantquota.lock import Webhook, client_config, is_never_locked, lock_webhook


class CannotLock(Exception):
    """Why a namespace cannot be locked; the text is for the administrator who can fix it."""


@dataclass(eq=False)
class LockMaker:
    """Builds a lock's webhook. Reads our user name once, and the webhooks' address before every lock."""

    client: Client
    kubevirts: CacheReader[KubeVirt]
    probe: Callable[[], Awaitable[object]]
    """Raises NotReached when the API server does not reach us."""
    _: KW_ONLY
    holders: Sequence[str] = ()
    """User names beside our own whose writes pass."""
    kubevirt_users: Sequence[str] = ()
    """Instead of virt-controller's."""
    never_lock: Sequence[str] = NEVER_LOCKED
    """Shell patterns of namespaces."""
    _own: str = field(default="", init=False)

    async def holder(self) -> str:
        """A lock's text about its holder."""
        return f"headroom ({await self._user() or ', '.join(self.holders)}) on {socket.gethostname()}"

    async def webhook(self, namespace: str) -> Webhook:
        """The webhook of a namespace's lock. Raises CannotLock, ApiError."""
        if is_never_locked(namespace, [*self.never_lock, *(kv.namespace for kv in self.kubevirts.list())]):
            raise CannotLock("it is a system namespace, or one that --never-lock names")
        where = await self._where()
        if where is None:
            raise CannotLock(
                f"headroom's webhooks are not registered ({PROBE_CONFIGURATION} and {WEBHOOK_CONFIGURATION_NAME}, with "
                "a caBundle): run `headroom controller --webhook` or `headroom webhook`"
            )
        try:
            await self.probe()
        except NotReached as exc:
            raise CannotLock(f"the API server does not reach headroom's webhook: {exc}") from exc
        return lock_webhook(namespace, where, holders=await self._users(), virt_controllers=self._virt_controllers())

    async def _where(self) -> dict[str, Any] | None:
        """From the configuration that is probed next: a broken registration is not copied."""
        try:
            proven, registered = await asyncio.gather(
                self.client.resource(MUTATING_WEBHOOK_CONFIGURATIONS).get(name=PROBE_CONFIGURATION),
                self.client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS).get(name=WEBHOOK_CONFIGURATION_NAME),
            )
        except NotFound:
            return None
        return client_config(proven.webhooks, registered.webhooks)

    async def _users(self) -> list[str]:
        own = await self._user()
        users: list[Any] = [own, *self.holders] if own else [*self.holders]
        if not users:
            raise CannotLock("the API server does not report headroom's user name: set it with --controller-user")
        return users

    async def _user(self) -> str:
        self._own = self._own or await own_user(self.client)
        return self._own

    def _virt_controllers(self) -> Sequence[str]:
        return virt_controllers(self.kubevirts.list(), self.kubevirt_users)
