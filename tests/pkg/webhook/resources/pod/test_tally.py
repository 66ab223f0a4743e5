"""Sums over pods, and the pods that are gone since."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from kubeloop.api.core import ResourceRequirements
from kubeloop.api.meta import rfc3339
from pkg.util.quotacount.releases import releases_of
from pkg.util.resource_list import format_resource_list
from pkg.webhook.resources.pod.tally import ENDED, Tally
from tests.objects import pod, quota

pytestmark = pytest.mark.virtual_time

DATE = 1_800_000_000.0
QUOTA = quota({"limits.cpu": "5", "secrets": "9"})


async def test_what_the_quota_limits_is_summed_up_over_the_pods_that_it_counts() -> None:
    sums = Tally().of(QUOTA, [pod("1"), pod("500m"), pod("2", phase="Succeeded")], DATE)
    assert format_resource_list(sums.counted) == {"limits.cpu": "1500m"}
    assert sums.ended == {}


async def test_a_pod_that_is_gone_or_over_has_ended_for_a_moment() -> None:
    tally = Tally()
    gone, over, stays = pod("1"), pod("2", name="over"), pod("100m")
    tally.of(QUOTA, [gone, over, stays], DATE)
    sums = tally.of(QUOTA, [pod("2", name="over", phase="Succeeded"), stays], DATE)
    assert format_resource_list(sums.counted) == {"limits.cpu": "100m"}
    assert format_resource_list(sums.ended) == {"limits.cpu": "3"}
    await asyncio.sleep(ENDED / 2)
    assert format_resource_list(tally.of(QUOTA, [stays], DATE).ended) == {"limits.cpu": "3"}
    await asyncio.sleep(ENDED / 2)
    assert tally.of(QUOTA, [stays], DATE).ended == {}


@pytest.mark.parametrize(
    ("seconds", "ended"),
    [(0.0, "2"), (ENDED - 1, "2"), (ENDED + 1, None), (3600.0, None), (-3600.0, None), (None, None)],
)
async def test_the_first_time_a_pod_that_is_over_has_ended_when_the_kubelet_says(
    seconds: float | None, ended: str | None
) -> None:
    since = {} if seconds is None else {"lastTransitionTime": rfc3339(DATE - seconds)}
    ready = {"type": "Ready", "status": "False", "reason": "PodCompleted", **since}
    over = pod("2", phase="Succeeded", conditions=[ready])
    tally = Tally()
    for _ in range(2):
        sums = tally.of(QUOTA, [over], DATE)
        assert format_resource_list(sums.ended).get("limits.cpu") == ended
        assert sums.counted == {}
    await asyncio.sleep(ENDED)
    assert tally.of(QUOTA, [over], DATE).ended == {}


async def test_quotas_do_not_know_of_each_other() -> None:
    tally = Tally()
    tally.of(QUOTA, [pod("1")], DATE)
    other = quota({"limits.cpu": "5"})
    other = replace(other, metadata=replace(other.metadata, name="other"))
    assert tally.of(other, [], DATE).ended == {}


async def test_an_upgrade_is_worked_out_anew() -> None:
    tally, small = Tally(), pod("1")
    spec = replace(small.spec, resources=ResourceRequirements(limits={"cpu": "2"}))
    with_pod_level = replace(small, spec=spec)

    def counted(release: str) -> dict[str, str]:
        return format_resource_list(tally.of(QUOTA, [with_pod_level], DATE, releases_of([release])).counted)

    assert [counted("1.32"), counted("1.34")] == [{"limits.cpu": "1"}, {"limits.cpu": "2"}]


async def test_a_pod_that_changed_is_worked_out_anew() -> None:
    tally = Tally()
    assert format_resource_list(tally.of(QUOTA, [pod("1", name="grows")], DATE).counted) == {"limits.cpu": "1"}
    assert format_resource_list(tally.of(QUOTA, [pod("2", name="grows")], DATE).counted) == {"limits.cpu": "2"}
