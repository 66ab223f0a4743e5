"""How straight the line through a decision is, counted as a reader meets it: functions that are entered, calls from one
file into another, and classes of which something is made."""

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


# Of these, what is trusted of a VMI is asked of evidence.py at each place that reads its status.


def counted(decide: Callable[[], object], rooms: tuple[str, ...]) -> tuple[int, int, int]:
    """Functions, entries into files of `rooms`, and classes."""
    functions: set[str] = set()
    entries: Counter[str] = Counter()
    classes: set[str] = set()

    def file_of(frame: FrameType) -> str | None:
        path = frame.f_code.co_filename
        return next((path[path.index(room) :] for room in rooms if room in path), None)

    def watch(frame: FrameType, event: str, _arg: object) -> None:
        name, here = frame.f_code.co_name, file_of(frame)
        if event == "call" and name == "__init__" and "self" in frame.f_locals:
            classes.add(type(frame.f_locals["self"]).__qualname__)
        if event != "call" or here is None or name.startswith("<"):
            return
        functions.add(f"{here}:{frame.f_code.co_qualname}")
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
    return len(functions), entries.total(), len(classes)


@pytest.mark.parametrize(
    ("decide", "rooms", "most"),
    [
        pytest.param(next_decision, ROOMS, (38, 25, 5), id="the next decision, whole"),
        pytest.param(first_decision, ROOMS, (86, 53, 10), id="the first, with all that renders a launcher"),
        pytest.param(first_decision, (DECIDES,), (44, 25, 10), id="the first, its own modules"),
    ],
)
def test_it_gets_no_longer(
    decide: Callable[[], Callable[[], object]], rooms: tuple[str, ...], most: tuple[int, int, int]
) -> None:
    found = counted(decide(), rooms)
    assert all(each <= bound for each, bound in zip(found, most, strict=True)), found
