"""Halts a VM that its quota refuses, with the reason. Source: Harvester pkg/controller/master/virtualmachine."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.shared_reads import SharedReads
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.config.time_slices import TimeSlices
from pkg.util import constants
from pkg.util.kubevirt.evidence import trusted_status, vm_of
from pkg.util.resourcequota.managed import is_default
from pkg.util.resourcequota.observe import Listed, Source
from pkg.util.resourcequota.policy import EXACT
from pkg.util.resourcequota.room import run_strategy, shortage_of, wants_to_run

LAUNCHERS_BY_VM = "launchers-by-vm"  # the index of launcher pods by `namespace/<VM name>`
CONFIRM = 1.0  # seconds that a shortage has to last: status.used follows a pod that ended a little later
AGAIN = 5.0  # seconds until a VM that wants to run and has no pod yet is re-checked
_REASON = constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA


@dataclass(eq=False)
class VMHandler:
    vms: ResourceClient[VirtualMachine]
    vmis: CacheReader[VirtualMachineInstance]
    quotas: Controller[ResourceQuota]
    pods: Controller[Pod]
    source: Source
    events: EventRecorder
    clock: Callable[[], float]
    _slices: TimeSlices = field(default_factory=TimeSlices, init=False)
    _short_since: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._live_lists = SharedReads(self._list_live)

    async def on_virtual_machine_changed(self, key: str, vm: VirtualMachine | None) -> None:
        """Halts a VM that its quotas refuse for CONFIRM seconds. Raises RetryAfter while it waits for its pod."""
        if vm is None or vm.deleting or not wants_to_run(vm) or self.pods.cache().by_index(LAUNCHERS_BY_VM, key):
            self._short_since.pop(key, None)
            if vm is not None and not vm.deleting and _REASON in vm.annotations:
                await self._clear(vm)
            return
        if await self._shortage(vm, filter(is_default, self.quotas.cache().list(vm.namespace)), self.source) is None:
            self._short_since.pop(key, None)
            raise RetryAfter(AGAIN, "no pod yet")
        seconds_left = self._short_since.setdefault(key, self.clock()) + CONFIRM - self.clock()
        if seconds_left > 0:
            raise RetryAfter(seconds_left, "confirming the shortage")
        # A pod may be counted while the cache has only the new quota (harvester issue 7585).
        quotas, pods = await self._live_lists.fresh(vm.namespace)
        has_pod = any(vm_of(pod) == vm.name for pod in pods)
        shortage = None if has_pod else await self._shortage(vm, quotas, replace(self.source, pods=Listed(pods)))
        if shortage is None:
            raise RetryAfter(AGAIN, "the caches are stale, the VM fits")
        patch = {
            "metadata": {"resourceVersion": vm.metadata.resource_version, "annotations": {_REASON: shortage}},
            "spec": {"runStrategy": constants.RUN_STRATEGY_HALTED, "running": None},  # KubeVirt takes only one
        }
        message = f"Set runStrategy to {constants.RUN_STRATEGY_HALTED}: {shortage}"
        with suppress(NotFound):
            await self.vms.merge_patch(patch, name=vm.name, namespace=vm.namespace)
            self.events.event(vm, "Warning", constants.EVENT_INSUFFICIENT_RESOURCE_QUOTA, message)
        self._short_since.pop(key, None)

    async def _shortage(self, vm: VirtualMachine, quotas: Iterable[ResourceQuota], source: Source) -> str | None:
        """Returns the shortage of the first quota that refuses the VM."""
        for quota in quotas:
            observed = source.observe(quota, self.clock())
            await self._slices.work_out(observed, EXACT)
            if shortage := shortage_of(vm, observed):
                return shortage
        return None

    async def _list_live(self, namespace: str) -> tuple[Sequence[ResourceQuota], Sequence[Pod]]:
        """Lists the quotas first: a pod that is created in between is then in the list, and there is no shortage. Once
        for all VMs that wait: a tenant may start all of its own again and again."""
        quotas = await self.quotas.client.list(namespace, label_selector=constants.DEFAULT_QUOTAS)
        return quotas, await self.pods.client.list(namespace, label_selector=constants.KUBEVIRT_PODS)

    async def _clear(self, vm: VirtualMachine) -> None:
        """Removes the reason once the VM runs: a person who starts it again may want to read it before."""
        vmi = self.vmis.get(namespace=vm.namespace, name=vm.name)
        runs = vmi is not None and trusted_status(vmi).phase == constants.PHASE_RUNNING
        if runs and run_strategy(vm) != constants.RUN_STRATEGY_HALTED:
            with suppress(NotFound):
                patch = {"metadata": {"annotations": {_REASON: None}}}
                await self.vms.merge_patch(patch, name=vm.name, namespace=vm.namespace)


def register(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Registers the VM check, in both modes: Harvester's own check comes to the same end, later."""
    vms, vmis, pods = management.virtual_machines, management.virtual_machine_instances, management.pods
    pods.cache().add_indexer(LAUNCHERS_BY_VM, lambda pod: [f"{pod.namespace}/{vm_of(pod)}"])
    quotas, source = management.resource_quotas, management.source(settings.profile)
    handler = VMHandler(vms.client, vmis.cache(), quotas, pods, source, events, management.clock)
    vms.on_change("virtualMachineController", handler.on_virtual_machine_changed, reads=_read_of_vm)

    def keys_of_halted_vm(vmi: VirtualMachineInstance) -> list[str]:
        vm = vms.cache().get_by_key(vmi.key)
        return [vm.key] if vm is not None and _REASON in vm.annotations else []

    vms.watch_related(vmis, keys_of_halted_vm)


def _read_of_vm(vm: VirtualMachine) -> object:
    """Returns the part of a VM that the handler reads. Migrating is the same as running."""
    meta, status = vm.metadata, vm.status.printable_status
    status = "Running" if status == "Migrating" else status
    return meta.uid, meta.deletion_timestamp, vm.spec, vm.annotations.get(_REASON), status
