"""The registry of all controllers."""

from __future__ import annotations

from kubeloop.controllers.events import EventRecorder
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller import kubevirt_version
from pkg.controller.managedtenantquota import register as managedtenantquota
from pkg.controller.migration import register as migration
from pkg.controller.namespace import register as namespace
from pkg.controller.resourcequota import register as resourcequota
from pkg.controller.virtualmachine import register as virtualmachine

_WRITERS_OF_OTHER_KINDS = (namespace.register, virtualmachine.register, managedtenantquota.register)


def register_all(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Attaches every controller to its informers; call before `management.start()`.

    A dry run is about quotas: what else would be written is not decided at all.
    """
    kubevirt_version.register(management, events, settings)
    migration.register(management, events, settings)
    if settings.dry_run:
        resourcequota.register(management, events, settings)
        return
    resourcequota.register(management, events, settings, namespace.register_holding(management, events, settings))
    for register in _WRITERS_OF_OTHER_KINDS:
        register(management, events, settings)
