"""Takes back what stands, for the end of an installation: every lock, and what is raised under it. No informers."""

from __future__ import annotations

import asyncio
import time

from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.client.client import Client
from pkg.client.errors import Conflict, NotFound
from pkg.controller.managedtenantquota.clients import Clients
from pkg.controller.managedtenantquota.writer import Writer
from pkg.controller.resourcequota.resourcequota_controller import CONFLICT_RETRIES
from pkg.generic.events import EventRecorder
from pkg.util.managedtenantquota.constants import LOCK_SELECTOR
from pkg.util.managedtenantquota.lock import recognise
from pkg.util.managedtenantquota.model import Observed, Policy, Surroundings
from pkg.util.managedtenantquota.sequence import Wait, decide
from pkg.util.managedtenantquota.window import journal_of

_ENFORCED = 10.0
"""Seconds that quota admission gets to go by the old limits."""
_POLL = 0.1


async def close_all(client: Client) -> list[str]:
    """Unlock every namespace and restore its quotas; their names. Raises ApiError.

    The locks go first: who releases may be somebody else than who locked, and the webhook may be gone. What was raised
    is open to all for the moment that restoring it takes.
    """
    clients = Clients.of(client)
    closed = await _unlock_all(clients)
    events = EventRecorder(client, "headroom")
    writer = Writer(clients, None, events)
    for namespace in sorted({budget.namespace for budget in await _budgets(clients)}):
        closed.add(namespace)
        await _restore(clients, writer, namespace)
    await events.stop()
    return sorted(closed)


async def _unlock_all(clients: Clients) -> set[str]:
    found, _version = await clients.locks.list(label_selector=LOCK_SELECTOR)
    unlocked = set()
    for lock in filter(None, map(recognise, found)):
        try:
            await clients.locks.delete(lock.name, uid=lock.uid)
        except NotFound:
            continue
        unlocked.add(lock.namespace)
    return unlocked


async def _budgets(clients: Clients, namespace: str = "") -> list[VirtualMachineMigrationResourceQuota]:
    """Those that hold something; none where the kind is not installed."""
    try:
        found, _version = await clients.budgets.list(namespace)
    except NotFound:
        return []
    return [budget for budget in found if not journal_of(budget).empty]


async def _restore(clients: Clients, writer: Writer, namespace: str) -> None:
    for attempt in range(CONFLICT_RETRIES + 1):
        try:
            await _walk(writer, await _observe(clients, namespace), clients)
            return
        except Conflict:
            if attempt == CONFLICT_RETRIES:
                raise


async def _walk(writer: Writer, observed: Observed, clients: Clients) -> None:
    """The closing half of the sequence: there are no migrations to be released for who looks at none."""
    deadline = time.monotonic() + _ENFORCED
    while True:
        step = decide(observed, Policy()).step
        if not isinstance(step, Wait):
            observed = await writer.do(step, observed, time.time())
        elif step.seconds is None or time.monotonic() > deadline:
            return
        else:
            await asyncio.sleep(_POLL)
            observed = await _observe(clients, observed.namespace)


async def _observe(clients: Clients, namespace: str) -> Observed:
    quotas, _version = await clients.quotas.list(namespace)
    return Observed(
        namespace=namespace,
        exists=True,
        budgets=await _budgets(clients, namespace),
        lock=None,
        quotas=quotas,
        surroundings=Surroundings(),
        now=time.time(),
    )
