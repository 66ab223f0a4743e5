"""Devices that only a migration's target asks for: KubeVirt's events name them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kubeloop.api.core import Event
from kubeloop.client.errors import ApiError
from kubeloop.client.resource_client import ResourceClient
from pkg.util.constants import EVENT_FAILED_CREATE
from pkg.util.kubevirt.migration import extra_devices_text, is_refused, refusing_quota
from pkg.util.problems import Problem
from pkg.util.resourcequota.entries import keys_of, read, standing
from pkg.util.resourcequota.errors import EVENT_DEVICE
from pkg.util.resourcequota.facts import Facts

log = logging.getLogger(__name__)


async def lacking_devices(events: ResourceClient[Event], observed: Facts) -> list[Problem]:
    """For each VM that is refused although it has an entry: the devices that the quota's base lacks, which KubeVirt's
    events tell. Asked for only where a quota is touched once more; no decision goes by the answer, for a tenant may
    write events, too."""
    quota = observed.quota
    refused = {each.spec.vmi_name: each for each in observed.migrations if is_refused(each)}
    try:
        found = await events.list(quota.namespace, field_selector=f"reason={EVENT_FAILED_CREATE}")
    except ApiError as exc:
        log.debug("%s: events are not read: %s", quota.key, exc)
        return []
    problems = []
    entries = read(quota.annotations).said
    for name, migration in sorted(refused.items()):
        entry = standing(entries, keys_of(entries, name, observed.instances.get(name)))
        said = _said_last(found, name, migration.metadata.creation_timestamp or "")
        if entry and refusing_quota(said) == quota.name and (devices := extra_devices_text(said, entry)):
            problems.append(Problem(EVENT_DEVICE, f"VM {name}: {devices}", vm=name))
    return problems


def _said_last(events: Iterable[Event], vmi: str, since: str) -> str:
    """What KubeVirt said last about a pod of the VMI that it could not create."""
    told = ((each.last_timestamp or "", each.message) for each in events if each.involved_object.name == vmi)
    return max((one for one in told if one[0] >= since), default=("", ""))[1]
