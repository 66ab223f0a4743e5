"""The straightness of the line through a decision and through a review, as a reader meets it: how often a call leads
back into a file that was entered before. Functions are not counted: one long one would look better than four short
ones."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

import pytest

from kubeloop.api.core import ResourceQuota
from kubeloop.webhook.admission import AdmissionRequest
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.planner import plan
from tests.decisions import EXACT, namespace
from tests.kinds import edited
from tests.objects import AT_1_5, HARD, launcher, pod, quota, vmi, vmim
from tests.pkg.util.managedtenantquota.objects import next_step, observed
from tests.pkg.webhook.fake_view import KUBEVIRT, FakeView, State, request
from tests.pkg.webhook.resources.test_pod import OF_MIGRATION, state, validator
from tests.program import ROOT

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


def first_window() -> Callable[[], object]:
    """About a refused target of which nothing has been worked out before."""
    next_step(observed())
    here = observed()
    return lambda: next_step(here)


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
        pytest.param(next_decision, ROOMS, 9, id="the next decision, whole"),
        pytest.param(first_decision, ROOMS, 33, id="the first, with all that renders a launcher"),
        pytest.param(first_decision, (DECIDES,), 15, id="the first, its own modules"),
        pytest.param(first_window, ROOMS, 35, id="the first about a window, with all that renders its target"),
    ],
)
def test_it_gets_no_longer(decide: Callable[[], Callable[[], object]], rooms: tuple[str, ...], most: int) -> None:
    assert returns(decide(), rooms) <= most


# ---- a review of a pod ---------------------------------------------------------------------------------------


class Observed(State):
    """A namespace whose objects have been worked out before, as a source's cache has them."""

    facts: Facts

    def observe(self, quota: ResourceQuota) -> Facts:
        return replace(self.facts, quota=quota)


@pytest.mark.parametrize(
    ("pod_review", "most"),
    [
        pytest.param(request(pod("1001m")), 40, id="a pod that is refused, by the watch and by the API server"),
        pytest.param(request(pod("2", labels=OF_MIGRATION), user=KUBEVIRT), 9, id="a target"),
    ],
)
def test_a_review_gets_no_longer(pod_review: AdmissionRequest, most: int) -> None:
    live = state()
    live.pods = [edited(member, metadata={"resourceVersion": "1"}) for member in live.pods]
    Observed.facts = replace(live.observe(live.quotas[0]), rendering=AT_1_5)
    live.__class__ = Observed
    checked = validator(FakeView(live, live))
    asyncio.run(checked.validate(pod_review))
    assert returns(lambda: asyncio.run(checked.validate(pod_review)), (f"{ROOT}/pkg/",)) <= most
