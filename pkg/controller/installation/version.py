"""Whether the KubeVirt that is installed is one that headroom knows."""

from __future__ import annotations

import logging

from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import KubeVirt
from pkg.config.management import Management
from pkg.controller.options import Options
from pkg.util.kubevirt.installed import observed_version
from pkg.util.kubevirt.profiles import NEWEST, is_unknown

log = logging.getLogger(__name__)
VERSION_CONTROLLER = "kubevirtVersionController"


class VersionNotice:
    """Warns once for each version that is newer than all known ones."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    async def on_kubevirt_changed(self, _key: str, kubevirt: KubeVirt | None) -> None:
        """Nothing for a version that is known, or as long as there is none."""
        version = observed_version([kubevirt]) if kubevirt else None
        if version is None or version in self._said or not is_unknown(version):
            return
        self._said.add(version)
        log.warning(
            "KubeVirt %s is newer than the releases that headroom knows: launcher pods are estimated by profile %r; "
            "--kubevirt-profile selects another one",
            version,
            NEWEST,
        )


def register(management: Management, _events: EventRecorder, options: Options) -> None:
    """Nothing where an operator has chosen a profile."""
    if options.profile is None:
        management.kubevirts.on_change(VERSION_CONTROLLER, VersionNotice().on_kubevirt_changed)
