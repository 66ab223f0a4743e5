"""The API server's own defaulting of resources."""

from __future__ import annotations

import pytest

from kubeloop.api.core import ResourceRequirements
from pkg.util.quantity import QuantityError
from pkg.util.quotacount.pod_defaults import default_list, default_requirements


@pytest.mark.parametrize(
    ("raw", "rounded"),
    [
        pytest.param("333333334n", "334m", id="nanos round up to a thousandth"),
        pytest.param("1u", "1m", id="a millionth becomes a thousandth"),
        pytest.param("1.0001", "1001m", id="a fraction of a thousandth"),
        pytest.param("1500m", "1500m", id="thousandths stay"),
        pytest.param("1.5", "1.5", id="what is exact stays as it was spelled"),
        pytest.param("+2", "+2", id="even a sign"),
        pytest.param("2e-6", "1e-3", id="an exponent stays one"),
        pytest.param(2, 2, id="a plain number"),
        pytest.param("0", "0", id="zero"),
    ],
)
def test_quantities_are_no_finer_than_a_thousandth(raw: str | int, rounded: str | int) -> None:
    assert default_list({"cpu": raw}) == {"cpu": rounded}


def test_requests_that_are_not_given_are_the_limits() -> None:
    given = ResourceRequirements(limits={"cpu": "2", "memory": "1Gi"}, requests={"cpu": "1"})
    assert default_requirements(given).requests == {"cpu": "1", "memory": "1Gi"}
    assert given.requests == {"cpu": "1"}


def test_limits_are_rounded_before_they_become_requests() -> None:
    defaulted = default_requirements(ResourceRequirements(limits={"cpu": "1u"}))
    assert defaulted.limits == defaulted.requests == {"cpu": "1m"}


def test_nothing_stays_nothing() -> None:
    assert default_list(None) == {}
    assert default_requirements(ResourceRequirements()) == ResourceRequirements()


def test_a_quantity_that_is_none_is_an_error() -> None:
    with pytest.raises(QuantityError):
        default_list({"cpu": "some"})
