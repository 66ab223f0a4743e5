"""Blocking work that must not wait for that of others: credentials, certificates, addresses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _OwnThreads(Executor):
    """A thread for each call, and none for the process's end to wait for.

    The loop's default executor has a few threads, and programs are told to put what blocks there: behind that a renewal
    of the lease would wait for a token, or for a name's address."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as err:
                    future.set_exception(err)

        threading.Thread(target=run, name="kubeloop client", daemon=True).start()
        return future


_OWN_THREADS = _OwnThreads()


async def in_own_thread(work: Callable[..., T], *args: Any) -> T:
    """The result of a call that blocks; raises what it raises."""
    return await asyncio.get_running_loop().run_in_executor(_OWN_THREADS, work, *args)
