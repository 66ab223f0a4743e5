"""Work about many objects, in slices of time: whatever else the process does runs in between."""

import asyncio
from collections.abc import Iterable
from itertools import chain
from time import perf_counter
from typing import Final

from pkg.util.resourcequota.base import base_of
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.vm import vms_one_by_one

SLICE: Final = 0.01
"""Seconds after which others run, between two steps."""
MANY: Final = 48
"""Fewer VMs, migrations and pods need none: those of a VM take a millisecond, where they have changed."""


class TimeSlices:
    """One slice at a time: ten namespaces with thousands of VMs hold the event loop no longer than one does."""

    def __init__(self) -> None:
        self._slice = asyncio.Lock()

    async def work_out(self, facts: Facts, policy: Policy, *, charges: bool = True) -> None:
        """Computes what a decision about many VMs reads, and with `charges` about all pods, and finds in the facts'
        cache then. It may be of a moment ago by that time: what is decided next computes again."""
        if len(facts.migrations) + len(facts.instances) + len(facts.pods) >= MANY:
            vms = vms_one_by_one(facts, policy, base_of(facts.quota, facts.limits, policy))
            await self.take(chain(vms, (facts.charge(pod, facts.now) for pod in facts.pods if charges)))

    async def take(self, steps: Iterable[object]) -> None:
        """Every step, each of them short."""
        following, has_steps = iter(steps), True
        while has_steps:
            async with self._slice:
                end = perf_counter() + SLICE
                has_steps = any(perf_counter() >= end for _ in following)
                await asyncio.sleep(0)
