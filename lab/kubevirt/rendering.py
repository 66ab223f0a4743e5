"""What KubeVirt's configuration means for pods and migrations: overhead, ratio, parallel limits."""

from __future__ import annotations

from collections.abc import Iterable

from kubeloop.api.core import Namespace, PodSpec, ResourceQuota
from lab.kubevirt.options import Options
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, KubeVirtConfiguration, VirtualMachineInstance
from pkg.config.management import Management
from pkg.util import constants
from pkg.util.kubevirt import rendering as rules
from pkg.util.kubevirt.installed import Limits, limits_of
from pkg.util.kubevirt.launcher import render_containers
from pkg.util.kubevirt.overhead import overhead_of
from pkg.util.kubevirt.profiles import PROFILES
from pkg.util.kubevirt.rendering import limited_by, memory_limits_ratio, normalize_ratio, parse_ratio

NO_RATIO = ""
REPORTING_PROFILE = "main"
"""The release whose VMIs report the overhead (status.memory.memoryOverhead), as the recorded objects do."""


class Rendering(rules.Rendering):
    """KubeVirt's configuration at one moment, for one namespace, as the product reads it too."""

    def containers(self, vmi: VirtualMachineInstance, *, is_target: bool = False) -> PodSpec:
        return render_containers(vmi, self, overhead=overhead_of(vmi, self), digests_known=is_target)

    @property
    def reports_overhead(self) -> bool:
        return self.profile == PROFILES[REPORTING_PROFILE]


def rendering(
    kubevirts: Iterable[KubeVirt],
    setting: Setting | None,
    options: Options,
    *,
    quotas: Iterable[ResourceQuota] = (),
    namespace: Namespace | None = None,
) -> Rendering:
    """The configuration that counts: KubeVirt's CR once it is Deployed, Harvester's setting for what it leaves open.

    `quotas` and `namespace` are those of the pod that is to be rendered.
    """
    configuration = deployed_configuration(kubevirts)
    return Rendering(
        kubevirt=configuration,
        ratio=overhead_ratio(configuration, setting),
        profile=PROFILES[options.overhead_profile],
        quota_limits=limited_by(name for quota in quotas for name in quota.hard),
        memory_limits_ratio=memory_limits_ratio(namespace.labels if namespace else {}),
    )


def deployed_configuration(kubevirts: Iterable[KubeVirt]) -> KubeVirtConfiguration:
    """The configuration of the first KubeVirt that is Deployed, else an empty one."""
    deployed = (kv for kv in kubevirts if kv.status.phase == constants.KUBEVIRT_PHASE_DEPLOYED)
    first = min(deployed, key=lambda kv: kv.key, default=None)
    return first.spec.configuration if first else KubeVirtConfiguration()


def overhead_ratio(configuration: KubeVirtConfiguration, setting: Setting | None) -> str:
    """The CR's ratio if it has one, else the setting's (Harvester copies it into the CR), else none at all."""
    configured = configuration.additional_guest_memory_overhead_ratio
    if configured:
        return configured if parse_ratio(configured) is not None else NO_RATIO
    if setting is None:
        return NO_RATIO
    return normalize_ratio(setting.value, setting.default)


def observed_version(profile: str) -> str:
    """The version that a KubeVirt of that profile reports."""
    if profile == REPORTING_PROFILE:
        return "v1.10.0"
    return f"v{profile}" if profile.count(".") == 2 else f"v{profile}.0"


class Configuration:
    """What holds at this moment, from the caches."""

    def __init__(self, management: Management, options: Options) -> None:
        self._kubevirts = management.kubevirts.cache()
        self._settings = management.settings.cache()
        self._quotas = management.resource_quotas.cache()
        self._namespaces = management.namespaces.cache()
        self._options = options

    def rendering(self, namespace: str) -> Rendering:
        """For pods of this namespace."""
        return rendering(
            self._kubevirts.list(),
            self._settings.get_by_key(constants.SETTING_OVERHEAD_RATIO),
            self._options,
            quotas=self._quotas.list(namespace),
            namespace=self._namespaces.get_by_key(namespace),
        )

    def limits(self) -> Limits:
        """The parallel limits: the CR's, else the command line's."""
        given = Limits(self._options.parallel_migrations, self._options.parallel_outbound)
        return limits_of(deployed_configuration(self._kubevirts.list()), given)
