"""A namespace with its quotas, VMs and migrations, as people, Rancher and KubeVirt use them: what demo, scale, benches
and tests do there and read there, on the typed client. Nothing here decides what is right."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Self, TypeVar

from kubeloop.api import registry
from kubeloop.api.core import Event, Pod, ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.quantity import Quantity
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import NotFound
from kubeloop.testing.polling import PATIENCE, until
from lab import bodies
from lab.rancher.condition import ANNOTATION as STATUS
from lab.rancher.condition import VALIDATED
from pkg.api.kubevirt import (
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    VIRTUAL_MACHINES,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from pkg.util import constants
from pkg.util.kubevirt.migration import is_refused

NAMESPACES, QUOTAS, PODS = registry.NAMESPACES, registry.RESOURCE_QUOTAS, registry.PODS
VMS, VMIS, VMIMS = VIRTUAL_MACHINES, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
LASTING = 600.0
"""Seconds that a migration runs until it is told to hurry."""
_QUICK = 0.05
_PAUSE = 0.1
"""Seconds between the first two looks at what is waited for: a look costs the API server and us 3 ms."""
_FOR_GOOD = 2.5
"""Seconds after which a refusal counts as one that stays: headroom and KubeVirt answer within a few hundredths."""
_DEFAULT = f"{constants.LABEL_DEFAULT_RESOURCE_QUOTA}={constants.TRUE}"
_ENTRIES = (constants.ANNOTATION_MIGRATING_NAME_PREFIX, constants.ANNOTATION_MIGRATING_UID_PREFIX)
T = TypeVar("T", bound=Object)


def by_value(resources: Mapping[str, Any]) -> dict[str, Quantity]:
    """A ResourceList that compares by value."""
    return {name: q if isinstance(q, Quantity) else Quantity.parse(q) for name, q in resources.items()}


async def becomes(read: Callable[[], Awaitable[object]], expected: object, seconds: float = PATIENCE) -> None:
    """Waits until `read` returns `expected`. Raises AssertionError when it does not within `seconds`."""
    value: object = None

    async def is_read() -> bool:
        nonlocal value
        value = await read()
        return value == expected

    await until(is_read, lambda: f"{expected}; it is {value}", seconds=seconds, pause=_PAUSE)


class Namespace:
    """A namespace, for the user of `client`. Every method raises ApiError, every `until…` AssertionError when it is not
    within `seconds`; a quota's name of "" is the default quota's."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    def __str__(self) -> str:
        return self.name

    def by(self, client: Client) -> Self:
        return type(self)(client, self.name)

    async def create(self, resource: Resource[T], body: Mapping[str, Any]) -> T:
        return await self.client.resource(resource).create(body, namespace=self.name)

    async def get(self, resource: Resource[T], name: str) -> T:
        return await self.client.resource(resource).get(name=name, namespace=self.name)

    async def until_is(self, resource: Resource[T], name: str, read: Callable[[T], object], expected: object) -> None:
        """Waits until `expected` is read of an object."""

        async def read_object() -> object:
            return read(await self.get(resource, name))

        await becomes(read_object, expected)

    async def items(self, resource: Resource[T], **selectors: str) -> list[T]:
        return await self.client.resource(resource).list(self.name, **selectors)

    async def patch(self, resource: Resource[T], name: str, patch: Mapping[str, Any], part: str = "") -> T:
        """A JSON merge patch, of a subresource where `part` names one."""
        return await self.client.resource(resource).merge_patch(patch, name=name, namespace=self.name, subresource=part)

    async def delete(self, resource: Resource[Any], name: str) -> None:
        """Deletes an object if it is there."""
        with contextlib.suppress(NotFound):
            await self.client.resource(resource).delete(name=name, namespace=self.name)

    async def mark(self, **metadata: Any) -> None:
        """Sets labels and annotations."""
        await self.client.resource(NAMESPACES).merge_patch({"metadata": metadata}, name=self.name)

    async def annotate(self, text: str | None) -> None:
        """Sets Rancher's annotation."""
        await self.mark(annotations={constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: text})

    async def is_labelled(self) -> bool:
        """Reports whether the namespace has the label about headroom for migrations."""
        labels = (await self.client.resource(NAMESPACES).get(name=self.name)).labels
        return labels.get(constants.LABEL_HOLDING) == constants.TRUE

    async def grant(self, limits: Mapping[str, Any]) -> None:
        """Has Rancher grant these limits (by ResourceQuota names); its default quota counts when this returns."""
        await self.annotate(bodies.granting(limits))
        await self.until_counted(names=limits.keys())

    async def verdict(self) -> str | None:
        """Returns the message of Rancher's condition, "" where the request fits, None where nothing was validated."""
        annotations = (await self.client.resource(NAMESPACES).get(name=self.name)).annotations
        conditions = json.loads(annotations.get(STATUS, "{}")).get("Conditions", ())
        return next((condition["Message"] for condition in conditions if condition["Type"] == VALIDATED), None)

    async def events(self, reason: str, kind: str = "") -> list[Event]:
        """Returns the events of a reason, about objects of a kind."""
        events = await self.items(registry.EVENTS, field_selector=f"reason={reason}")
        return [event for event in events if kind in ("", event.involved_object.kind)]

    async def told(self, reason: str, kind: str = "") -> Event:
        """The first of these events."""
        events: list[Event] = await until(lambda: self.events(reason, kind), f"{self}: event {reason} {kind}")
        return events[0]

    async def make_quota(self, name: str, hard: Mapping[str, Any], **metadata: Any) -> None:
        """A quota without Rancher, once it counts."""
        limits = {key: str(amount) for key, amount in hard.items()}
        body = {"metadata": {"name": name, **metadata}, "spec": {"hard": limits}}
        await self.create(QUOTAS, body)
        await self.until_counted(name)

    async def quota(self, name: str = "") -> ResourceQuota:
        quotas = await self._quotas(name)
        assert len(quotas) == 1, f"{self} has {len(quotas)} such quotas: {name or _DEFAULT}"
        return quotas[0]

    async def _quotas(self, name: str) -> list[ResourceQuota]:
        if name:
            return await self.items(QUOTAS, field_selector=f"metadata.name={name}")
        return await self.items(QUOTAS, label_selector=_DEFAULT)

    async def patch_quota(self, patch: Mapping[str, Any], name: str = "") -> ResourceQuota:
        return await self.patch(QUOTAS, name or (await self.quota()).name, patch)

    async def set_hard(self, hard: Mapping[str, str], **metadata: Any) -> ResourceQuota:
        return await self.patch_quota({"spec": {"hard": dict(hard)}, "metadata": metadata})

    async def hard(self, name: str = "") -> dict[str, Quantity]:
        return by_value((await self.quota(name)).hard)

    async def used(self, name: str = "") -> dict[str, Quantity]:
        return by_value((await self.quota(name)).used)

    async def annotations(self, name: str = "") -> Mapping[str, str]:
        return (await self.quota(name)).annotations

    async def entries(self, name: str = "") -> dict[str, dict[str, Quantity]]:
        """Returns key and value of every migrating entry."""
        annotations = await self.annotations(name)
        return {key: by_value(json.loads(text)) for key, text in annotations.items() if key.startswith(_ENTRIES)}

    async def until_hard(self, hard: Mapping[str, Any], name: str = "", seconds: float = PATIENCE) -> None:
        await becomes(lambda: self.hard(name), by_value(hard), seconds)

    async def until_used(self, used: Mapping[str, Any], name: str = "") -> None:
        await becomes(lambda: self.used(name), by_value(used))

    async def until_counted(self, name: str = "", names: Collection[str] = ()) -> None:
        """Waits until the quota controller has counted, for the present limits (those on `names`, where given)."""

        async def is_counted() -> bool:
            quotas = [quota for quota in await self._quotas(name) if not names or quota.hard.keys() == names]
            return any(quota.used and by_value(quota.status.hard or {}) == by_value(quota.hard) for quota in quotas)

        await becomes(is_counted, True)

    async def settle(self, base: Mapping[str, Any]) -> None:
        """Waits until every VM has one pod again and the quota is back at its base, without a trace."""
        await self.until_launchers(len(await self.items(VMIS)))
        await self.until_hard(base)
        await becomes(self.entries, {})

    async def machine(self, name: str = "vm1", **vm_options: Any) -> None:
        """A VM that runs; as `create_machine` takes it."""
        await self.create_machine(name, **vm_options)
        await self.until_is(VMS, name, lambda vm: vm.status.printable_status, "Running")

    async def create_machine(
        self,
        name: str = "vm1",
        spec: Mapping[str, Any] | None = None,
        *,
        annotations: Mapping[str, str] | None = None,
        strategy: str = "RerunOnFailure",
        **limits: str,
    ) -> None:
        """Creates a VM. `spec` is its VMI's; without one, it is that of bodies.limited."""
        template = bodies.limited(**limits) if spec is None else spec
        await self.create(VMS, bodies.machine(name, template, strategy=strategy, annotations=annotations))

    async def instances(self, *vmi_bodies: Mapping[str, Any]) -> None:
        """Creates VMIs without a VM, by their bodies; returns once they run and their volumes are plugged in."""
        for body in vmi_bodies:
            await self.create(VMIS, body)
        for body in vmi_bodies:
            await self.until_is(VMIS, body["metadata"]["name"], _runs, True)

    async def vmi(self, name: str = "vm1") -> VirtualMachineInstance:
        return await self.get(VMIS, name)

    async def until_shown(self, state: str | None) -> None:
        """Waits until the VMI of vm1 shows this migration state."""
        await self.until_is(VMIS, "vm1", lambda vmi: vmi.annotations.get(constants.ANNOTATION_MIGRATION_STATE), state)

    async def migrate(
        self,
        vm: str = "vm1",
        name: str = "",
        *,
        running: float = _QUICK,
        phase: float = _QUICK,
        linger: float = 0.0,
        **marks: Any,
    ) -> str:
        """A migration's name. Seconds: `running` in phase Running, `phase` in each before, `linger` how long the source
        counts afterwards; `marks` for the stand-in beside these."""
        pace_marks = {"phase_seconds": bodies.pace(phase, running), "source_linger_seconds": linger}
        body = bodies.migration(name or bodies.new_name(f"move-{vm}"), vm, **{**pace_marks, **marks})
        return (await self.create(VMIMS, body)).name

    async def migrating(self, **vm_options: Any) -> str:
        """A VM in the middle of its migration, as `machine` makes it; the migration's name."""
        await self.machine(**vm_options)
        migration = await self.migrate(running=LASTING)
        await self.until_phase(migration, "Running")
        return migration

    async def hurry(self, *migrations: str) -> None:
        """Ends the present phases of migrations now."""
        marks = {"metadata": {"annotations": bodies.stand_in(phase_seconds=_QUICK)}}
        for migration in migrations:
            await self.patch(VMIMS, migration, marks)

    async def migration(self, name: str) -> VirtualMachineInstanceMigration:
        return await self.get(VMIMS, name)

    async def enter(self, migration: str, phase: str, *, refused: bool = False) -> None:
        """Writes a migration's next phase as virt-controller does, for clusters without one."""
        kind = constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA
        conditions = [{"type": kind, "status": "True"}] if refused else []
        await self.patch(VMIMS, migration, {"status": {"phase": phase, "conditions": conditions}}, "status")

    async def phase(self, migration: str) -> str:
        return (await self.migration(migration)).phase

    async def until_phase(self, migration: str, *phases: str, seconds: float = PATIENCE) -> str:
        """Waits until the migration is in one of the phases, and returns that."""
        latest: list[VirtualMachineInstanceMigration] = []

        async def is_reached() -> bool:
            latest[:] = [await self.migration(migration)]
            return latest[0].phase in phases

        await until(is_reached, lambda: f"{' or '.join(phases)}: {latest}", seconds=seconds, pause=_PAUSE)
        return latest[0].phase

    async def succeed(self, *migrations: str, seconds: float = PATIENCE) -> None:
        for migration in migrations:
            phase = await self.until_phase(migration, "Succeeded", "Failed", seconds=seconds)
            assert phase == "Succeeded", await self.migration(migration)

    async def until_refused(self, migration: str) -> None:
        await self.until_is(VMIMS, migration, is_refused, True)

    async def stays_refused(self, migration: str) -> None:
        """Waits until the migration is refused, and asserts that it still is after a while: no phase comes twice."""
        await self.until_refused(migration)
        await asyncio.sleep(_FOR_GOOD)
        vmim = await self.migration(migration)
        assert (vmim.phase, is_refused(vmim)) == ("Pending", True), vmim

    async def abort(self, migration: str) -> None:
        """Aborts a migration under way by deleting it; it is gone when this returns."""
        await self.delete(VMIMS, migration)
        await becomes(lambda: self.items(VMIMS, field_selector=f"metadata.name={migration}"), [])

    async def launchers(self, *, counting: bool = False) -> list[Pod]:
        """Returns the VMs' launchers; with `counting` only those that have not ended."""
        pods = await self.items(PODS, label_selector=f"{constants.LABEL_APP}={constants.APP_VIRT_LAUNCHER}")
        return [pod for pod in pods if not (counting and pod.terminal)]

    async def until_launchers(self, count: int) -> None:

        async def count_launchers() -> int:
            return len(await self.launchers(counting=True))

        await becomes(count_launchers, count)

    async def pod_runs(self, name: str) -> bool:
        pods = await self.items(PODS, field_selector=f"metadata.name={name}")
        return [pod.status.phase for pod in pods] == ["Running"]

    async def end(self, pod: str, phase: str = "Succeeded") -> None:
        """The pod's containers are through: from now on it does not count."""
        await self.patch(PODS, pod, {"status": {"phase": phase}}, "status")


def _runs(vmi: VirtualMachineInstance) -> bool:
    statuses = vmi.status.volume_status or []
    sources = [volume.persistent_volume_claim for volume in vmi.spec.volumes or []]
    is_plugged = all((status.phase or "Ready") == "Ready" for status in statuses)
    is_complete = bool(statuses) or not any(source.hotpluggable for source in sources)
    return vmi.status.phase == "Running" and is_plugged and is_complete
