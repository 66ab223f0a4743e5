"""Time, random numbers and identifiers, which all come from the story, so that a run is repeatable.

For good, in a process that does nothing else (`python -m tests.simulation`): hashes are fixed there too.
"""

import asyncio
import datetime
import gc
import random
import sys
import time
import types
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

START = 1_900_000_000.0
"""When every story begins, in seconds since 1970."""


class Machine(Protocol):
    """The machine that code runs on. `skew`: seconds by which its clock is ahead."""

    skew: float


MACHINE: ContextVar[Machine | None] = ContextVar("machine", default=None)
"""Where the task at hand runs; None: where the clock is right."""


def monotonic() -> float:
    """time.monotonic: seconds of the running loop."""
    return asyncio.get_running_loop().time()


def wall() -> float:
    """time.time, as this machine has it."""
    machine = MACHINE.get()
    return START + monotonic() + (machine.skew if machine else 0.0)


def make_repeatable() -> None:
    """Everything that is imported by now, and what is imported later."""
    replaced: dict[object, Callable[[], float]] = {time.time: wall, time.monotonic: monotonic}
    functions = [item for item in gc.get_objects() if isinstance(item, types.FunctionType)]
    for function in filter(_is_ours, functions):
        _replace_defaults(function, replaced)
    time.time, time.monotonic = wall, monotonic
    datetime.datetime = _Datetime  # type: ignore[misc]
    for module in [module for name, module in sys.modules.items() if name.startswith(_OURS)]:
        if getattr(module, "datetime", None) is _RealDatetime:
            module.datetime = _Datetime  # type: ignore[attr-defined]
    random.Random = _Random  # type: ignore[misc, assignment]
    uuid.uuid4 = lambda: uuid.UUID(int=random.getrandbits(128), version=4)


def begin(seed: int) -> None:
    """Takes all numbers from the seed from here on."""
    random.seed(seed)


_OURS = ("kubeloop", "pkg", "lab")
_RealDatetime = datetime.datetime


class _Datetime(_RealDatetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return cls.fromtimestamp(wall(), tz)


class _Random(random.Random):
    """Without a seed, one from the seeded numbers."""

    def __new__(cls, *_: object) -> "_Random":
        return super().__new__(cls)

    def __init__(self, seed: object = None) -> None:
        super().__init__(random.getrandbits(64) if seed is None else seed)  # type: ignore[arg-type]


def _is_ours(function: types.FunctionType) -> bool:
    return (function.__module__ or "").startswith(_OURS)


def _replace_defaults(function: types.FunctionType, replaced: dict[object, Callable[[], float]]) -> None:
    def changed(value: object) -> object:
        return replaced.get(value, value) if callable(value) else value

    if function.__defaults__:
        function.__defaults__ = tuple(map(changed, function.__defaults__))
    for name, value in (function.__kwdefaults__ or {}).items():
        function.__kwdefaults__[name] = changed(value)  # type: ignore[index]
