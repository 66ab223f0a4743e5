"""Defaults that virt-api's mutating webhook sets on a new VMI, as far as they decide the size of its launcher.

Source: KubeVirt pkg/defaults (SetDefaultVirtualMachineInstanceSpec), pkg/network/vmispec (SetDefaultNetworkInterface).
The stand-in writes it with the VMI's first status, before any pod: there is no webhook.
"""

from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import parse_resource_list
from lab.kubevirt.objects import Patch, VirtualMachineInstance
from pkg.util.constants import CPU, MEMORY


def defaults(vmi: VirtualMachineInstance) -> Patch:
    """The merge patch of the VMI's spec; empty where nothing is missing. Raises QuantityError."""
    domain = {part: changes for part, changes in _domain(vmi).items() if changes}
    spec = ({"domain": domain} if domain else {}) | _network(vmi)
    return spec if vmi.spec.architecture else {"architecture": "amd64"} | spec


def _domain(vmi: VirtualMachineInstance) -> Patch:
    domain = vmi.spec.domain
    limits, requests = parse_resource_list(domain.resources.limits), parse_resource_list(domain.resources.requests)
    patch: Patch = {"resources": {}, "cpu": {}, "memory": {}, "devices": {}}
    if limits.get(CPU) and not requests.get(CPU):
        patch["resources"] = {"requests": {CPU: str(limits[CPU])}}
        requests[CPU] = limits[CPU]
    guest = requests.get(MEMORY) or limits.get(MEMORY)
    huge_pages = domain.memory.hugepages
    if domain.memory.guest is None:
        if guest:
            patch["memory"] = {"guest": str(guest)}
        elif huge_pages:
            patch["memory"] = {"guest": huge_pages.page_size}
    if domain.cpu is None or not domain.cpu.vcpus:
        sockets = limits.get(CPU, requests.get(CPU, ZERO)).value() if CPU in limits or CPU in requests else 1
        patch["cpu"] = {"sockets": sockets, "cores": 1, "threads": 1}
    if _lacks_network(vmi):
        patch["devices"] = {"interfaces": [{"name": "default", "bridge": {}}]}
    return patch


def _network(vmi: VirtualMachineInstance) -> Patch:
    return {"networks": [{"name": "default", "pod": {}}]} if _lacks_network(vmi) else {}


def _lacks_network(vmi: VirtualMachineInstance) -> bool:
    """Reports whether the VMI gets an interface on the pod's network."""
    devices = vmi.spec.domain.devices
    return devices.autoattach_pod_interface is not False and not devices.interfaces and not vmi.spec.networks
