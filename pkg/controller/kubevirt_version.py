"""The check that headroom knows the KubeVirt that is installed."""

from __future__ import annotations

import logging

from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import KubeVirt
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.util.kubevirt.profiles import NEWEST, is_unknown
from pkg.util.kubevirt.rendering import observed_version

log = logging.getLogger(__name__)
VERSION_CONTROLLER = "kubevirtVersionController"


def register(management: Management, _events: EventRecorder, settings: Settings) -> None:
    """Warns once for each version that is newer than all known ones; not where an operator has chosen a profile."""
    if settings.profile is not None:
        return
    logged_versions: set[str | None] = set()

    async def on_kubevirt_changed(_key: str, kubevirt: KubeVirt | None) -> None:
        version = observed_version([kubevirt]) if kubevirt else None
        if is_unknown(version) and version not in logged_versions:
            logged_versions.add(version)
            newer = f"KubeVirt {version} is newer than the releases that headroom knows: launcher pods are estimated"
            log.warning("%s by profile %r; --kubevirt-profile selects another one", newer, NEWEST)

    management.kubevirts.on_change(VERSION_CONTROLLER, on_kubevirt_changed)
