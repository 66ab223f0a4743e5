"""The ConfigMap `headroom`: how the controller runs, and what keeps it from its work. The reports read it."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from kubeloop.api.core import ConfigMap
from kubeloop.api.meta import ObjectMeta, rfc3339
from kubeloop.api.registry import CONFIG_MAPS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.workqueue.queue import loop_time
from pkg.config.causes import Cause
from pkg.selfcheck.api_server import repeat
from pkg.util.constants import CONFIG_MAP, TRUE
from pkg.util.resourcequota.policy import EXACT, EstimateKind, Mode, RancherQuotas

log = logging.getLogger(__name__)

USUAL_NAMESPACES: Final = ("headroom-system", "harvester-system", "default")
"""The namespaces in which a reader looks for it, beside its kubeconfig's own."""
IN_FORCE: Final = "in force"
EVENT_NOT_ELECTED: Final = "LeaseNotAcquired"
"""A replica that can neither read nor write the Lease."""
CHECK_PERIOD: Final = 2.0
"""Seconds between two checks, which ask the API server nothing."""
REPORT_AFTER: Final = 10.0
"""Seconds until a fault is published: at the start every cache is behind for a moment."""
REFRESH: Final = 30.0
"""Seconds after which it is written again: without a Lease nothing else shows that a controller runs."""
FRESH: Final = 2.5 * REFRESH
"""Seconds for which a reader believes it, by the API server's clock."""
LAST_WRITE: Final = 2.0
"""Seconds that a controller which ends waits for this to be written."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The choices of a running controller."""

    mode: Mode
    estimate: EstimateKind
    version: str = ""
    kubernetes: str = ""
    """The versions of the API servers by which it counts, with spaces between."""
    policy: str = ""
    """IN_FORCE, if deploy/policy.yaml is."""
    problem: str = ""
    """The sentence about what keeps the controller from its work."""
    refused: str = ""
    """The same for programs, as far as somebody else has to act: a JSON list of Cause; "" for none."""
    seen: str = ""
    """When the controller wrote it last, RFC 3339, by the API server's clock."""
    ended: str = ""
    """"true" once the controller has ended."""
    rancher_quotas: RancherQuotas = RancherQuotas.DIRECT
    """The way in use; `rancher_reason` says why."""
    rancher_reason: str = ""
    hold_limit: float = EXACT.hold_limit
    only_namespaces: str = ""
    """Patterns of the namespaces that are served, with spaces between; "" for all."""


def about(namespace: str) -> ConfigMap:
    """Returns the object on which events about the installation itself are written, whether it exists or not."""
    return ConfigMap(api_version="v1", kind="ConfigMap", metadata=ObjectMeta(name=CONFIG_MAP, namespace=namespace))


def read(data: Mapping[str, str]) -> Installation | None:
    """Returns what a ConfigMap's data says, or None for one that another program wrote."""
    try:
        return msgspec.convert(dict(data), Installation, strict=False)
    except msgspec.ValidationError:
        return None


@dataclass(eq=False)
class Publisher:
    """`run` until cancelled."""

    client: Client
    namespace: str
    installation: Callable[[], Installation]
    faults: Callable[[], Sequence[str]]
    """Returns what is wrong with the installation now, a line each."""
    causes: Callable[[], Sequence[Cause]]
    _last_without_fault: float = field(default_factory=loop_time, init=False)
    _due: float = field(default=float("-inf"), init=False)
    _published: Installation | None = field(default=None, init=False)

    async def run(self) -> None:
        try:
            await repeat(self.check, CHECK_PERIOD, retry=REFRESH, subject=f"ConfigMap {CONFIG_MAP}")
        finally:
            await self.end()

    async def end(self) -> None:
        """Writes that the controller has ended, if it wrote anything before."""
        if self._published is None:
            return
        try:
            async with asyncio.timeout(LAST_WRITE):
                await self._write(replace(self._published, ended=TRUE))
        except (ApiError, TimeoutError) as exc:
            log.warning("ConfigMap %s: %s", CONFIG_MAP, exc)

    async def check(self) -> None:
        """Writes the ConfigMap if the installation changed, or if it was last written a while ago. Raises ApiError."""
        causes, faults = self.causes(), self.faults()
        if not faults:
            self._last_without_fault = loop_time()
        lasting_faults = faults if loop_time() - self._last_without_fault >= REPORT_AFTER else ()
        lines = [*(cause.line() for cause in causes), *lasting_faults]
        rest = f"; and {len(lines) - 1} more, see /readyz" if len(lines) > 1 else ""
        problem = lines[0] + rest if lines else ""
        refused = msgspec.json.encode(causes).decode() if causes else ""
        installation = replace(self.installation(), problem=problem, refused=refused)
        published = self._published
        if published is not None and published.problem and problem:
            published = replace(published, problem=problem)  # in other words: how long a cache is behind goes on
        if installation == published and loop_time() < self._due:
            return
        await self._write(installation)
        self._published, self._due = installation, loop_time() + REFRESH

    async def _write(self, installation: Installation) -> None:
        published = replace(installation, seen=rfc3339(self.client.transport.server_clock()))
        body = {"data": {name: str(value) for name, value in msgspec.to_builtins(published).items()}}
        config_maps = self.client.resource(CONFIG_MAPS)
        try:
            await config_maps.merge_patch(body, name=CONFIG_MAP, namespace=self.namespace)
        except NotFound:
            await config_maps.create({"metadata": {"name": CONFIG_MAP}, **body}, namespace=self.namespace)
