"""KubeVirt's releases as data: what each adds to a launcher pod and which rules it renders by.

The paths are those of KubeVirt's pkg/virt-controller/services where none is given."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from pkg.util.quotacount.releases import by_release, rules_at, version_of

MI = 1024**2


class SupplementalPool(Enum):
    """CPUs of the threads of the supplemental IO thread pool."""

    IGNORED = auto()
    IN_LIMITS = auto()  # added to the limit, in the end and under the policy supplementalPool alone
    AS_VCPUS = auto()
    """Likewise the CPUs of a dedicated topology stand instead of the VMI's own limit and request since then."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The rules of one KubeVirt release, and its amounts of memory in bytes. The defaults are those of 0.54."""

    # The memory overhead: GetMemoryOverhead.
    processes: int = 180 * MI  # virt-launcher-monitor, virt-launcher, virtlogd, virtqemud and QEMU
    video: int = 16 * MI
    qos: int = 0  # for dedicated CPUs or asked-for Guaranteed QoS
    ratio_covers_qos: bool = False
    passt: int = 0  # for an interface with the passt binding (`passtBinding`), beyond the ratio
    passt_all_ports: int = 0  # for each interface with the first passt binding (`passt`) that forwards all ports
    has_ratio: bool = False
    tpm_can_be_disabled: bool = False
    knows_snp: bool = False
    has_reserved_overhead: bool = False
    # The claim of its persistent state: pkg/storage/backend-storage, pkg/storage/cbt.
    target_claims: bool = False  # a migration's target gets a claim of its own where the source's cannot be shared
    tracks_blocks: bool = False  # changed-block tracking keeps state
    tracking_size: int = 0  # what that adds to the claim
    # The compute container: renderresources.go and template.go.
    fills_memory: bool = False  # virt-controller sets an unset request of memory; in earlier releases virt-api
    supplemental_pool: SupplementalPool = SupplementalPool.IGNORED
    even_parity: bool = False
    device_claims: bool = False  # GPUs and host devices can come from dynamic resource allocation
    tdx_device: bool = False
    # The containers beside it.
    console_log_restarts: bool = False
    """Whether what serves the log of the serial console is a restartable init container. Releases before 1.1 have no
    such log; as they are out of support, the container counts there too: rather too much than too little."""
    image_volume_fetched: bool = False  # image volumes have init containers until their digests are known
    attachment_requests: tuple[str, str] = ("100m", "80M")
    # Feature gates that decide here: those that the release has, and those of them that are on unless the CR says so.
    gates: frozenset[str] = frozenset({"AutoResourceLimitsGate"})
    default_gates: frozenset[str] = frozenset()
    auto_limits: bool = False
    """Whether quotas' limits.cpu and limits.memory make KubeVirt limit a launcher without being asked by a gate."""


_IMAGE, _BETA = frozenset({"ImageVolume"}), frozenset({"ImageVolume", "ExternalNetResourceInjection"})

_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "0.54": {},
    "0.55": {"processes": 205 * MI},
    "0.57": {"processes": 208 * MI},
    "0.59": {"processes": 210 * MI, "passt_all_ports": 800 * MI},
    "1.0": {"has_ratio": True},
    "1.1": {"qos": 100 * MI, "even_parity": True},  # EmulatorThreadCompleteToEvenParity
    "1.2": {"attachment_requests": ("10m", "2M")},  # hotplugContainerRequests
    "1.3": {"passt_all_ports": 0},
    "1.4": {"target_claims": True},  # CreatePVCForMigrationTarget
    "1.4.1": {"processes": 215 * MI, "tpm_can_be_disabled": True},  # pkg/tpm HasDevice
    "1.5": {  # WithIOThreads; AutoResourceLimitsGate is GA
        "processes": 220 * MI,
        "tpm_can_be_disabled": False,
        "supplemental_pool": SupplementalPool.IN_LIMITS,
        "gates": frozenset(),
        "auto_limits": True,
    },
    "1.5.1": {"tpm_can_be_disabled": True},
    "1.5.2": {"supplemental_pool": SupplementalPool.AS_VCPUS},  # WithCPUPinning, getIOThreadsCount
    "1.5.3": {"ratio_covers_qos": True},
    # serialconsolelog.go; claims of GPUs and host devices
    "1.6": {"video": 32 * MI, "gates": _IMAGE, "console_log_restarts": True, "device_claims": True},
    "1.6.4": {"fills_memory": True},  # WithMemoryRequests
    # IsSEVSNPVMI; CreateImageVolumeInitContainer; IsBackendStorageNeeded
    "1.7": {"knows_snp": True, "image_volume_fetched": True, "tracks_blocks": True},
    # pkg/network/resources/memory.go, util.RequiresMemoryOverheadReservation
    "1.8": {"passt": 250 * MI, "has_reserved_overhead": True, "gates": _BETA | {"ConfigurableHypervisor"}},
    # template.go: WithTDX, WithIOMMUFD; virt-config/featuregate: IsEnabled
    "1.9": {"tdx_device": True, "gates": _BETA | {"ConfigurableHypervisor", "IOMMUFD"}, "default_gates": _BETA},
    # pkg/hypervisor/kvm/hypervisorbackend.go; CBTBackendStateOverhead
    "main": {"processes": 240 * MI, "tracking_size": 512 * MI},
}
"""What each release, patch releases included, changed of the one before."""

PROFILES = by_release(Profile(), _CHANGES)
"""By the first release that has them; "main" is what comes after 1.9, as it stood in August 2026."""
DEFAULT_PROFILE = PROFILES["1.8"]
NEWEST = "main"

_AMOUNTS = ("processes", "video", "qos", "passt", "passt_all_ports")
_AT_MOST = replace(
    PROFILES[NEWEST],
    **{name: max(getattr(profile, name) for profile in PROFILES.values()) for name in _AMOUNTS},
    tpm_can_be_disabled=False,
    device_claims=False,
    gates=frozenset({"ConfigurableHypervisor", "IOMMUFD"}),
    default_gates=frozenset(),
)
LARGEST = (_AT_MOST, replace(_AT_MOST, supplemental_pool=SupplementalPool.IN_LIMITS))
"""No release renders more than the larger of these: all amounts at their largest, rules of which none always is."""


def profile_for_version(observed: str | None) -> Profile:
    """Returns the profile of a version as the KubeVirt CR's status has it ("v1.8.3", Harvester's "1.6.2-150700.1.1");
    the default one for an unreadable text, the newest for every later version (`is_unknown`)."""
    version = version_of(observed or "")
    if version is None:
        return DEFAULT_PROFILE
    return PROFILES[NEWEST] if is_unknown(observed) else rules_at(PROFILES, version)


def is_unknown(observed: str | None) -> bool:
    """Reports whether the version is newer than every release in `PROFILES`."""
    return (version_of(observed or "") or (0, 0, 0)) >= (1, 10, 0)
