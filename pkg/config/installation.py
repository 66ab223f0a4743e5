"""The ConfigMap `headroom` in headroom's own namespace: how the controller runs, and what keeps it from its work. The
reports read it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from kubeloop.api.core import ConfigMap
from kubeloop.api.meta import ObjectMeta
from kubeloop.api.objects import edit
from kubeloop.api.registry import CONFIG_MAPS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.workqueue.queue import loop_time
from pkg.util.constants import CONFIG_MAP
from pkg.util.resourcequota.policy import EstimateKind, Mode

log = logging.getLogger(__name__)

USUAL_NAMESPACES: Final = ("headroom-system", "harvester-system", "default")
"""Where a reader looks for it beside its kubeconfig's own namespace."""
EVENT_NOT_ELECTED: Final = "LeaseNotAcquired"
"""A replica that can neither read nor write the Lease."""
LOOK: Final = 10.0
"""Seconds between two looks, which ask the API server nothing."""
PERIOD: Final = 3600.0
"""Seconds after which it is written again, if another client has changed it."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The choices of a running controller."""

    mode: Mode
    estimate: EstimateKind
    version: str = ""
    kubernetes: str = ""
    """The versions of the API servers by which it counts, with spaces between."""
    problem: str = ""
    """What keeps it from its work."""

    def data(self) -> dict[str, str]:
        """The ConfigMap's data."""
        data: dict[str, str] = msgspec.to_builtins(self)
        return data


def about(namespace: str) -> ConfigMap:
    """What events about the installation itself are written on, whether it is there or not."""
    return ConfigMap(api_version="v1", kind="ConfigMap", metadata=ObjectMeta(name=CONFIG_MAP, namespace=namespace))


def read(data: Mapping[str, str]) -> Installation | None:
    """What a ConfigMap's data says; None for one that another program wrote."""
    try:
        return msgspec.convert(dict(data), Installation)
    except msgspec.ValidationError:
        return None


@dataclass(eq=False)
class Publisher:
    """`run` until cancelled."""

    client: Client
    namespace: str
    """Headroom's own."""
    installation: Callable[[], Installation]
    faults: Callable[[], Sequence[str]]
    """What keeps the controllers from their work now, a line each."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the installation is another one."""
    _problem: str = field(default="", init=False)
    _faulty: bool = field(default=False, init=False)
    _due: float = field(default=float("-inf"), init=False)
    _published: Installation | None = field(default=None, init=False)

    async def run(self) -> None:
        while True:
            self.changed.clear()
            try:
                await self.look()
            except ApiError as exc:
                log.warning("ConfigMap %s: %s", CONFIG_MAP, exc)
                await asyncio.sleep(PERIOD if isinstance(exc, NotFound) else 6 * LOOK)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), LOOK)

    async def look(self) -> None:
        """Write it if it is another one, or if it was last written long ago. Raises ApiError."""
        installation = replace(self.installation(), problem=self._lasting())
        if installation == self._published and loop_time() < self._due:
            return
        data = installation.data()
        await self.client.resource(CONFIG_MAPS).create_or_update(
            {"metadata": {"name": CONFIG_MAP}, "data": data},
            lambda there: edit(there, data=data),
            namespace=self.namespace,
        )
        self._published, self._due = installation, loop_time() + PERIOD

    def _lasting(self) -> str:
        """The first fault that was there at two looks in a row, in the same words until there is none."""
        faults = self.faults()
        if not (faults and self._faulty):
            self._problem = ""
        elif not self._problem:
            more = f"; and {len(faults) - 1} more, see /readyz" if len(faults) > 1 else ""
            self._problem = faults[0] + more
        self._faulty = bool(faults)
        return self._problem
