"""KubeVirt's releases as data: what each adds to a launcher pod and which rules it renders by.

A profile is named after the first release that has it, patch releases included, and says what changed since the one
before, with the place in KubeVirt's source. The paths are those of pkg/virt-controller/services where none is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

MI = 1024**2
GATE_AUTO_RESOURCE_LIMITS = "AutoResourceLimitsGate"
GATE_EXTERNAL_NETWORK_RESOURCES = "ExternalNetResourceInjection"
GATE_IMAGE_VOLUME = "ImageVolume"
GATE_IOMMUFD = "IOMMUFD"


class MemoryRequest(Enum):
    """What virt-controller does about the request of memory; virt-api has filled it in before."""

    KEPT = auto()
    OVERCOMMITTED = auto()
    """Divided by memoryOvercommit once more."""
    FILLED = auto()
    """Set where there is none."""


class ConsoleLog(Enum):
    """What serves the log of the serial console. Releases before 1.1 have no such log; as they are out of support, the
    container counts there too: rather too much than too little."""

    CONTAINER = auto()
    SIDECAR = auto()
    """A restartable init container."""


class SupplementalPool(Enum):
    """CPUs of the threads of the supplemental IO thread pool."""

    IGNORED = auto()
    IN_LIMITS = auto()
    """Added to the limit, in the end and under the policy supplementalPool alone."""
    AS_VCPUS = auto()


@dataclass(frozen=True, slots=True)
class Profile:
    """One KubeVirt release: amounts of memory in bytes, and its rules."""

    # The memory overhead: GetMemoryOverhead.
    launcher_monitor: int = 25 * MI
    launcher: int = 100 * MI
    virtlogd: int = 25 * MI
    virtqemud: int = 40 * MI
    qemu: int = 30 * MI
    video: int = 32 * MI
    qos: int = 100 * MI
    """For dedicated CPUs or asked-for Guaranteed QoS."""
    ratio_covers_qos: bool = True
    passt: int = 250 * MI
    """For an interface with the passt binding (`passtBinding`), beyond the ratio."""
    passt_all_ports: int = 0
    """For each interface with the first passt binding (`passt`) that forwards all ports."""
    has_ratio: bool = True
    tpm_can_be_disabled: bool = True
    knows_snp: bool = True
    has_reserved_overhead: bool = True
    # The claim of its persistent state: pkg/storage/backend-storage, pkg/storage/cbt.
    target_claims: bool = True
    """Whether a migration's target gets a claim of its own where the source's cannot be shared."""
    tracks_blocks: bool = True
    """Whether changed-block tracking keeps state."""
    tracking_size: int = 0
    """What changed-block tracking adds to the claim."""
    # The compute container: renderresources.go and template.go.
    memory_request: MemoryRequest = MemoryRequest.FILLED
    pinned_cpus_replace: bool = True
    """Whether the CPUs of a dedicated topology stand instead of the VMI's own limit and request."""
    supplemental_pool: SupplementalPool = SupplementalPool.AS_VCPUS
    even_parity: bool = True
    device_claims: bool = True
    """Whether GPUs and host devices can come from dynamic resource allocation."""
    tdx_device: bool = False
    # The containers beside it.
    console_log: ConsoleLog = ConsoleLog.SIDECAR
    image_volume_fetched: bool = True
    """Whether image volumes have init containers until their digests are known."""
    attachment_requests: tuple[str, str] = ("10m", "2M")
    # Feature gates, of those that decide here: a gate that a release has not means nothing in its CR.
    gates: frozenset[str] = frozenset({GATE_IMAGE_VOLUME, GATE_EXTERNAL_NETWORK_RESOURCES})
    default_gates: frozenset[str] = frozenset()
    """On unless the CR disables them."""
    auto_limits: bool = True
    """Whether quotas' limits.cpu and limits.memory make KubeVirt limit a launcher without being asked by a gate."""


_V1_8 = Profile()
_V1_9 = replace(  # template.go: WithTDX, WithIOMMUFD; virt-config/featuregate: IsEnabled
    _V1_8,
    tdx_device=True,
    gates=_V1_8.gates | {GATE_IOMMUFD},
    default_gates=frozenset({GATE_IMAGE_VOLUME, GATE_EXTERNAL_NETWORK_RESOURCES}),
)
_MAIN = replace(  # pkg/hypervisor/kvm/hypervisorbackend.go; CBTBackendStateOverhead
    _V1_9, qemu=50 * MI, tracking_size=512 * MI
)
_V1_7 = replace(  # 1.8: pkg/network/resources/memory.go, util.RequiresMemoryOverheadReservation
    _V1_8, passt=0, has_reserved_overhead=False, gates=frozenset({GATE_IMAGE_VOLUME})
)
_V1_6_4 = replace(  # 1.7: IsSEVSNPVMI; CreateImageVolumeInitContainer; IsBackendStorageNeeded
    _V1_7, knows_snp=False, image_volume_fetched=False, tracks_blocks=False
)
_V1_6 = replace(_V1_6_4, memory_request=MemoryRequest.KEPT)  # 1.6.4: WithMemoryRequests
_V1_6_2 = replace(_V1_6, memory_request=MemoryRequest.OVERCOMMITTED)  # WithMemoryOvercommit, gone in 1.6.3
_V1_5_3 = replace(  # 1.6: video 32Mi; ImageVolume; serialconsolelog.go; claims of GPUs and host devices
    _V1_6, video=16 * MI, gates=frozenset(), console_log=ConsoleLog.CONTAINER, device_claims=False
)
_V1_5_2 = replace(_V1_5_3, ratio_covers_qos=False)  # 1.5.3: the 100Mi for QoS before the ratio
_V1_5_1 = replace(  # 1.5.2: WithCPUPinning, getIOThreadsCount
    _V1_5_2, pinned_cpus_replace=False, supplemental_pool=SupplementalPool.IN_LIMITS
)
_V1_5 = replace(_V1_5_1, tpm_can_be_disabled=False)  # 1.5.1: pkg/tpm HasDevice
_V1_4_1 = replace(  # 1.5: virtlogd 25Mi; WithIOThreads; AutoResourceLimitsGate is GA
    _V1_5_1,
    virtlogd=20 * MI,
    supplemental_pool=SupplementalPool.IGNORED,
    gates=frozenset({GATE_AUTO_RESOURCE_LIMITS}),
    auto_limits=False,
)
_V1_4 = replace(_V1_4_1, virtqemud=35 * MI, tpm_can_be_disabled=False)  # 1.4.1: virtqemud 40Mi; pkg/tpm HasDevice
_V1_3 = replace(_V1_4, target_claims=False)  # 1.4: CreatePVCForMigrationTarget
_V1_2 = replace(_V1_3, passt_all_ports=800 * MI)  # 1.3: the first passt binding is gone
_V1_1 = replace(_V1_2, attachment_requests=("100m", "80M"))  # 1.2: hotplugContainerRequests
_V1_0 = replace(_V1_1, qos=0, even_parity=False)  # 1.1: 100Mi for QoS; EmulatorThreadCompleteToEvenParity
_V0_59 = replace(_V1_0, has_ratio=False)
_V0_57 = replace(_V0_59, virtlogd=18 * MI, passt_all_ports=0)
_V0_55 = replace(_V0_57, virtlogd=17 * MI, virtqemud=33 * MI)
_V0_54 = replace(_V0_55, launcher=75 * MI)

PROFILES: Mapping[str, Profile] = {
    "0.54": _V0_54,
    "0.55": _V0_55,
    "0.57": _V0_57,
    "0.59": _V0_59,
    "1.0": _V1_0,
    "1.1": _V1_1,
    "1.2": _V1_2,
    "1.3": _V1_3,
    "1.4": _V1_4,
    "1.4.1": _V1_4_1,
    "1.5": _V1_5,
    "1.5.1": _V1_5_1,
    "1.5.2": _V1_5_2,
    "1.5.3": _V1_5_3,
    "1.6": _V1_6,
    "1.6.2": _V1_6_2,
    "1.6.3": _V1_6,
    "1.6.4": _V1_6_4,
    "1.7": _V1_7,
    "1.8": _V1_8,
    "1.9": _V1_9,
    "main": _MAIN,
}
"""By the first release that has them; "main" is what comes after 1.9, as it stood in August 2026."""

_AMOUNTS = ("launcher_monitor", "launcher", "virtlogd", "virtqemud", "qemu", "video", "qos", "passt", "passt_all_ports")
_AT_MOST = replace(
    _MAIN,
    **{name: max(getattr(profile, name) for profile in PROFILES.values()) for name in _AMOUNTS},
    tpm_can_be_disabled=False,
    device_claims=False,
    gates=frozenset({GATE_IOMMUFD}),
    default_gates=frozenset(),
)
LARGEST = (
    _AT_MOST,
    replace(_AT_MOST, memory_request=MemoryRequest.OVERCOMMITTED),
    replace(_AT_MOST, pinned_cpus_replace=False, supplemental_pool=SupplementalPool.IN_LIMITS),
)
"""No release renders more of anything than the largest of these: all amounts at their largest, and the rules of which
none is always the larger one."""

DEFAULT_PROFILE = PROFILES["1.8"]
NEWEST = "main"
_FIRST_UNKNOWN = (1, 10, 0)
_VERSION = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])(?:\.([0-9]{1,4})(?![0-9]))?")


def profile_for_version(observed: str | None) -> Profile:
    """The profile of a version as the KubeVirt CR's status gives it ("v1.8.3", "1.6.2-150700.1.1", as Harvester's
    builds say it); a version without a patch is the minor's first. The default one if the text says nothing readable,
    the newest for whatever came after it (`is_unknown`)."""
    version = _parse(observed)
    if version is None:
        return DEFAULT_PROFILE
    if version >= _FIRST_UNKNOWN:
        return PROFILES[NEWEST]
    fitting = [name for name in PROFILES if name != NEWEST and _key(name) <= version]
    return PROFILES[max(fitting, key=_key)] if fitting else _V0_54


def is_version(text: str | None) -> bool:
    """Whether a text starts as a version does, so that `profile_for_version` reads it."""
    return _parse(text) is not None


def is_unknown(observed: str | None) -> bool:
    """Whether the version is newer than all that the profiles were made of."""
    version = _parse(observed)
    return version is not None and version >= _FIRST_UNKNOWN


def _parse(text: str | None) -> tuple[int, int, int] | None:
    match = _VERSION.match(text or "")
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def _key(name: str) -> tuple[int, int, int]:
    version = _parse(name)
    assert version is not None
    return version
