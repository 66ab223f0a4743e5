"""What the events about problems say beyond what decisions read. No decision goes by it: a tenant may write events."""

from __future__ import annotations

import logging

from kubeloop.api.core import Event, ObjectReference
from kubeloop.api.meta import ObjectMeta
from kubeloop.api.registry import EVENTS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from pkg.api.rancher import PROJECTS
from pkg.util.constants import EVENT_FAILED_CREATE
from pkg.util.kubevirt.migration import extra_devices_text, is_refused, refusing_quota
from pkg.util.problems import Problem
from pkg.util.resourcequota.entries import keys_of, present_entry, read
from pkg.util.resourcequota.errors import EVENT_DEVICE
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.observe import Source
from pkg.util.resourcequota.rancher import project_of
from pkg.util.resourcequota.rancher_request import project_room

log = logging.getLogger(__name__)

_LONGEST = 2048
"""Characters that are read of a name or a message: a tenant may write a million, into as many events as it likes."""


async def lacking_devices(client: Client, observed: Facts) -> list[Problem]:
    """Returns a problem for each VM that is refused although it has an entry: the devices that only its target asks
    for, and the quota's base lacks. KubeVirt's events name them; they are read where a quota is touched once more."""
    quota, problems = observed.quota, []
    entries = read(quota.annotations).by_key
    try:
        events = client.resource(EVENTS).transformed(as_read)
        listed = await events.list(quota.namespace, field_selector=f"reason={EVENT_FAILED_CREATE}")
    except ApiError as exc:
        log.debug("%s: events are not read: %s", quota.key, exc)
        return []
    for migration in filter(is_refused, observed.migrations):
        name, since = migration.spec.vmi_name, migration.metadata.creation_timestamp or ""
        entry = present_entry(entries, keys_of(entries, name, observed.instances.get(name)))
        messages = (
            (event.last_timestamp or "", event.message) for event in listed if event.involved_object.name == name
        )
        at, message = max(messages, default=("", ""))
        devices = extra_devices_text(message, entry) if entry and at >= since else ""
        if devices and refusing_quota(message) == quota.name:
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


async def room_of_project(client: Client, observed: Facts, source: Source) -> str:
    """Returns what is left in the namespace's Rancher project, as text; "" where the project cannot be read: it is in
    the cluster of Rancher's server."""
    cluster, _, name = project_of(observed.rancher.namespace).partition(":")
    try:
        project = await client.resource(PROJECTS).get(name=name, namespace=cluster)
    except ApiError as exc:
        log.debug("%s: the Rancher project is not read: %s", observed.quota.key, exc)
        return ""
    return project_room(project, source.namespaces.list(), observed.quota)
