"""Halting a VM, and clearing the reason: what is written, when, and what is looked at before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pkg.api import registry
from pkg.api.core import ResourceQuota
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES, VirtualMachine
from pkg.client.errors import Conflict
from pkg.controller.virtualmachine.vm_controller import CONFIRM, Handler
from pkg.generic.errors import RetryAfter
from pkg.util import constants
from pkg.util.resourcequota.model import Memory, Observed
from tests.decisions import observed
from tests.kinds import Clock, Events, Kind
from tests.objects import limits_text, plain_launcher, quota, vm, vmi

REASON = constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA
CPU = "cpu insufficient resources due to resource quota"
KEY = "ns1/vm1"


class Place:
    """A namespace of 1 CPU with the seed's VM in it, and the handler."""

    def __init__(self, found: VirtualMachine | None = None, base: str = limits_text("1", "10Gi")) -> None:
        self.base = base
        self.machines: Kind[Any] = Kind(VIRTUAL_MACHINES)
        self.instances: Kind[Any] = Kind(VIRTUAL_MACHINE_INSTANCES)
        self.quotas: Kind[Any] = Kind(registry.RESOURCE_QUOTAS)
        self.pods: Kind[Any] = Kind(registry.PODS)
        self.events, self.clock = Events(), Clock()
        self.machines.given(found or vm())
        self.quotas.given(quota({}))
        self.handler = Handler(
            machines=self.machines.client,
            instance_cache=self.instances.cache,
            quotas=self.quotas.client,
            quota_cache=self.quotas.cache,
            pods=self.pods.client,
            pods_of=lambda key: [
                pod for pod in self.pods.indexer.list() if f"-{key.partition('/')[2]}-" in pod.name
            ],
            observer=self,
            events=self.events.recorder,
            clock=self.clock,
        )

    def observe(self, quota: ResourceQuota, now: float, memory: Memory) -> Observed:
        return observed(quota, limits=self.base)

    async def handle(self) -> float | None:
        """Seconds after which it wants to be called again, None when it does not."""
        try:
            await self.handler.on_virtual_machine_changed(KEY, self.machines.cached(KEY))
        except RetryAfter as later:
            return later.seconds
        return None

    async def confirmed(self) -> float | None:
        """Called again after the time that it asked for."""
        again = await self.handle()
        assert again is not None
        self.clock.now += again
        return await self.handle()

    @property
    def now(self) -> VirtualMachine:
        found: VirtualMachine = self.machines.now(KEY)
        return found

    @property
    def patches(self) -> list[Any]:
        return self.machines.asked("patch")


async def test_halted_with_reason_and_event_once_the_shortage_has_lasted() -> None:
    place = Place()
    assert await place.handle() == CONFIRM
    assert not place.patches
    place.clock.now += CONFIRM
    await place.handle()
    assert place.now.spec.run_strategy == "Halted"
    assert place.now.annotations[REASON] == CPU
    assert place.events.recorded == [
        (KEY, "Warning", "InsufficientResourceQuota", f"Set runStrategy to Halted: {CPU}")
    ]
    # And that is that.
    assert await place.handle() is None
    assert len(place.patches) == 1


async def test_only_default_quotas_and_kubevirts_pods_are_asked_for() -> None:
    place = Place()
    await place.confirmed()
    assert {asked["labelSelector"] for asked in place.quotas.asked("list")} == {
        "resourcequota.management.cattle.io/default-resource-quota=true"
    }
    assert {asked["labelSelector"] for asked in place.pods.asked("list")} == {
        "kubevirt.io in (virt-launcher,hotplug-disk)"
    }


async def test_the_older_field_is_replaced() -> None:
    place = Place(vm(spec={"running": True}))
    await place.confirmed()
    assert (place.now.spec.running, place.now.spec.run_strategy) == (None, "Halted")


async def test_what_others_wrote_stays() -> None:
    found = vm(annotations={"of/alice": "1"}, labels={"a": "b"})
    place = Place(found)
    await place.confirmed()
    assert place.now.annotations["of/alice"] == "1"
    assert place.now.labels == {"a": "b"}
    assert place.now.spec.template == found.spec.template


async def test_a_pod_that_only_the_api_server_knows_saves_the_vm() -> None:
    """Harvester issue 7585."""
    place = Place()
    place.pods.lagging = True
    place.pods.given(plain_launcher("vm1"))
    assert await place.confirmed() is not None
    assert not place.patches


async def test_a_quota_that_only_the_api_server_knows_saves_the_vm() -> None:
    place = Place(base=limits_text("3", "10Gi"))
    place.quotas.edited("ns1/default-abc", {"status": {"used": {"limits.cpu": "3"}}})
    place.quotas.lagging = True
    place.quotas.edited("ns1/default-abc", {"status": {"used": {"limits.cpu": "0"}}})
    assert await place.confirmed() is not None
    assert not place.patches


async def test_a_shortage_that_passes_halts_no_vm() -> None:
    place = Place()
    await place.handle()
    place.base = limits_text("3", "10Gi")
    place.clock.now += CONFIRM
    assert await place.handle() is not None
    place.base = limits_text("1", "10Gi")
    assert await place.handle() == CONFIRM, "it is short anew"


async def test_a_foreign_writer_in_between_is_not_overwritten() -> None:
    place = Place()
    await place.handle()
    place.clock.now += CONFIRM
    place.machines.before.append(lambda: place.machines.edited(KEY, {"spec": {"runStrategy": "Manual"}}))
    with pytest.raises(Conflict):
        await place.handle()
    assert place.now.spec.run_strategy == "Manual"
    assert not place.events.recorded


LEFT_ALONE = {
    "it can start": (vm(), limits_text("3", "10Gi")),
    "it is halted": (vm(spec={"runStrategy": "Halted"}), limits_text("1")),
    "KubeVirt has not looked at it": (vm(status=""), limits_text("1")),
    "it is on its way out": (vm(deletionTimestamp="2026-01-01T00:00:00Z"), limits_text("1")),
    "no annotation": (vm(), ""),
}


@pytest.mark.parametrize("case", list(LEFT_ALONE.values()), ids=list(LEFT_ALONE))
async def test_left_alone(case: tuple[VirtualMachine, str]) -> None:
    found, base = case
    place = Place(found, base)
    for _ in range(3):
        place.clock.now += await place.handle() or 10
    assert not place.patches


async def test_a_vm_with_a_pod_is_left_alone() -> None:
    place = Place()
    place.pods.given(plain_launcher("vm1"))
    assert await place.handle() is None
    assert not place.patches


async def test_without_a_default_quota_nothing_is_checked() -> None:
    place = Place()
    place.quotas.edited("ns1/default-abc", {"metadata": {"labels": None}})
    await place.confirmed()
    assert not place.patches


async def test_a_vm_that_is_gone_is_forgotten() -> None:
    place = Place()
    await place.handle()
    place.machines.gone(KEY)
    assert await place.handle() is None


MARKED = {REASON: CPU}


@pytest.mark.parametrize(
    ("strategy", "phase", "cleared"),
    [
        ("Always", "Running", True),
        ("Always", "Scheduling", False),
        ("Always", None, False),
        ("Halted", "Running", False),
    ],
)
async def test_the_reason_goes_when_the_vm_runs(strategy: str, phase: str | None, cleared: bool) -> None:
    place = Place(vm(spec={"runStrategy": strategy}, annotations=MARKED), limits_text("3", "10Gi"))
    place.pods.given(plain_launcher("vm1"))
    if phase is not None:
        place.instances.given(msgspec.to_builtins(vmi("vm1", phase=phase)))
    await place.handle()
    assert (REASON not in place.now.annotations) is cleared
