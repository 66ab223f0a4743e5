"""A quota cache that lags refuses what would not have fitted a moment ago, and leaves the rest to the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kubeloop.api.core import ResourceQuota
from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.client.errors import Forbidden
from lab.kubevirt.creation import is_quota_refusal
from lab.kubevirt.quota_lag import QuotaLag
from tests.kinds import Kind
from tests.lab.kubevirt.samples import made

POD = {
    "metadata": {"name": "target"},
    "spec": {"containers": [{"name": "compute", "resources": {"limits": {"cpu": "1"}}}]},
}


class Setup:
    """A quota with 1 of `cpu` used, and what is seen of it."""

    def __init__(self, seconds: float, **spec: Any) -> None:
        self.now = 1_000.0
        self.spec = spec
        self.quotas = Kind(RESOURCE_QUOTAS)
        self.lag = QuotaLag(seconds, self.quotas.cache, lambda: self.now)

    def set(self, cpu: str, after: float = 0.0) -> None:
        self.now += after
        status = {"hard": {"limits.cpu": cpu}, "used": {"limits.cpu": "1"}}
        quota = made(ResourceQuota, "default", {"hard": status["hard"], **self.spec}, status)
        self.quotas.given(quota)
        self.lag.observe(quota)

    def refused(self, after: float = 0.0) -> bool:
        self.now += after
        try:
            self.lag.admit(POD, "t1")
        except Forbidden as error:
            return is_quota_refusal(error)
        return False


def raised(setup: Setup) -> None:
    setup.set("1")
    setup.set("2", after=10.0)


def raised_again(setup: Setup) -> None:
    raised(setup)
    setup.set("3", after=0.2)


def lowered(setup: Setup) -> None:
    setup.set("2")
    setup.set("1", after=10.0)


def born_large(setup: Setup) -> None:
    setup.set("2")


CASES: dict[str, tuple[float, Callable[[Setup], None], float, bool]] = {
    "right after the raise it is refused": (0.3, raised, 0.0, True),
    "as long as the cache lags": (0.3, raised, 0.29, True),
    "and no longer": (0.3, raised, 0.3, False),
    "a second raise does not begin anew": (0.3, raised_again, 0.1, False),
    "a lag of nothing refuses nothing": (0.0, raised, 0.0, False),
    "a quota that has just come is known as it is": (0.3, born_large, 0.0, False),
    "what was lowered is the real admission's part": (0.3, lowered, 0.0, False),
    "also a moment later it is refused by what stands": (0.3, lowered, 1.0, True),
}


@pytest.mark.parametrize(("seconds", "before", "after", "refused"), CASES.values(), ids=CASES.keys())
def test_a_pod_after_a_change(seconds: float, before: Callable[[Setup], None], after: float, refused: bool) -> None:
    setup = Setup(seconds)
    before(setup)
    assert setup.refused(after) is refused


def test_a_quota_that_does_not_count_the_pod_is_left_out() -> None:
    setup = Setup(0.3, scopes=["BestEffort"])
    raised(setup)
    assert not setup.refused()
