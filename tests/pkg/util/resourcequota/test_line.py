"""The straightness of the line through a decision, as a reader meets it: how often a call leads back into a file that
was entered before. Functions are not counted: one long one would look better than four short ones."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import pytest

from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.planner import plan
from tests.decisions import EXACT, namespace
from tests.objects import HARD, launcher, quota, vmi, vmim

DECIDES = "pkg/util/resourcequota/"
ROOMS = (DECIDES, "pkg/util/kubevirt/", "pkg/util/managedtenantquota/")


def namespace_of_one() -> Facts:
    """A running VM with its source pod and one Pending migration."""
    here = vmi(nodeName="node-1", phase="Running")
    return namespace(quota(HARD), [vmim()], [launcher(here)], [here])


def first_decision() -> Callable[[], object]:
    """Nothing has been worked out of its objects before; the process itself has decided before."""
    plan(namespace_of_one(), EXACT)
    facts = namespace_of_one()
    return lambda: plan(facts, EXACT)


def next_decision() -> Callable[[], object]:
    """About the same objects once more."""
    decide = first_decision()
    decide()
    return decide


def returns(decide: Callable[[], object], rooms: tuple[str, ...]) -> int:
    """Counts the calls from one file of `rooms` into another one of them that is not the first call into it."""
    entries: Counter[str] = Counter()
    begun: set[FrameType] = set()
    """A coroutine that goes on is not called again."""

    def file_of(frame: FrameType) -> str | None:
        path = frame.f_code.co_filename
        return next((path[path.index(room) :] for room in rooms if room in path), None)

    def watch(frame: FrameType, event: str, _arg: object) -> None:
        here = file_of(frame)
        if event != "call" or here is None or frame.f_code.co_name.startswith("<") or frame in begun:
            return
        begun.add(frame)
        caller = frame.f_back
        while caller is not None and file_of(caller) is None:
            caller = caller.f_back
        if caller is None or file_of(caller) != here:
            entries[here] += 1

    sys.setprofile(watch)
    try:
        decide()
    finally:
        sys.setprofile(None)
    return entries.total() - len(entries)


@pytest.mark.parametrize(
    ("decide", "rooms", "most"),
    [
        pytest.param(next_decision, ROOMS, 10, id="the next decision, whole"),
        pytest.param(first_decision, ROOMS, 33, id="the first, with all that renders a launcher"),
        pytest.param(first_decision, (DECIDES,), 15, id="the first, its own modules"),
    ],
)
def test_it_gets_no_longer(decide: Callable[[], Callable[[], object]], rooms: tuple[str, ...], most: int) -> None:
    assert returns(decide(), rooms) <= most
