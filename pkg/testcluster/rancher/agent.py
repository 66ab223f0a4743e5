"""The agent that restarts: Rancher's cattle-cluster-agent, for whom every namespace is new each time."""

from __future__ import annotations

import logging

from pkg.api.core import Namespace
from pkg.api.registry import RESOURCE_QUOTAS
from pkg.config.management import Management
from pkg.generic.controller import Controller
from pkg.testcluster.rancher.namespace_controller import AGENT_NAMESPACE, ANNOTATION_RESTART, NamespaceHandler

logger = logging.getLogger(__name__)


class Agent:
    """Restarts the handler, by hand or because the annotation on cattle-system says something new."""

    def __init__(self, handler: NamespaceHandler, namespaces: Controller[Namespace]) -> None:
        self._handler = handler
        self._namespaces = namespaces
        self._asked = ""
        self.restarts = 0

    def restart(self) -> None:
        """Every quota goes back to its base."""
        self.restarts += 1
        self._handler.restart()
        namespaces = self._namespaces.cache().list()
        for namespace in namespaces:
            self._namespaces.enqueue(namespace.key, immediately=True)
        logger.info("agent restarted: %d namespaces", len(namespaces))

    async def on_namespace_changed(self, key: str, namespace: Namespace | None) -> None:
        """An annotation that was there at the start restarts it too: that changes nothing, it has just started."""
        if key != AGENT_NAMESPACE:
            return
        asked = namespace.annotations.get(ANNOTATION_RESTART, "") if namespace else ""
        if asked not in ("", self._asked):
            self.restart()
        self._asked = asked


def register(management: Management, *, every_event: bool = False) -> Agent:
    """Give the management its handlers; start it afterwards."""
    namespaces = management.namespaces
    handler = NamespaceHandler(management.client.resource(RESOURCE_QUOTAS), every_event=every_event)
    agent = Agent(handler, namespaces)
    namespaces.on_change("agent", agent.on_namespace_changed)
    namespaces.on_change("resourcequota-sync", handler.on_namespace_changed)
    return agent
