"""Every controller there is."""

from __future__ import annotations

from pkg.controller import migration, namespace, resourcequota
from pkg.controller.indexes import index
from pkg.controller.options import Options
from pkg.generic.events import EventRecorder
from pkg.generic.factory import Management

_REGISTRATIONS = (
    migration.register,
    resourcequota.register,
    namespace.register,
)


def register_all(management: Management, events: EventRecorder, options: Options) -> None:
    """Attach every controller to its informers; call before `management.start()`."""
    index(management)
    for register in _REGISTRATIONS:
        register(management, events, options)
