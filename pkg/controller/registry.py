"""The registry of all controllers."""

import logging

from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import KubeVirt
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.managedtenantquota import managedtenantquota_controller
from pkg.controller.migration import vmi_controller
from pkg.controller.namespace import namespace_controller
from pkg.controller.resourcequota import register as resourcequota
from pkg.controller.virtualmachine import vm_controller
from pkg.util.kubevirt.profiles import NEWEST, is_unknown
from pkg.util.kubevirt.rendering import deployed_kubevirt

log = logging.getLogger(__name__)


def register_all(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Attaches every controller to its informers; call before `management.start()`. A dry run is about quotas alone."""
    if settings.profile is None:
        warn_of_unknown_versions(management)
    vmi_controller.register(management, settings)
    if settings.dry_run:
        resourcequota.register(management, events, settings)
        return
    holding = namespace_controller.register_holding(management, events, settings)
    resourcequota.register(management, events, settings, holding.before_raise)
    for controller in (namespace_controller, vm_controller, managedtenantquota_controller):
        controller.register(management, events, settings)


def warn_of_unknown_versions(management: Management) -> None:
    """Warns once for each version of KubeVirt that is newer than all known ones."""
    logged_versions: set[str | None] = set()

    async def on_kubevirt_changed(_key: str, kubevirt: KubeVirt | None) -> None:
        version = deployed_kubevirt([kubevirt] if kubevirt else ()).status.observed_kube_virt_version
        if is_unknown(version) and version not in logged_versions:
            logged_versions.add(version)
            newer = f"KubeVirt {version} is newer than the releases that headroom knows: launcher pods are estimated"
            log.warning("%s by profile %r; --kubevirt-profile selects another one", newer, NEWEST)

    management.kubevirts.on_change("kubevirtVersionController", on_kubevirt_changed)
