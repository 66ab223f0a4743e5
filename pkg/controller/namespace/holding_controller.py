"""Labels the namespaces whose pods the webhook shall see: those with a managed quota and a VM, so that the label is
there long before the first migration.

The label is set before headroom is added. An API server learns of it by a watch, and pods that it admitted just before
still have to pass quota admission: where the label is new, `before_raise` delays the raise until both have happened.

Where the API server refuses pods while no webhook answers (failurePolicy Fail), an outage would stop the pods of every
namespace with a VM. There only namespaces that hold added headroom, or are about to, have the label, and the first
migration of a namespace waits for it.

Another client that removes the label again and again (GitOps tools prune what they do not know) leaves gaps in which
the API server asks nobody about pods: that is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from dataclasses import dataclass, field

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import Namespace
from kubeloop.api.registry import NAMESPACES
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.controllers.cache_reader import CacheReader, newer
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import WARNING, EventRecorder
from kubeloop.workqueue.queue import loop_time
from pkg.util import constants
from pkg.util.resourcequota.holding import FAIL, holds, policy_for_pods
from pkg.util.resourcequota.managed import is_served, switched_off
from pkg.util.resourcequota.observe import Source

log = logging.getLogger(__name__)

SETTLE = 0.25
"""Seconds from the label to the raise, at least: by then every API server has seen the label, and the pods admitted
before have been counted."""
SETTLE_FACTOR = 10.0
"""The same as a multiple of the time that writing the label took: a busy API server is slower to admit pods."""
LONGEST_SETTLE = 2.0
LINGER = 30.0
"""Seconds that the label stays when nothing is held any more."""
EVENT_LABEL_REMOVED = "ReserveLabelRemoved"
REMOVALS = 3
"""So many removals by others within REMOVALS_SECONDS are reported."""
REMOVALS_SECONDS = 60.0


@dataclass(eq=False)
class HoldingHandler:
    """Handles Namespaces; the one writer of the label."""

    namespaces: Controller[Namespace]
    source: Source
    registrations: CacheReader[ValidatingWebhookConfiguration]
    events: EventRecorder
    reserve: bool
    """False, or no webhook for pods among `registrations`: labels are only removed, they have no use."""
    _written: dict[str, Namespace] = field(default_factory=dict, init=False)
    # Namespaces as our last patch left them: the cache may be behind.
    _effective_from: dict[str, float] = field(default_factory=dict, init=False)
    # Of the namespaces that this process labelled. One that was found labelled was so before we started: that is long
    # enough.
    _unneeded_since: dict[str, float] = field(default_factory=dict, init=False)
    _removed_at: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list), init=False)
    # By namespace when others removed the label since it was last reported.
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock), init=False)
    # A raise while the label goes waits for that, and has it set anew.

    async def on_namespace_changed(self, key: str, namespace: Namespace | None) -> None:
        """Sets the label, or removes it LINGER seconds after the last entry. Raises RetryAfter until then."""
        if namespace is None or namespace.deleting:
            for states in (self._written, self._effective_from, self._unneeded_since, self._removed_at, self._locks):
                states.pop(key, None)
            return
        policy = self._policy_for_pods()
        if policy and not switched_off(namespace) and self._needs_label(key, policy):
            self._unneeded_since.pop(key, None)
            await self._ensure_label(key)
        elif self._is_labelled(key):
            await self._remove_label(key, reserve=bool(policy))

    def depends_on_migrations(self) -> bool:
        """Reports whether the label depends on the migrations under way. If not, every namespace with a VM has it."""
        return self._policy_for_pods() == FAIL

    def _policy_for_pods(self) -> str:
        return policy_for_pods(self.registrations.list()) if self.reserve else ""

    def _needs_label(self, name: str, policy: str) -> bool:
        if self.source.budgets.list(name):  # nothing is added there
            return False
        quotas = self.source.quotas.list(name)
        if policy != FAIL and self.source.instances.list(name):
            return any(map(is_served, quotas))
        return holds(quotas, self.source.migrations.list(name))

    async def before_raise(self, namespace: str) -> None:
        """Sets the label; call before a quota of the namespace is raised. Raises RetryAfter while the label does not
        count yet.

        A label that cannot be written does not delay a migration: the headroom is then not reserved.
        """
        if not self._policy_for_pods():
            return
        self._unneeded_since.pop(namespace, None)
        try:
            await self._ensure_label(namespace)
        except ApiError as exc:
            log.warning(
                "namespace %s cannot be labelled, its added headroom is not reserved for migrations: %s", namespace, exc
            )
            return
        seconds_left = self._effective_from.get(namespace, float("-inf")) - loop_time()
        if seconds_left > 0:
            raise RetryAfter(seconds_left, "the namespace was labelled just now")

    async def _ensure_label(self, name: str) -> None:
        async with self._locks[name]:
            if self._is_labelled(name):
                return
            self._report_removal(name)
            began = loop_time()
            await self._write_label(name, constants.TRUE)
            now = loop_time()
            self._effective_from[name] = now + min(LONGEST_SETTLE, max(SETTLE, SETTLE_FACTOR * (now - began)))

    def _report_removal(self, name: str) -> None:
        """Reports, now and then, that another client has removed the label that this process had set."""
        written = self._written.get(name)
        if written is None or written.labels.get(constants.LABEL_HOLDING) != constants.TRUE:
            return
        now = loop_time()
        recent = [removed_at for removed_at in self._removed_at[name] if now - removed_at < REMOVALS_SECONDS] + [now]
        self._removed_at[name] = recent if len(recent) < REMOVALS else []
        if len(recent) == REMOVALS:
            self.events.event(
                written,
                WARNING,
                EVENT_LABEL_REMOVED,
                f"another client removes the label {constants.LABEL_HOLDING} again and again: any pod may take the "
                "headroom that is added for migrations here; have that client leave the label alone",
            )

    async def _remove_label(self, name: str, *, reserve: bool) -> None:
        since = self._unneeded_since.setdefault(name, loop_time())
        seconds_left = since + LINGER - loop_time()
        if reserve and seconds_left > 0:
            raise RetryAfter(seconds_left, "keeping the label for the next migration")
        async with self._locks[name]:
            await self._write_label(name, None)

    def _is_labelled(self, name: str) -> bool:
        """Reports whether a namespace has the label. True also if the namespace does not exist: it needs none."""
        cached = self.namespaces.cache().get(name=name)
        newest = cached and newer(cached, self._written.get(name))
        return newest is None or newest.labels.get(constants.LABEL_HOLDING) == constants.TRUE

    async def _write_label(self, name: str, value: str | None) -> None:
        with contextlib.suppress(NotFound):
            self._written[name] = await self.namespaces.client.merge_patch(_label_patch(value), name=name)


async def unlabel_all(client: Client) -> list[str]:
    """Removes the label everywhere and returns the names of the namespaces that had it. Raises ApiError."""
    namespaces = client.resource(NAMESPACES)
    labelled = await namespaces.list(label_selector=constants.LABEL_HOLDING)
    for namespace in labelled:
        with contextlib.suppress(NotFound):
            await namespaces.merge_patch(_label_patch(None), name=namespace.name)
    return [namespace.name for namespace in labelled]


def _label_patch(value: str | None) -> dict[str, object]:
    return {"metadata": {"labels": {constants.LABEL_HOLDING: value}}}
