"""The ConfigMap `headroom` in headroom's own namespace: how the controller runs, for those who ask. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kubeloop.api.core import ConfigMap
from kubeloop.api.meta import ObjectMeta
from pkg.util.resourcequota.policy import EstimateKind, Mode

CONFIG_MAP: Final = "headroom"
LEASE: Final = "headroom"
"""Name of the Lease that replicas compete for."""
USUAL_NAMESPACES: Final = ("headroom-system", "harvester-system", "default")
"""Where a reader looks for it beside its kubeconfig's own namespace."""


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


EVENT_NOT_ELECTED: Final = "LeaseNotAcquired"
"""A replica that can neither read nor write the Lease."""


def about(namespace: str) -> ConfigMap:
    """What events about the installation itself are written on, whether it is there or not."""
    return ConfigMap(api_version="v1", kind="ConfigMap", metadata=ObjectMeta(name=CONFIG_MAP, namespace=namespace))


def read(data: Mapping[str, str]) -> Installation | None:
    """What a ConfigMap's data says; None for one that another program wrote."""
    try:
        return msgspec.convert(dict(data), Installation)
    except msgspec.ValidationError:
        return None
