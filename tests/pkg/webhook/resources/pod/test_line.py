"""Counts how often a reader who follows one review comes back to a module."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kubeloop.api.core import ResourceQuota
from kubeloop.webhook.admission import AdmissionRequest
from pkg.util.resourcequota.facts import Facts
from tests.kinds import edited
from tests.objects import AT_1_5, pod
from tests.pkg.util.resourcequota.test_line import returns
from tests.pkg.webhook.fake_view import KUBEVIRT, FakeView, State, request
from tests.pkg.webhook.resources.pod.test_validator import OF_MIGRATION, state, validator
from tests.program import ROOT


class Observed(State):
    """A namespace whose objects have been worked out before, as an observer has them."""

    facts: Facts

    def observe(self, quota: ResourceQuota) -> Facts:
        return replace(self.facts, quota=quota)


@pytest.mark.parametrize(
    ("pod_review", "most"),
    [
        pytest.param(request(pod("1001m")), 45, id="a pod that is refused, by the watch and by the API server"),
        pytest.param(request(pod("2", labels=OF_MIGRATION), user=KUBEVIRT), 10, id="a target"),
    ],
)
def test_it_gets_no_longer(pod_review: AdmissionRequest, most: int) -> None:
    live = state()
    live.pods = [edited(member, metadata={"resourceVersion": "1"}) for member in live.pods]
    Observed.facts = replace(live.observe(live.quotas[0]), rendering=AT_1_5)
    live.__class__ = Observed
    checked = validator(FakeView(live, live))
    asyncio.run(checked.validate(pod_review))
    assert returns(lambda: asyncio.run(checked.validate(pod_review)), (f"{ROOT}/pkg/",)) <= most
