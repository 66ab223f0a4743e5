"""Publishes how the controller runs, and checks that deploy/policy.yaml is in force: at start and hourly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from kubeloop.api.core import ConfigMap
from kubeloop.api.meta import Object
from kubeloop.api.objects import edit
from kubeloop.api.registry import (
    CONFIG_MAPS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
)
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.events import EventRecorder
from kubeloop.metrics import LateGauge
from pkg.controller.installation.policy import POLICIES, problems
from pkg.util.installation import CONFIG_MAP, Installation
from pkg.util.metrics import METRICS

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

PERIOD: Final = 3600.0
"""Seconds between two checks."""
RETRY: Final = 30.0
"""Seconds until the next check when the API server did not answer."""
MEANING: Final = "tenants can create pods that look like a VM's: see docs/security.md"
EVENT: Final = "PodPolicyMissing"

STANDS = LateGauge(METRICS["headroom_pod_policy_in_force"])


@dataclass(eq=False)
class Upkeep:
    """`run` until cancelled. In a dry run nothing is published and no event written."""

    client: Client
    events: EventRecorder
    namespace: str
    """Headroom's own."""
    installation: Callable[[], Installation]
    accounts: Callable[[], Sequence[str]]
    """virt-controller's user names as known by then."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the installation is another one."""
    dry_run: bool = False
    _said: Sequence[str] = field(default=(), init=False)

    async def run(self) -> None:
        while True:
            self.changed.clear()
            try:
                await self.check()
            except ApiError as exc:
                log.warning("installation check: %s, retrying in %g s", exc, RETRY)
                await asyncio.sleep(RETRY)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), PERIOD)

    async def check(self) -> None:
        """Publish how the controller runs, and check the policies, once. Raises ApiError."""
        published = None if self.dry_run else await self._publish()
        found = await self._policy_problems()
        STANDS.set(not found)
        if found == self._said:
            return
        self._said = found
        if not found:
            log.info("the policies of deploy/policy.yaml are in force")
            return
        message = f"{'; '.join(found)}: {MEANING}"
        log.warning("%s", message)
        if published is not None:
            self.events.event(published, "Warning", EVENT, message)

    async def _publish(self) -> ConfigMap | None:
        """The ConfigMap as it is now; None where headroom's namespace does not exist."""
        data = self.installation().data()
        try:
            return await self.client.resource(CONFIG_MAPS).create_or_update(
                {"metadata": {"name": CONFIG_MAP}, "data": data},
                lambda there: edit(there, data=data),
                namespace=self.namespace,
            )
        except NotFound:
            log.debug("namespace %s does not exist: mode and estimate are not published", self.namespace)
            return None

    async def _policy_problems(self) -> list[str]:
        policies = self.client.resource(VALIDATING_ADMISSION_POLICIES)
        if not await policies.is_served():
            return ["the API server is older than Kubernetes 1.30 and has no ValidatingAdmissionPolicy"]
        bindings = self.client.resource(VALIDATING_ADMISSION_POLICY_BINDINGS)
        return problems(await _named(policies), await _named(bindings), self.accounts())


async def _named(client: ResourceClient[T]) -> dict[str, T]:
    """Those of the policies' names that are there."""
    found: dict[str, T] = {}
    for name in POLICIES:
        with contextlib.suppress(NotFound):
            found[name] = await client.get(name=name)
    return found
