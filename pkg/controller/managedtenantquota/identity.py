"""Who makes target pods, who holds the locks, and where the lock is served."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from pkg.api.kubevirt import KubeVirt
from pkg.api.registry import VALIDATING_WEBHOOK_CONFIGURATIONS
from pkg.client.client import Client
from pkg.client.errors import NotFound
from pkg.client.identity import own_user
from pkg.generic.cache_reader import CacheReader
from pkg.util.managedtenantquota.accounts import virt_controllers
from pkg.util.managedtenantquota.lock import Webhook, client_config, lock_webhook
from pkg.util.webhook_names import CONFIGURATION_NAME


class CannotLock(Exception):
    """Why a namespace cannot be locked; the text is for the person who can mend it."""


class LockMaker:
    """Says how a lock looks. Asks the API server once who we are, and before every lock where the webhooks are."""

    def __init__(
        self,
        client: Client,
        kubevirts: CacheReader[KubeVirt],
        *,
        holders: Sequence[str] = (),
        kubevirt_users: Sequence[str] = (),
    ) -> None:
        """`holders`: user names beside our own whose writes pass; `kubevirt_users`: instead of virt-controller's."""
        self._client = client
        self._kubevirts = kubevirts
        self._holders = tuple(holders)
        self._kubevirt_users = tuple(kubevirt_users)
        self._own = ""

    async def holder(self) -> str:
        """What a lock says about who holds it."""
        return f"headroom ({await self._user() or ', '.join(self._holders)}) on {socket.gethostname()}"

    async def webhook(self, namespace: str) -> Webhook:
        """The webhook of a namespace's lock. Raises CannotLock, ApiError."""
        configurations = self._client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS)
        try:
            where = client_config(await configurations.get(CONFIGURATION_NAME))
        except NotFound:
            where = None
        if where is None:
            raise CannotLock(
                f"headroom's webhooks are not registered (no ValidatingWebhookConfiguration {CONFIGURATION_NAME}): "
                "run `headroom controller --webhook` or `headroom webhook`"
            )
        return lock_webhook(
            namespace, where, holders=await self._users(), virt_controllers=self._virt_controllers()
        )

    async def _users(self) -> list[str]:
        own = await self._user()
        users: list[Any] = [own, *self._holders] if own else [*self._holders]
        if not users:
            raise CannotLock(
                "the API server does not say who we are: name our account with --controller-user"
            )
        return users

    async def _user(self) -> str:
        self._own = self._own or await own_user(self._client)
        return self._own

    def _virt_controllers(self) -> Sequence[str]:
        return self._kubevirt_users or virt_controllers(self._kubevirts.list())
