"""Ends every lock and restores what was raised under it, when an installation is removed. No informers."""

from __future__ import annotations

import time
from functools import partial

from kubeloop.client.client import Client, for_each
from kubeloop.client.resource_reader import list_installed
from kubeloop.client.retry import retry_on_conflict
from kubeloop.controllers.events import EventRecorder
from pkg.controller.managedtenantquota.writer import Writer
from pkg.util.managedtenantquota.lock import recognise
from pkg.util.managedtenantquota.model import Observed, Policy
from pkg.util.managedtenantquota.record import is_in_use, record_of
from pkg.util.managedtenantquota.sequence import Wait, next_step
from pkg.util.managedtenantquota.window import Window


async def close_all(client: Client) -> list[str]:
    """Unlock every namespace and restore its quotas; their names. Raises ApiError, once all is done that can be.

    The locks go first: the process that releases may not be the one that locked, and the webhook may be gone.
    What was raised is open to all for the moment that restoring it takes.
    """
    events = EventRecorder(client, "headroom")
    writer = Writer(client, events)
    # Those without their label too: the selector would miss what was edited by hand.
    locks = [lock for lock in map(recognise, await writer.locks.list()) if lock is not None]
    try:
        await for_each(locks, writer.unlock)
    finally:  # also where one could not be deleted
        raised = [quota.namespace for quota in await writer.quotas.list() if record_of(quota)]
        saved = [each.namespace for each in await list_installed(writer.budgets) if is_in_use(each)]
        namespaces = sorted({*(lock.namespace for lock in locks), *raised, *saved})
        try:
            await for_each(namespaces, partial(_restore, writer))
        finally:
            await events.stop()
    return namespaces


async def _restore(writer: Writer, namespace: str) -> None:
    """The closing half of the sequence."""

    async def attempt(_: bool) -> None:
        observed = Observed(
            namespace=namespace,
            exists=False,  # for this strategy: nothing is begun there
            budgets=await list_installed(writer.budgets, namespace),
            quotas=await writer.quotas.list(namespace),
            now=time.time(),
        )
        while not isinstance(step := next_step(Window(observed, Policy())), Wait):
            observed = await writer.do(step, observed)

    await retry_on_conflict(attempt)
