"""The handler, and what calls it."""

import logging

from examples.nodedrain.kinds import REPLICAS, VOLUMES
from examples.nodedrain.kubevirt import VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES, VirtualMachineInstance
from examples.nodedrain.possible import (
    MAINTAIN_STATUS,
    RESTARTED,
    SHUTDOWN,
    STRATEGY,
    DrainNotPossible,
    check_control_plane,
    last_replicas,
    not_migratable,
    stays,
    without_another_node,
)
from kubeloop.api.core import Node
from kubeloop.api.objects import edit
from kubeloop.api.registry import NODES
from kubeloop.client.drain import Drain
from kubeloop.controllers.factory import ControllerFactory

log = logging.getLogger(__name__)

DRAIN_REQUESTED, DRAIN_FORCED = "harvesterhci.io/drain-requested", "harvesterhci.io/drain-forced"
RESTART_NODE = "harvesterhci.io/maintain-mode-strategy-node-name"
_LONGHORN = "longhorn-system"


def register(management: ControllerFactory) -> None:
    management.controller(NODES).on_change("node-drain-controller", NodeDrainHandler(management).on_node_change)


class NodeDrainHandler:
    def __init__(self, management: ControllerFactory) -> None:
        nodes, machines = management.controller(NODES), management.controller(VIRTUAL_MACHINES)
        self._nodes, self._node_cache = nodes.client, nodes.cache()
        self._machines, self._machine_cache = machines.client, machines.cache()
        self._instances = management.controller(VIRTUAL_MACHINE_INSTANCES).cache()
        self._volumes = management.controller(VOLUMES).cache()
        self._replicas = management.controller(REPLICAS).cache()
        # https://kubevirt.io/user-guide/operations/node_maintenance/ and Longhorn's guide to maintenance.
        self._drain = Drain(
            client=management.client,
            ignore_daemon_sets=True,
            delete_empty_dir_data=True,
            force=True,
            pod_selector="app!=csi-attacher,app!=csi-provisioner,kubevirt.io!=hotplug-disk",
            grace_period_seconds=180,
            timeout=240.0,
            skips=stays,
        )

    async def on_node_change(self, key: str, node: Node | None) -> Node | None:
        if node is None or node.deleting or DRAIN_REQUESTED not in node.annotations:
            return node
        forced = DRAIN_FORCED in node.annotations
        try:
            check_control_plane(node, self._node_cache.list())
            stopped = self.non_migratable_vms(node)
            if not forced:
                if stopped:
                    reasons = (f"{','.join(vms)} cannot be migrated due to {reason}" for reason, vms in stopped.items())
                    raise DrainNotPossible(f"non-migratable VMs: {'; '.join(reasons)}; use a forced drain")
                stopped = {STRATEGY: await self._to_be_shut_down(node)}
        except DrainNotPossible:
            await self._annotate(node, None)
            raise
        for vm in sorted({vm for vms in stopped.values() for vm in vms}):
            await self._stop(vm)
        await self._drain.cordon(node.name)
        await self._drain.run(node.name)
        return await self._annotate(node, "running")

    def non_migratable_vms(self, node: Node) -> dict[str, list[str]]:
        """Returns the keys of the node's VMs that cannot be migrated, by the reason. Raises NotFound."""
        here = self._instances.list(labels={"kubevirt.io/nodeName": node.name})
        vms_by_reason = not_migratable(here)
        if last_healthy := [_machine_of(vmi) for vmi in self.with_last_replica(node)]:
            vms_by_reason["LastHealthyReplica"] = last_healthy
        if unschedulable := without_another_node(node, self._node_cache.list(), here):
            vms_by_reason["NodeSchedulingRequirementsNotMet"] = unschedulable
        return vms_by_reason

    def with_last_replica(self, node: Node) -> list[VirtualMachineInstance]:
        """Returns VMIs on any node with a volume whose only working replica is on this node. Raises NotFound."""
        vmis = []
        for name in last_replicas(node.name, self._replicas.list(_LONGHORN)):
            used = self._volumes.require(namespace=_LONGHORN, name=name).status.kubernetes_status
            for workload in (used and used.workloads_status) or ():
                if used and workload.workload_type == "VirtualMachineInstance":
                    vmi_name = {"namespace": used.namespace or "", "name": workload.workload_name or ""}
                    vmis.append(self._instances.require(**vmi_name))
        return vmis

    async def _to_be_shut_down(self, node: Node) -> list[str]:
        """Returns VMs that their label shuts down for a drain, and writes the node on those that restart after it."""
        vms_to_stop = []
        labelled = f"kubevirt.io/nodeName={node.name},{STRATEGY} in ({','.join(SHUTDOWN)})"
        for instance in self._instances.list(labels=labelled):
            vms_to_stop.append(key := _machine_of(instance))
            machine = self._machine_cache.get_by_key(key)
            if instance.labels[STRATEGY] not in RESTARTED or machine is None:
                continue
            if machine.annotations.get(RESTART_NODE) != node.name:
                await self._machines.patch(machine, {"metadata": {"annotations": {RESTART_NODE: node.name}}})
        return vms_to_stop

    async def _stop(self, key: str) -> None:
        machine = self._machine_cache.get_by_key(key)
        if machine is None:
            return
        if machine.spec.run_strategy != "Halted" and machine.spec.running is not False:
            log.info("stopping VM %s", key)
            await self._machines.update(machine, edit(machine, spec={"run_strategy": "Halted"}))

    async def _annotate(self, node: Node, status: str | None) -> Node:
        """Without the request, and with the status. The drain itself has written the node: not bound to its version."""
        annotations = {DRAIN_REQUESTED: None, DRAIN_FORCED: None, MAINTAIN_STATUS: status}
        return await self._nodes.merge_patch({"metadata": {"annotations": annotations}}, name=node.name)


def _machine_of(instance: VirtualMachineInstance) -> str:
    """`namespace/name`. Raises ValueError for an instance that no VM owns."""
    for owner in instance.metadata.owner_references or ():
        if (owner.kind, owner.api_version) == ("VirtualMachine", "kubevirt.io/v1"):
            return f"{instance.namespace}/{owner.name}"
    raise ValueError(f"VMI {instance.key} has no VM as its owner")
