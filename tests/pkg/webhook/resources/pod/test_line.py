"""Counts how often a reader who follows one review comes back to a module."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kubeloop.webhook.admission import AdmissionRequest
from pkg.util.resourcequota.facts import Cache, Facts
from tests.objects import pod
from tests.pkg.util.resourcequota.test_line import returns
from tests.pkg.webhook.fake_view import KUBEVIRT, FakeView, State, request
from tests.pkg.webhook.resources.pod.test_validator import OF_MIGRATION, state, validator
from tests.program import ROOT


class Namespace(State):
    """A namespace whose objects have been worked out before, as an observer has them."""

    cache = Cache()

    def observe(self, *args: object) -> Facts:
        return replace(super().observe(*args), cache=self.cache)  # type: ignore[arg-type]


async def review(pod_review: AdmissionRequest, live: State) -> None:
    await validator(FakeView(live, live)).validate(pod_review)


@pytest.mark.parametrize(
    ("pod_review", "most"),
    [
        pytest.param(request(pod("1001m")), 81, id="a pod that is refused, by the watch and by the API server"),
        pytest.param(request(pod("2", labels=OF_MIGRATION), user=KUBEVIRT), 18, id="a target"),
    ],
)
def test_it_gets_no_longer(pod_review: AdmissionRequest, most: int) -> None:
    live = state()
    live.__class__ = Namespace
    asyncio.run(review(pod_review, live))
    assert returns(lambda: asyncio.run(review(pod_review, live)), (f"{ROOT}/pkg/",)) <= most
