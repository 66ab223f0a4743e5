"""The containers of a virt-launcher pod, with the resources that KubeVirt gives them.

Source: KubeVirt's template service (pkg/virt-controller/services: template, renderresources, serialconsolelog,
virtiofs; pkg/container-disk; pkg/network/netbinding), releases 1.1 to master, with the API server's defaulting on
top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from kubeloop.api.core import Container, PodSpec, ResourceRequirements
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance
from pkg.util.constants import CPU, MEMORY
from pkg.util.kubevirt.compute_container import compute_resources
from pkg.util.kubevirt.overhead import is_pinned
from pkg.util.kubevirt.profiles import GATE_IMAGE_VOLUME, ConsoleLog
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quantity import ZERO, Format, Quantity
from pkg.util.quotacount.pod_defaults import default_requirements
from pkg.util.resource_list import ResourceList, format_resource_list, parse_resource_list

ANNOTATION_HOOK_SIDECARS = "hooks.kubevirt.io/hookSidecars"
RESTART_ALWAYS = "Always"
COMPUTE = "compute"
HOTPLUG_DISK = "hotplug-disk"
_DISK_PREFIX = "volume"
_KERNEL_BOOT_VOLUME = "kernel-boot-volume"
_EPHEMERAL_STORAGE = "ephemeral-storage"


@dataclass(frozen=True, slots=True)
class _Support:
    """What a kind of support container gets by default: cpu and memory, requests and limits."""

    type: str
    requests: tuple[str, str] | None
    limits: tuple[str, str] | None


_GUEST_CONSOLE_LOG = _Support("guest-console-log", ("5m", "35M"), ("15m", "60M"))
_CONTAINER_DISK = _Support("container-disk", ("1m", "1M"), ("10m", "40M"))
_CONTAINER_DISK_BINARY = _Support("container-disk", ("10m", "1M"), ("100m", "40M"))
_CONTAINER_DISK_BINARY_PINNED = _Support("container-disk", ("10m", "40M"), ("10m", "40M"))
_VIRTIOFS = _Support("virtiofs", ("10m", "1M"), ("100m", "80M"))
_SIDECAR = _Support("sidecar", None, None)
_SIDECAR_PINNED = _Support("sidecar", None, ("200m", "64M"))


def render_containers(
    vmi: VirtualMachineInstance, rendering: Rendering, *, overhead: int, digests_known: bool = False
) -> PodSpec:
    """The containers of the VMI's launcher pod, in KubeVirt's order: `compute` is the first.

    `overhead` is bytes, `memory_overhead`'s or an observed pod's. A migration's target differs from its source in one
    thing: the digests of the container disks' images are known. QuantityError if a quantity of the spec is none.
    """
    kubevirt, profile = rendering.kubevirt, rendering.profile
    limits, requests = compute_resources(vmi, rendering, _spelled_overhead(vmi, overhead))
    containers = [_container(COMPUTE, requests, limits)]
    pinned = is_pinned(vmi.spec.domain)
    console_log = _console_log(vmi, rendering, pinned)
    init_containers = console_log if profile.console_log is ConsoleLog.SIDECAR else []
    disks = _container_disks(vmi, kubevirt, pinned)
    if rendering.has_gate(GATE_IMAGE_VOLUME):
        init_containers += disks if profile.image_volume_fetched and not digests_known else []
    elif disks:
        containers += disks
        init_containers.append(_container_disk_binary(kubevirt, pinned))
        init_containers += [msgspec.structs.replace(disk, name=f"{disk.name}-init") for disk in disks]
    containers += _virtiofs(vmi, kubevirt, pinned)
    if profile.console_log is ConsoleLog.CONTAINER:
        containers += console_log
    containers += _sidecars(vmi, kubevirt, pinned)
    return PodSpec(containers=containers, init_containers=init_containers)


def attachment_container(rendering: Rendering) -> Container:
    """The container of a hotplug attachment pod."""
    support = _Support(HOTPLUG_DISK, rendering.profile.attachment_requests, ("100m", "80M"))
    return _support_container(HOTPLUG_DISK, support, rendering.kubevirt)


def todays_containers(
    containers: Sequence[Container], vmi: VirtualMachineInstance, rendering: Rendering
) -> list[Container]:
    """The containers of a source pod, or its init containers, as its target will have them, by what the CR says now.

    Support containers have the resources that the CR sizes their kind with; where it says nothing, the pod tells more
    than the defaults, which move between releases. Container disks that are image volumes need no container once the
    images' digests are known.
    """
    sized: dict[str, Container] = {}
    if rendering.kubevirt.support_container_resources:
        today = render_containers(vmi, rendering, overhead=0, digests_known=True)
        every = [*today.containers, *(today.init_containers or ())]
        sized = {c.name: c for c in every if is_sized(_type_of(c.name), rendering.kubevirt)}
    if rendering.has_gate(GATE_IMAGE_VOLUME):
        containers = [c for c in containers if _type_of(c.name) != _CONTAINER_DISK.type]
    return [
        msgspec.structs.replace(container, resources=sized[container.name].resources)
        if container.name in sized
        else container
        for container in containers
    ]


def is_sized(container_type: str, kubevirt: KubeVirtConfiguration) -> bool:
    """Whether the CR's supportContainerResources name this kind of container."""
    sized = {entry.type for entry in kubevirt.support_container_resources or ()}
    return container_type != "" and container_type in sized


def is_kubevirts(name: str) -> bool:
    """Whether KubeVirt gives a container this name."""
    return name == COMPUTE or _type_of(name) != ""


def _type_of(name: str) -> str:
    """The kind of a support container by its name; "" for `compute` and what is not KubeVirt's."""
    prefixes = {
        "guest-console-log": _GUEST_CONSOLE_LOG,
        "container-disk-binary": _CONTAINER_DISK,
        _DISK_PREFIX: _CONTAINER_DISK,
        "virtiofs-": _VIRTIOFS,
        "hook-sidecar-": _SIDECAR,
    }
    return next((support.type for prefix, support in prefixes.items() if name.startswith(prefix)), "")


def _spelled_overhead(vmi: VirtualMachineInstance, overhead: int) -> Quantity:
    """The overhead in the format that KubeVirt's sum has: its first part, the page tables, is decimal if any."""
    request = parse_resource_list(vmi.spec.domain.resources.requests).get(MEMORY, ZERO)
    return Quantity.of(overhead, Format.DECIMAL_SI if request else Format.BINARY_SI)


def _container(name: str, requests: ResourceList, limits: ResourceList, restart_policy: str | None = None) -> Container:
    rendered = ResourceRequirements(
        limits=dict(format_resource_list(limits)), requests=dict(format_resource_list(requests))
    )
    return Container(name=name, resources=default_requirements(rendered), restart_policy=restart_policy)


def _support_container(
    name: str,
    support: _Support,
    kubevirt: KubeVirtConfiguration,
    *,
    pinned: bool = False,
    restart_policy: str | None = None,
    extra_requests: ResourceList | None = None,
) -> Container:
    """A support container by the defaults and the CR's supportContainerResources; `pinned`: requests are the
    limits, so that the pod keeps its Guaranteed QoS."""
    configured = _configured(support.type, kubevirt)
    limits = _defaults(support.limits) | configured[0]
    requests = _defaults(support.requests) | configured[1]
    if pinned:
        requests = requests | limits
    return _container(name, requests | (extra_requests or {}), limits, restart_policy)


def _defaults(values: tuple[str, str] | None) -> ResourceList:
    return {} if values is None else {CPU: Quantity.parse(values[0]), MEMORY: Quantity.parse(values[1])}


def _configured(container_type: str, kubevirt: KubeVirtConfiguration) -> tuple[ResourceList, ResourceList]:
    """The CR's (limits, requests) for a kind of container; of each resource the first that is not zero."""
    limits: ResourceList = {}
    requests: ResourceList = {}
    for entry in kubevirt.support_container_resources or ():
        if entry.type != container_type:
            continue
        for target, raw in ((limits, entry.resources.limits), (requests, entry.resources.requests)):
            for name, quantity in parse_resource_list(raw).items():
                if quantity and name in (CPU, MEMORY):
                    target.setdefault(name, quantity)
    return limits, requests


def _console_log(vmi: VirtualMachineInstance, rendering: Rendering, pinned: bool) -> list[Container]:
    kubevirt = rendering.kubevirt
    devices, options = vmi.spec.domain.devices, kubevirt.virtual_machine_options
    enabled = devices.log_serial_console
    if enabled is None:
        enabled = options is None or options.disable_serial_console_log is None
    if not enabled or devices.autoattach_serial_console is False:
        return []
    restart_policy = RESTART_ALWAYS if rendering.profile.console_log is ConsoleLog.SIDECAR else None
    return [
        _support_container(
            "guest-console-log", _GUEST_CONSOLE_LOG, kubevirt, pinned=pinned, restart_policy=restart_policy
        )
    ]


def _container_disks(vmi: VirtualMachineInstance, kubevirt: KubeVirtConfiguration, pinned: bool) -> list[Container]:
    volumes = [volume.name for volume in vmi.spec.volumes or () if volume.container_disk is not None]
    names = [name for name in volumes if name != _KERNEL_BOOT_VOLUME]
    firmware = vmi.spec.domain.firmware
    if firmware and firmware.kernel_boot and firmware.kernel_boot.container is not None:
        names.append(_KERNEL_BOOT_VOLUME)
    storage = {_EPHEMERAL_STORAGE: Quantity.parse("50M")}
    return [
        _support_container(f"{_DISK_PREFIX}{name}", _CONTAINER_DISK, kubevirt, pinned=pinned, extra_requests=storage)
        for name in names
    ]


def _container_disk_binary(kubevirt: KubeVirtConfiguration, pinned: bool) -> Container:
    support = _CONTAINER_DISK_BINARY_PINNED if pinned else _CONTAINER_DISK_BINARY
    return _support_container("container-disk-binary", support, kubevirt, pinned=pinned)


def _virtiofs(vmi: VirtualMachineInstance, kubevirt: KubeVirtConfiguration, pinned: bool) -> list[Container]:
    shared = {filesystem.name for filesystem in vmi.spec.domain.devices.filesystems or ()}
    return [
        _support_container(f"virtiofs-{volume.name}", _VIRTIOFS, kubevirt, pinned=pinned)
        for volume in vmi.spec.volumes or ()
        if volume.name in shared and volume.container_path is None
    ]


def _sidecars(vmi: VirtualMachineInstance, kubevirt: KubeVirtConfiguration, pinned: bool) -> list[Container]:
    support = _SIDECAR_PINNED if pinned else _SIDECAR
    return [
        _support_container(f"hook-sidecar-{index}", support, kubevirt, pinned=pinned)
        for index in range(hook_sidecar_count(vmi) + _binding_sidecar_count(vmi, kubevirt))
    ]


def hook_sidecar_count(vmi: VirtualMachineInstance) -> int:
    """How many sidecars the annotation asks for; none if it is not a list, as such a VMI never gets a pod."""
    try:
        sidecars = msgspec.json.decode(vmi.annotations.get(ANNOTATION_HOOK_SIDECARS, "[]"))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return 0
    return len(sidecars) if isinstance(sidecars, list) else 0


def _binding_sidecar_count(vmi: VirtualMachineInstance, kubevirt: KubeVirtConfiguration) -> int:
    """One sidecar for each network binding plugin in use that has an image."""
    bound = {i.binding.name for i in vmi.spec.domain.devices.interfaces or () if i.binding is not None}
    return sum(bool(p.sidecar_image) for name, p in kubevirt.binding_plugins.items() if name in bound)
