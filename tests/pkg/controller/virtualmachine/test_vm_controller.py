"""Halting a VM, and clearing the reason: what is written, when, and what is looked at before."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from kubeloop.api import registry
from kubeloop.api.core import Pod
from kubeloop.client.errors import Conflict
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES, VirtualMachine
from pkg.config.settings import Settings
from pkg.controller.virtualmachine.vm_controller import CONFIRM, register
from pkg.util import constants
from pkg.util.resourcequota.room import run_strategy, wants_to_run
from tests.decisions import sentences
from tests.kinds import Clock, Events, Server, edited
from tests.objects import annotated_namespace, limits_text, plain_launcher, quota, vm, vmi
from tests.pkg.controller.wired import Wired

KEY = "ns1/vm1"


class VmNamespace:
    """A namespace of 1 CPU with the seed's VM in it, and the handler."""

    def __init__(
        self,
        machine: VirtualMachine | None = None,
        base: str = limits_text("1", "10Gi"),
        pod: Pod | None = None,
        quota_labels: Mapping[str, str] | None = None,
    ) -> None:
        self.events, self.clock, server = Events(), Clock(), Server()
        management = Wired(server, clock=self.clock)
        register(management, self.events.recorder, Settings())
        self._management = management
        self.machines, self.instances = server.kind(VIRTUAL_MACHINES), server.kind(VIRTUAL_MACHINE_INSTANCES)
        self.quotas, self.pods = server.kind(registry.RESOURCE_QUOTAS), server.kind(registry.PODS)
        self._namespaces = server.kind(registry.NAMESPACES)
        self.grant(base)
        self.machines.given(machine or vm())
        self.quotas.given(quota({}, labels=quota_labels))
        if pod is not None:
            self.pods.given(pod)

    def grant(self, base: str) -> None:
        """The base of its quota."""
        self._namespaces.given(annotated_namespace(base))

    async def handle(self, key: str = KEY) -> float | None:
        """Seconds after which it wants to be called again, None when it does not."""
        return await self._management.handle(VIRTUAL_MACHINES, key)

    async def confirmed(self) -> float | None:
        """Called again after the time that it asked for."""
        again = await self.handle()
        assert again is not None
        self.clock.now += again
        return await self.handle()

    @property
    def now(self) -> VirtualMachine:
        machine: VirtualMachine = self.machines.now(KEY)
        return machine

    @property
    def patches(self) -> list[Any]:
        return self.machines.asked("patch")


REASON = constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA
CPU = "cpu insufficient resources due to resource quota"


@pytest.fixture
def namespace() -> VmNamespace:
    return VmNamespace()


async def test_halted_with_reason_and_event_once_the_shortage_lasts(namespace: VmNamespace) -> None:
    assert await namespace.handle() == CONFIRM
    assert not namespace.patches
    namespace.clock.now += CONFIRM
    await namespace.handle()
    assert namespace.now.spec.run_strategy == "Halted"
    assert namespace.now.annotations[REASON] == CPU
    assert namespace.events.recorded == [
        (KEY, "Warning", "InsufficientResourceQuota", f"Set runStrategy to Halted: {CPU}")
    ]
    # And that is that.
    assert await namespace.handle() is None
    assert len(namespace.patches) == 1


async def test_vms_that_are_short_together_are_confirmed_by_one_list(namespace: VmNamespace) -> None:
    keys = [f"ns1/vm{number}" for number in range(20)]
    for key in keys:
        namespace.machines.given(edited(vm(), metadata={"name": key.removeprefix("ns1/"), "uid": f"uid-{key}"}))
        assert await namespace.handle(key) == CONFIRM
    namespace.clock.now += CONFIRM
    await asyncio.gather(*map(namespace.handle, keys))
    assert len(namespace.patches) == 20
    assert len(namespace.pods.asked("list")) <= 2


async def test_only_default_quotas_and_kubevirts_pods_are_asked_for(namespace: VmNamespace) -> None:
    await namespace.confirmed()
    assert {call["labelSelector"] for call in namespace.quotas.asked("list")} == {
        "resourcequota.management.cattle.io/default-resource-quota=true"
    }
    assert {call["labelSelector"] for call in namespace.pods.asked("list")} == {constants.KUBEVIRT_PODS}


async def test_the_older_field_is_replaced() -> None:
    namespace = VmNamespace(vm(spec={"running": True}))
    await namespace.confirmed()
    assert (namespace.now.spec.running, namespace.now.spec.run_strategy) == (None, "Halted")


async def test_what_others_wrote_stays() -> None:
    written_vm = vm(annotations={"of/alice": "1"}, labels={"a": "b"})
    namespace = VmNamespace(written_vm)
    await namespace.confirmed()
    assert namespace.now.annotations["of/alice"] == "1"
    assert namespace.now.labels == {"a": "b"}
    assert namespace.now.spec.template == written_vm.spec.template


async def test_a_pod_that_only_the_api_server_knows_saves_the_vm(namespace: VmNamespace) -> None:
    """Harvester issue 7585."""
    namespace.pods.lagging = True
    namespace.pods.given(plain_launcher("vm1"))
    assert await namespace.confirmed() is not None
    assert not namespace.patches


async def test_a_quota_that_only_the_api_server_knows_saves_the_vm() -> None:
    namespace = VmNamespace(base=limits_text("3", "10Gi"))
    namespace.quotas.edited("ns1/default-abc", {"status": {"used": {"limits.cpu": "3"}}})
    namespace.quotas.lagging = True
    namespace.quotas.edited("ns1/default-abc", {"status": {"used": {"limits.cpu": "0"}}})
    assert await namespace.confirmed() is not None
    assert not namespace.patches


async def test_a_shortage_that_passes_halts_no_vm(namespace: VmNamespace) -> None:
    await namespace.handle()
    namespace.grant(limits_text("3", "10Gi"))
    namespace.clock.now += CONFIRM
    assert await namespace.handle() is not None
    namespace.grant(limits_text("1", "10Gi"))
    assert await namespace.handle() == CONFIRM, "it is short anew"


async def test_a_foreign_writer_in_between_is_not_overwritten(namespace: VmNamespace) -> None:
    await namespace.handle()
    namespace.clock.now += CONFIRM
    namespace.machines.before.append(lambda: namespace.machines.edited(KEY, {"spec": {"runStrategy": "Manual"}}))
    with pytest.raises(Conflict):
        await namespace.handle()
    assert namespace.now.spec.run_strategy == "Manual"
    assert not namespace.events.recorded


SHORT = limits_text("1")
LEFT_ALONE: dict[str, Callable[[], VmNamespace]] = {
    "it can start": lambda: VmNamespace(base=limits_text("3", "10Gi")),
    "it is halted": lambda: VmNamespace(vm(spec={"runStrategy": "Halted"}), SHORT),
    "KubeVirt has not looked at it": lambda: VmNamespace(vm(status=""), SHORT),
    "it is on its way out": lambda: VmNamespace(vm(deletionTimestamp="2026-01-01T00:00:00Z"), SHORT),
    "no annotation": lambda: VmNamespace(base=""),
    "it has a pod": lambda: VmNamespace(pod=plain_launcher("vm1")),
    "no default quota": lambda: VmNamespace(quota_labels={}),
}


@sentences(LEFT_ALONE)
async def test_left_alone(case: Callable[[], VmNamespace]) -> None:
    namespace = case()
    for _ in range(3):
        namespace.clock.now += await namespace.handle() or 10
    assert not namespace.patches


async def test_a_vm_that_is_gone_is_forgotten(namespace: VmNamespace) -> None:
    await namespace.handle()
    namespace.machines.gone(KEY)
    assert await namespace.handle() is None


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
    machine = vm(spec={"runStrategy": strategy}, annotations=MARKED)
    namespace = VmNamespace(machine, limits_text("3", "10Gi"), plain_launcher("vm1"))
    if phase is not None:
        namespace.instances.given(msgspec.to_builtins(vmi("vm1", phase=phase)))
    await namespace.handle()
    assert (REASON not in namespace.now.annotations) is cleared


STRATEGIES = [
    ({}, "Halted"),
    ({"runStrategy": "Always"}, "Always"),
    ({"runStrategy": "RerunOnFailure"}, "RerunOnFailure"),
    ({"runStrategy": "Halted"}, "Halted"),
    ({"running": True}, "Always"),
    ({"running": False}, "Halted"),
]


@pytest.mark.parametrize(("spec", "strategy"), STRATEGIES)
def test_the_run_strategy(spec: dict[str, Any], strategy: str) -> None:
    assert run_strategy(vm(spec=spec)) == strategy
    assert wants_to_run(vm(spec=spec)) is (strategy != "Halted")


def test_before_kubevirt_has_said_anything_nothing_is_checked() -> None:
    assert not wants_to_run(vm(status=""))
