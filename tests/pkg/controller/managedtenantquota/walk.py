"""The two halves of the way, and their writes."""

from __future__ import annotations

from tests.pkg.controller.managedtenantquota.server import Cluster, Process
from tests.pkg.util.managedtenantquota.objects import RAISED
from tests.pkg.util.resourcequota.world import by_value

OPENING = [
    ("create", "validatingwebhookconfigurations"),
    ("patch status", "virtualmachinemigrationresourcequotas"),
    ("patch", "resourcequotas"),
]
CLOSING = [
    ("patch", "resourcequotas"),
    ("patch status", "virtualmachinemigrationresourcequotas"),
    ("delete", "validatingwebhookconfigurations"),
]


async def open_window(cluster: Cluster, process: Process) -> None:
    assert await process.settle() == 30.0
    assert by_value(cluster.hard) == by_value(RAISED)


async def close_window(cluster: Cluster, process: Process) -> None:
    cluster.enforce()
    cluster.admit()
    await process.settle()
    cluster.enforce()
    await process.settle()
