"""A VM as KubeVirt completes it before it runs. Pure.

Source: KubeVirt pkg/defaults (SetDefaultGuestCPUTopology).
"""

from __future__ import annotations

from msgspec.structs import replace

from kubeloop.api.resource_list import parse_resource_list
from pkg.api.kubevirt import CPU, VirtualMachine, VirtualMachineInstance
from pkg.util import constants


def with_topology(vmi: VirtualMachineInstance) -> VirtualMachineInstance:
    """Returns the VMI with a CPU topology: by default the limit, else the request, is the number of sockets, else one.
    Raises QuantityError if a quantity is invalid."""
    domain = vmi.spec.domain
    cpu = domain.cpu or CPU()
    if cpu.vcpus:
        return vmi
    amounts = parse_resource_list(domain.resources.requests) | parse_resource_list(domain.resources.limits)
    sockets = amounts[constants.CPU].value() if constants.CPU in amounts else 1
    domain = replace(domain, cpu=replace(cpu, sockets=sockets, cores=1, threads=1))
    return replace(vmi, spec=replace(vmi.spec, domain=domain))


def missing_instancetype(vm: VirtualMachine) -> str:
    """Returns the object that gives a VM its size and is not read here, as text; "" if the VM's spec has its size."""
    return f"instancetype {vm.spec.instancetype.name}" if vm.spec.instancetype else ""
