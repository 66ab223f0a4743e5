"""The ConfigMap `headroom`: how the controller runs, and what keeps it from its work. The reports read it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kubeloop.api.core import ConfigMap
from kubeloop.api.meta import ObjectMeta
from pkg.util.constants import CONFIG_MAP
from pkg.util.resourcequota.policy import EXACT, EstimateKind, Mode, RancherQuotas

USUAL_NAMESPACES: Final = ("headroom-system", "harvester-system", "default")
"""The namespaces in which a reader looks for it, beside its kubeconfig's own."""
IN_FORCE: Final = "in force"
EVENT_NOT_ELECTED: Final = "LeaseNotAcquired"
REFRESH: Final = 30.0
"""Seconds after which it is written again: without a Lease nothing else shows that a controller runs."""
FRESH: Final = 2.5 * REFRESH
"""Seconds for which a reader believes it, by the API server's clock."""


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
