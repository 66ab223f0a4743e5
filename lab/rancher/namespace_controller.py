"""Namespace annotation → default ResourceQuota, as Rancher's SyncController does it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.api.meta import RawResourceList
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.api.resource_list import parse_resource_list
from kubeloop.client.errors import Conflict, Invalid, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.controller import Controller
from pkg.config.management import Management
from pkg.util import constants
from pkg.util.resourcequota.base import RESOURCE_NAMES

logger = logging.getLogger(__name__)

DEFAULT_QUOTA_SELECTOR: Final = f"{constants.LABEL_DEFAULT_RESOURCE_QUOTA}={constants.TRUE}"


class Agent:
    """Renders each namespace's annotation once, and again when it changes or the agent restarts.

    Quotas are read from the server, not from a cache: an agent that has just started knows what there is now, and what
    was raised a moment ago must not be missed.
    """

    def __init__(self, quotas: ResourceClient[ResourceQuota], namespaces: Controller[Namespace]) -> None:
        self._quotas = quotas
        self._namespaces = namespaces
        # What each namespace said when it was last rendered.
        self._rendered: dict[str, str] = {}

    def restart(self) -> None:
        """The agent starts anew, it knows nothing of what it has written before: every quota goes back to its base."""
        # A new one, not an emptied one: what is under way then reports to the old one.
        self._rendered = {}
        namespaces = self._namespaces.cache().list()
        for namespace in namespaces:
            self._namespaces.enqueue(namespace.key, immediately=True)
        logger.info("agent restarted: %d namespaces", len(namespaces))

    async def on_namespace_changed(self, key: str, namespace: Namespace | None) -> None:
        """Raises ApiError."""
        rendered = self._rendered
        if namespace is None or namespace.deleting:
            rendered.pop(key, None)
            return
        annotation = namespace.annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, "")
        if rendered.get(key) == annotation:
            return
        if annotation:
            await self._render(key, annotation)
        rendered[key] = annotation

    async def _render(self, namespace: str, annotation: str) -> None:
        try:
            hard = render(annotation)
        except Unreadable as error:
            logger.warning("namespace %s: %s", namespace, error)
            return
        if not hard:
            return
        found = await self._quotas.list(namespace, label_selector=DEFAULT_QUOTA_SELECTOR)
        quota = min(found, key=lambda quota: quota.name, default=None)
        with contextlib.suppress(NotFound):  # The namespace, or the quota, is gone.
            if quota is None:
                quota = await self._quotas.create(quota_body(annotation, hard), namespace=namespace)
                logger.info("namespace %s: created quota %s with %s", namespace, quota.name, hard)
            elif differs(quota.spec.hard, hard):
                await self._replace(quota, hard)

    async def _replace(self, quota: ResourceQuota, hard: dict[str, str]) -> None:
        """Replace spec.hard whole. Without a resourceVersion: Rancher overwrites every other writer."""
        operations = [{"op": "add", "path": "/spec/hard", "value": hard}]
        try:
            await self._quotas.json_patch(operations, name=quota.name, namespace=quota.namespace)
        except (Conflict, Invalid) as error:
            logger.warning("quota %s: %s", quota.key, error)
            raise
        logger.info("namespace %s: quota %s set to %s (was %s)", quota.namespace, quota.name, hard, quota.spec.hard)


def quota_body(annotation: str, hard: dict[str, str]) -> dict[str, Any]:
    """The default quota as Rancher creates it."""
    metadata = {
        "generateName": constants.DEFAULT_RESOURCE_QUOTA_GENERATE_NAME,
        "labels": {constants.LABEL_DEFAULT_RESOURCE_QUOTA: constants.TRUE, "cattle.io/creator": "norman"},
        "annotations": {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: annotation},
    }
    return {"metadata": metadata, "spec": {"hard": hard}}


def register(management: Management) -> Agent:
    """Give the management its handler; start it afterwards."""
    agent = Agent(management.client.resource(RESOURCE_QUOTAS), management.namespaces)
    management.namespaces.on_change("resourcequota-sync", agent.on_namespace_changed)
    return agent


# ---- the annotation's conversion, Rancher's own: only the names are the product's, so that the two can be compared


class Unreadable(ValueError):
    """The annotation says nothing that can be rendered; one line for people."""


class _Annotation(msgspec.Struct):
    """NamespaceResourceQuota (management.cattle.io/v3)."""

    limit: dict[str, str | dict[str, str] | None] | None = None


def render(annotation: str) -> dict[str, str]:
    """spec.hard of the default quota; empty when the annotation limits nothing. Raises Unreadable."""
    hard: dict[str, str] = {}
    for name, value in _limits(annotation).items():
        if name == "extended" and isinstance(value, dict):
            hard |= {resource: _quantity(resource, text) for resource, text in value.items()}
        elif name in RESOURCE_NAMES and isinstance(value, str) and value:
            hard[RESOURCE_NAMES[name]] = _quantity(name, value)
    return hard


def differs(hard: RawResourceList | None, wanted: Mapping[str, str]) -> bool:
    """Whether spec.hard is something else than what is wanted, by value."""
    try:
        return parse_resource_list(hard) != parse_resource_list(wanted)
    except QuantityError:
        return True


def _limits(annotation: str) -> dict[str, str | dict[str, str] | None]:
    try:
        return msgspec.json.decode(annotation, type=_Annotation).limit or {}
    except msgspec.DecodeError as error:
        raise Unreadable(f"{annotation!r} is not a resource quota: {error}") from error


def _quantity(name: str, text: str) -> str:
    try:
        return str(Quantity.parse(text))
    except QuantityError as error:
        raise Unreadable(f"limit {name} is {text!r}: {error}") from error
