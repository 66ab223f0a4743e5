"""A look at the refused migrations of a namespace in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pkg.api.core import ResourceQuota, ResourceQuotaSpec
from pkg.api.meta import RawResourceList
from pkg.util.managedtenantquota.model import Observed, Policy, Surroundings
from pkg.util.managedtenantquota.release import Releases, releases
from tests.pkg.util.managedtenantquota.objects import (
    ENOUGH,
    observed,
)

AT_ONCE = Policy(shortage=0.0)


def look(
    quotas: Sequence[ResourceQuota] | None = None,
    around: Surroundings | None = None,
    *,
    additional: RawResourceList = ENOUGH,
    originals: Mapping[str, RawResourceList] | None = None,
    policy: Policy = AT_ONCE,
    **more: Any,
) -> Releases:
    saved = {name: ResourceQuotaSpec(hard=hard) for name, hard in (originals or {}).items()}
    seen: Observed = observed(quotas, None, around, **more)
    return releases(seen, policy, additional, saved)
