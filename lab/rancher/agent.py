"""Rancher's agent: its controllers on one Management, and their restart."""

import logging
from collections.abc import Iterable

from kubeloop.api.core import Namespace
from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.client.client import Client
from kubeloop.controllers.controller import Controller
from lab.rancher import project_controllers
from lab.rancher.project import PROJECTS, project_id
from lab.rancher.releases import DEFAULT, RELEASES, Release
from lab.rancher.sync_controller import BY_PROJECT, Clients, SyncController
from pkg.config.management import Management

logger = logging.getLogger(__name__)


class Agent:
    """The agent as others see it."""

    def __init__(self, namespaces: Controller[Namespace]) -> None:
        self._namespaces = namespaces

    def restart(self) -> None:
        """Starts the agent anew: it looks at every namespace, and each quota goes back to what Rancher granted."""
        namespaces = self._namespaces.cache().list()
        for namespace in namespaces:
            self._namespaces.enqueue(namespace.key, immediately=True)
        logger.info("agent restarted: %d namespaces", len(namespaces))


def register(management: Management, quota_writer: Client | None = None, release: Release = RELEASES[DEFAULT]) -> Agent:
    """Gives the management its handlers; start it afterwards. `quota_writer` writes the quotas: another user, who
    passes Rancher's own webhook."""
    namespaces, projects = management.namespaces, management.controller(PROJECTS)
    namespaces.cache().add_indexer(BY_PROJECT, _projects_of)
    sync = SyncController(
        Clients(
            quotas=(quota_writer or management.client).resource(RESOURCE_QUOTAS),
            namespaces=namespaces.client,
            namespace_cache=namespaces.cache(),
            project_cache=projects.cache(),
            clock=management.clock,
        ),
        release,
    )
    namespaces.on_change("resourceQuotaSyncController", sync.on_namespace_changed)
    project_controllers.register(namespaces, projects, sync, release)
    return Agent(namespaces)


def _projects_of(namespace: Namespace) -> Iterable[str]:
    return [project] if (project := project_id(namespace)) else []
