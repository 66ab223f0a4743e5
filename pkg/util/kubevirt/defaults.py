"""A VM as KubeVirt completes it before it runs. Pure.

Source: KubeVirt pkg/defaults (SetDefaultGuestCPUTopology).
"""

from __future__ import annotations

from msgspec.structs import replace

from kubeloop.api.resource_list import parse_resource_list
from pkg.api.kubevirt import CPU, VirtualMachine, VirtualMachineInstance
from pkg.util import constants


def with_topology(vmi: VirtualMachineInstance) -> VirtualMachineInstance:
    """Returns the VMI with a CPU topology: without one the limit, else the request, is a number of sockets, else one.
    Raises QuantityError."""
    domain = vmi.spec.domain
    cpu = domain.cpu or CPU()
    if cpu.vcpus:
        return vmi
    given = parse_resource_list(domain.resources.requests) | parse_resource_list(domain.resources.limits)
    sockets = given[constants.CPU].value() if constants.CPU in given else 1
    domain = replace(domain, cpu=replace(cpu, sockets=sockets, cores=1, threads=1))
    return replace(vmi, spec=replace(vmi.spec, domain=domain))


def missing_instancetype(vm: VirtualMachine) -> str:
    """Returns what a VM takes its size from and is not read here, as text; "" where it says its size itself."""
    return f"instancetype {vm.spec.instancetype.name}" if vm.spec.instancetype else ""
