"""The containers of a virt-launcher pod, with the resources that KubeVirt gives them.

Source: KubeVirt's template service (pkg/virt-controller/services: template, renderresources, serialconsolelog,
virtiofs; pkg/container-disk), releases 1.8 to master, with the API server's defaulting on top. Not here, because it
needs objects that nobody watches: network bindings that are plugins (their sidecar and memory).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from pkg.api.core import Container, ResourceRequirements
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance
from pkg.util.compute_container import ComputeOptions, compute_resources
from pkg.util.constants import CPU, MEMORY
from pkg.util.memory_overhead import is_dedicated, wants_guaranteed
from pkg.util.pod_defaults import default_requirements
from pkg.util.quantity import ZERO, Format, Quantity
from pkg.util.resource_list import ResourceList, format_resource_list, parse_resource_list

ANNOTATION_HOOK_SIDECARS = "hooks.kubevirt.io/hookSidecars"
GATE_IMAGE_VOLUME = "ImageVolume"
RESTART_ALWAYS = "Always"
HOTPLUG_DISK = "hotplug-disk"
_KERNEL_BOOT_VOLUME = "kernel-boot-volume"
_EPHEMERAL_STORAGE = "ephemeral-storage"


@dataclass(frozen=True, slots=True)
class LauncherContainers:
    """A launcher pod's containers, in KubeVirt's order: `compute` is the first."""

    containers: list[Container]
    init_containers: list[Container]


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
_HOTPLUG_ATTACHMENT = _Support(HOTPLUG_DISK, ("10m", "2M"), ("100m", "80M"))


def render_containers(
    vmi: VirtualMachineInstance,
    *,
    overhead: int,
    kubevirt: KubeVirtConfiguration,
    quota_limits: Collection[str] = (),
    memory_limits_ratio: float = 2.0,
    network_resources: Sequence[str] = (),
) -> LauncherContainers:
    """The containers of the VMI's launcher pod; the same for the source and the target of a migration.

    `overhead` is bytes, `memory_overhead`'s or an observed pod's. `quota_limits` names what ("cpu", "memory") a
    quota of the namespace limits: KubeVirt then sets that limit where the VMI has none, memory at
    `memory_limits_ratio` (a label of the namespace) times the request. `network_resources` are the extended
    resources of the VMI's networks, one entry a network. QuantityError if a quantity of the spec is none.
    """
    options = ComputeOptions(
        overhead=_spelled_overhead(vmi, overhead),
        quota_limits=frozenset(quota_limits),
        memory_limits_ratio=memory_limits_ratio,
        network_resources=tuple(network_resources),
    )
    limits, requests = compute_resources(vmi, kubevirt, options)
    containers = [_container("compute", requests, limits)]
    init_containers = _console_log(vmi, kubevirt)
    disks = _container_disks(vmi, kubevirt)
    if disks and _has_gate(kubevirt, GATE_IMAGE_VOLUME):
        init_containers += disks
    elif disks:
        containers += disks
        init_containers.append(_container_disk_binary(vmi, kubevirt))
        init_containers += [msgspec.structs.replace(disk, name=f"{disk.name}-init") for disk in disks]
    containers += _virtiofs(vmi, kubevirt) + _sidecars(vmi, kubevirt)
    return LauncherContainers(containers, init_containers)


def attachment_container(kubevirt: KubeVirtConfiguration) -> Container:
    """The container of a hotplug attachment pod."""
    return _support_container(HOTPLUG_DISK, _HOTPLUG_ATTACHMENT, kubevirt)


def resized_containers(
    containers: Sequence[Container], today: LauncherContainers, kubevirt: KubeVirtConfiguration
) -> list[Container]:
    """The containers of an existing pod, its support containers as `today` has them where the CR sizes their kind.

    What the CR says holds for the next pod, whatever this one was made with; where it says nothing, the pod tells more
    than the defaults, which move between releases.
    """
    every = [*today.containers, *today.init_containers]
    todays = {c.name: c for c in every if (kind := _type_of(c.name)) and is_sized(kind, kubevirt)}
    return [
        msgspec.structs.replace(container, resources=todays[container.name].resources)
        if container.name in todays
        else container
        for container in containers
    ]


def is_sized(container_type: str, kubevirt: KubeVirtConfiguration) -> bool:
    """Whether the CR's supportContainerResources name this kind of container."""
    return any(entry.type == container_type for entry in kubevirt.support_container_resources or ())


def _type_of(name: str) -> str:
    """The kind of a support container by its name; "" for `compute` and what is not KubeVirt's."""
    prefixes = {
        "guest-console-log": _GUEST_CONSOLE_LOG,
        "container-disk-binary": _CONTAINER_DISK,
        "volume": _CONTAINER_DISK,
        "virtiofs-": _VIRTIOFS,
        "hook-sidecar-": _SIDECAR,
    }
    return next((support.type for prefix, support in prefixes.items() if name.startswith(prefix)), "")


def _spelled_overhead(vmi: VirtualMachineInstance, overhead: int) -> Quantity:
    """The overhead in the format that KubeVirt's sum has: its first part, the page tables, is decimal if any."""
    request = parse_resource_list(vmi.spec.domain.resources.requests).get(MEMORY, ZERO)
    return Quantity.of(overhead, Format.DECIMAL_SI if request else Format.BINARY_SI)


def _container(
    name: str, requests: ResourceList, limits: ResourceList, restart_policy: str | None = None
) -> Container:
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


def _is_pinned(vmi: VirtualMachineInstance) -> bool:
    return is_dedicated(vmi.spec.domain) or wants_guaranteed(vmi.spec.domain)


def _has_gate(kubevirt: KubeVirtConfiguration, gate: str) -> bool:
    developer = kubevirt.developer_configuration
    return developer is not None and gate in (developer.feature_gates or ())


def _console_log(vmi: VirtualMachineInstance, kubevirt: KubeVirtConfiguration) -> list[Container]:
    devices, options = vmi.spec.domain.devices, kubevirt.virtual_machine_options
    enabled = devices.log_serial_console
    if enabled is None:
        enabled = options is None or options.disable_serial_console_log is None
    if not enabled or devices.autoattach_serial_console is False:
        return []
    return [
        _support_container(
            "guest-console-log",
            _GUEST_CONSOLE_LOG,
            kubevirt,
            pinned=_is_pinned(vmi),
            restart_policy=RESTART_ALWAYS,
        )
    ]


def _container_disks(vmi: VirtualMachineInstance, kubevirt: KubeVirtConfiguration) -> list[Container]:
    volumes = [volume.name for volume in vmi.spec.volumes or () if volume.container_disk is not None]
    names = [name for name in volumes if name != _KERNEL_BOOT_VOLUME]
    firmware = vmi.spec.domain.firmware
    if firmware and firmware.kernel_boot and firmware.kernel_boot.container is not None:
        names.append(_KERNEL_BOOT_VOLUME)
    storage = {_EPHEMERAL_STORAGE: Quantity.parse("50M")}
    return [
        _support_container(
            f"volume{name}", _CONTAINER_DISK, kubevirt, pinned=_is_pinned(vmi), extra_requests=storage
        )
        for name in names
    ]


def _container_disk_binary(vmi: VirtualMachineInstance, kubevirt: KubeVirtConfiguration) -> Container:
    pinned = _is_pinned(vmi)
    support = _CONTAINER_DISK_BINARY_PINNED if pinned else _CONTAINER_DISK_BINARY
    return _support_container("container-disk-binary", support, kubevirt, pinned=pinned)


def _virtiofs(vmi: VirtualMachineInstance, kubevirt: KubeVirtConfiguration) -> list[Container]:
    shared = {filesystem.name for filesystem in vmi.spec.domain.devices.filesystems or ()}
    return [
        _support_container(f"virtiofs-{volume.name}", _VIRTIOFS, kubevirt, pinned=_is_pinned(vmi))
        for volume in vmi.spec.volumes or ()
        if volume.name in shared and volume.container_path is None
    ]


def _sidecars(vmi: VirtualMachineInstance, kubevirt: KubeVirtConfiguration) -> list[Container]:
    pinned = _is_pinned(vmi)
    support = _SIDECAR_PINNED if pinned else _SIDECAR
    return [
        _support_container(f"hook-sidecar-{index}", support, kubevirt, pinned=pinned)
        for index in range(_hook_sidecar_count(vmi))
    ]


def _hook_sidecar_count(vmi: VirtualMachineInstance) -> int:
    """How many sidecars the annotation asks for; none if it is no list, as such a VMI never gets a pod."""
    try:
        sidecars = msgspec.json.decode(vmi.annotations.get(ANNOTATION_HOOK_SIDECARS, "[]"))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return 0
    return len(sidecars) if isinstance(sidecars, list) else 0
