"""Devices that only a migration's target asks for: KubeVirt's events name them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kubeloop.api.core import Event, ObjectReference
from kubeloop.api.meta import ObjectMeta
from kubeloop.client.errors import ApiError
from kubeloop.client.resource_client import ResourceClient
from pkg.util.constants import EVENT_FAILED_CREATE
from pkg.util.kubevirt.migration import extra_devices_text, is_refused, refusing_quota
from pkg.util.problems import Problem
from pkg.util.resourcequota.entries import keys_of, present_entry, read
from pkg.util.resourcequota.errors import EVENT_DEVICE
from pkg.util.resourcequota.facts import Facts

log = logging.getLogger(__name__)

_LONGEST = 2048
"""Characters that are read of a name or a message: a tenant may write a million, into as many events as it likes."""


async def lacking_devices(events: ResourceClient[Event], observed: Facts) -> list[Problem]:
    """Returns a problem for each VM that is refused although it has an entry: the devices that the quota's base lacks,
    by KubeVirt's events. They are read only where a quota is touched once more. No decision goes by them: a tenant may
    write events, too."""
    quota = observed.quota
    refused = {vmim.spec.vmi_name: vmim for vmim in observed.migrations if is_refused(vmim)}
    try:
        listed = await events.transformed(as_read).list(quota.namespace, field_selector=f"reason={EVENT_FAILED_CREATE}")
    except ApiError as exc:
        log.debug("%s: events are not read: %s", quota.key, exc)
        return []
    problems = []
    entries = read(quota.annotations).by_key
    for name, migration in sorted(refused.items()):
        entry = present_entry(entries, keys_of(entries, name, observed.instances.get(name)))
        message = _last_message(listed, name, migration.metadata.creation_timestamp or "")
        if entry and refusing_quota(message) == quota.name and (devices := extra_devices_text(message, entry)):
            problems.append(Problem(EVENT_DEVICE, f"VM {name}: {devices}", vm=name))
    return problems


def as_read(event: Event) -> Event:
    """Returns the fields that are read."""
    return Event(
        metadata=ObjectMeta(name=event.name),
        involved_object=ObjectReference(name=event.involved_object.name[:_LONGEST]),
        message=event.message[:_LONGEST],
        last_timestamp=event.last_timestamp,
    )


def _last_message(events: Iterable[Event], vmi: str, since: str) -> str:
    """Returns KubeVirt's last message about a pod of the VMI that it could not create."""
    messages = ((event.last_timestamp or "", event.message) for event in events if event.involved_object.name == vmi)
    return max((pair for pair in messages if pair[0] >= since), default=("", ""))[1]
