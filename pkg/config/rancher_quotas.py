"""The way in which ResourceQuotas with Rancher's default label are raised: directly, as Rancher, or by Rancher.

Rancher ≥ 2.14.6 and 2.15.2 lets nobody else write them: its webhook `rancher.cattle.io.resourcequotas` denies with 400,
except to the user and group by which Rancher itself passes it (rancher/webhook, resourcequota validator)."""

import asyncio
import logging
import re
from contextlib import suppress
from typing import Final

from cachetools import TTLCache

from kubeloop.api.core import ResourceQuota, ValidatingWebhookConfiguration
from kubeloop.api.registry import RESOURCE_QUOTAS, SELF_SUBJECT_ACCESS_REVIEWS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from kubeloop.client.resource_client import ResourceClient
from kubeloop.workqueue.queue import loop_time
from pkg.util.constants import RANCHER_SUDO_GROUP, RANCHER_SUDO_USER, RANCHER_WEBHOOKS
from pkg.util.resourcequota.managed import is_default
from pkg.util.resourcequota.observe import Reader
from pkg.util.resourcequota.policy import RancherQuotas
from pkg.util.resourcequota.rancher import SILENCE, locks_quotas

log = logging.getLogger(__name__)

_DENIED_BY_RANCHER: Final = re.compile(rf'admission webhook "{re.escape(RANCHER_WEBHOOKS)}\.[^"]*" denied the request')
RANCHER_SUDO: Final = RANCHER_SUDO_USER, (RANCHER_SUDO_GROUP,)
_MOST_PROJECTS: Final = 10_000
ASKS_AGAIN: Final = 0.5
"""Seconds within which a namespace that waits for its turn asks again."""


class RancherWrites:
    """The way in use, by the operator's choice and what is known of Rancher; and the client for each quota."""

    def __init__(self, client: Client, owner: Client | None = None, choice: RancherQuotas = RancherQuotas.AUTO) -> None:
        """`owner` impersonates Rancher; None: nobody does."""
        self._client, self._owner, self._choice = client, owner, choice
        self.registrations: Reader[ValidatingWebhookConfiguration] | None = None
        """All webhook configurations; None: not read, a lock shows by a denied write."""
        self._denied = self._may_impersonate = False
        self._looked_at, self._looking = float("-inf"), asyncio.Lock()

    @property
    def way(self) -> RancherQuotas:
        """The way in use; never AUTO."""
        if self._choice is not RancherQuotas.AUTO:
            return self._choice
        if not self.lock:
            return RancherQuotas.DIRECT
        return RancherQuotas.IMPERSONATE if self._may_impersonate else RancherQuotas.ANNOTATION

    @property
    def reason(self) -> str:
        if self._choice is not RancherQuotas.AUTO:
            return f"--rancher-quotas={self._choice}"
        return self.lock or "no webhook of Rancher covers resourcequotas"

    @property
    def lock(self) -> str:
        """Returns how it is known that only Rancher may write quotas with its label; "" where it is not."""
        if self._denied:
            return "Rancher's webhook denied a write"
        locks = self.registrations is not None and locks_quotas(self.registrations.list())
        return f"Rancher's webhook configuration {RANCHER_WEBHOOKS} covers resourcequotas" if locks else ""

    def asks(self, quota: ResourceQuota) -> bool:
        """Reports whether a quota is raised by requests to Rancher."""
        return is_default(quota) and self.way is RancherQuotas.ANNOTATION

    def quotas(self, quota: ResourceQuota) -> ResourceClient[ResourceQuota]:
        owner = self._owner if is_default(quota) and self.way is RancherQuotas.IMPERSONATE else None
        return (owner or self._client).resource(RESOURCE_QUOTAS)

    def learn(self, error: ApiError) -> bool:
        """Reports whether Rancher denied a write for which there is another way, as after a lock that is new."""
        if self._choice is not RancherQuotas.AUTO or not _DENIED_BY_RANCHER.search(str(error)):
            return False
        if not self._denied:
            self._denied = True
            log.warning("quotas with Rancher's label are raised by %s from now on: %s", self.way, self.reason)
        return True

    async def look(self) -> None:
        """Reads the own rights once a minute, where only Rancher may write and the operator left the choice."""
        if self._choice is not RancherQuotas.AUTO or self._owner is None or not self.lock:
            return
        async with self._looking:  # the way is not known before the answer: other quotas wait for it, too
            if loop_time() < self._looked_at + 60.0:
                return
            namespace, _, name = RANCHER_SUDO_USER.removeprefix("system:serviceaccount:").partition(":")
            user = {"verb": "impersonate", "resource": "serviceaccounts", "namespace": namespace, "name": name}
            group = {"verb": "impersonate", "resource": "groups", "name": RANCHER_SUDO_GROUP}
            reviews = self._client.resource(SELF_SUBJECT_ACCESS_REVIEWS)
            self._looked_at, answers = loop_time(), [False]
            with suppress(ApiError):
                reviewed = [await reviews.create({"spec": {"resourceAttributes": right}}) for right in (user, group)]
                answers = [review.status.allowed for review in reviewed]
            self._may_impersonate = all(answers)


class ProjectTurns:
    """Gives out one turn at a time in a Rancher project: two requests that are validated at the same moment may both be
    refused, though there is room for one of them. Who has had the turn lets another one that waits have it: a namespace
    whose migrations never stop has another request ready at any moment."""

    def __init__(self) -> None:
        self._holders: TTLCache[str, str] = TTLCache(_MOST_PROJECTS, SILENCE, loop_time)
        """By project: the namespace whose request has no answer yet, for as long as it is waited for."""
        self._next: TTLCache[str, str] = TTLCache(_MOST_PROJECTS, ASKS_AGAIN, loop_time)
        """By project: the namespace that is next, for as long as it is expected to ask again."""

    def take(self, project: str, namespace: str) -> bool:
        """Gives the namespace the turn until `end` or SILENCE; returns False where another one has it, or is next."""
        following = self._next.get(project, namespace)
        if {following, self._holders.get(project, namespace)} == {namespace}:
            if project:
                self._holders[project] = namespace
                self._next.pop(project, None)
            return True
        if following == namespace:
            self._next[project] = namespace
        return False

    def end(self, project: str, namespace: str) -> None:
        if self._holders.get(project) == namespace:
            del self._holders[project]
