"""Whether the guard of headroom's webhook stands in the way: asked by a dry run, which changes nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pkg.api import registry
from pkg.client.client import Client
from pkg.client.config import load_config
from pkg.client.errors import Forbidden
from pkg.client.transport import MERGE_PATCH
from pkg.demo.amounts import Amounts
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY

_SOMEBODY = "somebody"
_EVERYTHING = ("system:masters",)
"""By their rights they might."""
_BY = "admission webhook"


async def is_refused(kubeconfig: Path, namespace: str, quota: str, hard: Amounts) -> bool:
    """Whether a webhook keeps a person from setting the quota's spec.hard to that now. Raises ApiError."""
    limits = {LIMITS_CPU: str(hard.cpu), LIMITS_MEMORY: str(hard.memory)}
    async with Client(load_config(str(kubeconfig)).impersonate(_SOMEBODY, _EVERYTHING)) as client:
        try:
            await client.transport.request(
                "PATCH",
                registry.RESOURCE_QUOTAS.path(namespace, quota),
                params={"dryRun": "All"},
                body=msgspec.json.encode({"spec": {"hard": limits}}),
                content_type=MERGE_PATCH,
            )
        except Forbidden as error:
            return _BY in str(error)
    return False
