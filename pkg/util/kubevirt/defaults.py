"""A VM as KubeVirt completes it before it runs. Pure.

Source: KubeVirt pkg/defaults (SetDefaultGuestCPUTopology), pkg/virt-api/webhooks (SetDefaultResourceRequests).
"""

from __future__ import annotations

from msgspec.structs import replace

from kubeloop.api.resource_list import format_resource_list, parse_resource_list
from pkg.api.kubevirt import CPU, VirtualMachineInstance
from pkg.util import constants
from pkg.util.kubevirt.compute_container import fill_memory, memory_overcommit
from pkg.util.kubevirt.profiles import MemoryRequest
from pkg.util.kubevirt.rendering import Rendering


def with_defaults(vmi: VirtualMachineInstance, rendering: Rendering) -> VirtualMachineInstance:
    """Returns the VMI with a CPU topology, and up to the release in which virt-controller does it with a request of
    memory. Raises QuantityError if a quantity is invalid."""
    vmi = with_topology(vmi)
    domain, resources = vmi.spec.domain, vmi.spec.domain.resources
    requests = parse_resource_list(resources.requests)
    if rendering.profile.memory_request is MemoryRequest.FILLED or requests.get(constants.MEMORY):
        return vmi
    fill_memory(domain.memory, memory_overcommit(rendering), (parse_resource_list(resources.limits), requests))
    domain = replace(domain, resources=replace(resources, requests=format_resource_list(requests)))
    return replace(vmi, spec=replace(vmi.spec, domain=domain))


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
