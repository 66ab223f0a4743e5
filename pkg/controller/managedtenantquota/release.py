"""Ends every lock and restores what was raised under it, when an installation is removed. No informers."""

from __future__ import annotations

import time
from contextlib import suppress

from kubeloop.api.core import ResourceQuota
from kubeloop.client.client import Client, for_each
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.client.retry import retry_on_conflict
from kubeloop.controllers.events import EventRecorder
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.controller.managedtenantquota.writer import Clients, Writer
from pkg.util.managedtenantquota.lock import Lock, recognise
from pkg.util.managedtenantquota.model import Observed, Policy
from pkg.util.managedtenantquota.record import is_in_use, record_of
from pkg.util.managedtenantquota.sequence import Wait, next_step
from pkg.util.managedtenantquota.window import Window
from pkg.util.resourcequota.facts import Facts


async def close_all(client: Client) -> list[str]:
    """Unlock every namespace and restore its quotas; their names. Raises ApiError, once all is done that can be.

    The locks go first: the process that releases may not be the one that locked, and the webhook may be gone.
    What was raised is open to all for the moment that restoring it takes.
    """
    clients = Clients.of(client)
    # Those without their label too: the selector would miss what was edited by hand.
    locks = [lock for lock in map(recognise, await clients.locks.list()) if lock is not None]
    try:
        await for_each(locks, lambda lock: _unlock(clients, lock))
    finally:  # also where one could not be deleted
        raised = [quota.namespace for quota in await clients.quotas.list() if record_of(quota)]
        saved = [budget.namespace for budget in await _budgets(clients)]
        namespaces = sorted({*(lock.namespace for lock in locks), *raised, *saved})
        events = EventRecorder(client, "headroom")
        writer = Writer(clients, events)
        try:
            await for_each(namespaces, lambda namespace: _restore(clients, writer, namespace))
        finally:
            await events.stop()
    return namespaces


async def _unlock(clients: Clients, lock: Lock) -> None:
    with suppress(NotFound):
        await clients.unlock(lock)


async def _budgets(clients: Clients, namespace: str = "") -> list[VirtualMachineMigrationResourceQuota]:
    """Those that hold something; none where the kind is not installed."""
    found = await list_installed(clients.budgets, namespace)
    return [budget for budget in found if is_in_use(budget)]


async def _restore(clients: Clients, writer: Writer, namespace: str) -> None:
    async def attempt(_: bool) -> None:
        await _walk(writer, await _observe(clients, namespace))

    await retry_on_conflict(attempt)


async def _walk(writer: Writer, observed: Observed) -> None:
    """The closing half of the sequence: there are no migrations to be released for who looks at none."""
    while not isinstance(step := next_step(Window(observed, Policy())), Wait):
        observed = await writer.do(step, observed)


async def _observe(clients: Clients, namespace: str) -> Observed:
    quotas = await clients.quotas.list(namespace)
    return Observed(
        namespace=namespace,
        exists=True,
        budgets=await _budgets(clients, namespace),
        lock=None,
        quotas=quotas,
        facts=Facts(ResourceQuota()),
        now=time.time(),
    )
