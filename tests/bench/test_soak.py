"""Tests which refusals of a soak are quota's own lag."""

import pytest

from tests.bench.soak import is_late_count

QUOTA = 'pods "tenant-a" is forbidden: exceeded quota: default-b, requested: limits.cpu=100m, '


@pytest.mark.parametrize(
    ("refusal", "is_late"),
    [
        pytest.param(
            f"{QUOTA}used: limits.cpu=5150m, limited: limits.cpu=5135m", True, id="more is used than the limit"
        ),
        pytest.param(
            f"{QUOTA}used: limits.cpu=5100m, limited: limits.cpu=5135m", False, id="less, and it is too large"
        ),
        pytest.param(f"{QUOTA}used: limits.cpu=1,pods=9, limited: limits.cpu=2,pods=8", True, id="one of several"),
        pytest.param("admission webhook denied the request: exceeded quota: no room", False, id="the webhook's"),
    ],
)
def test_quota_that_counts_late_is_told_from_one_that_is_full(refusal: str, is_late: bool) -> None:
    assert is_late_count(refusal) is is_late
