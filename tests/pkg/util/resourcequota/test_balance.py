"""The free amounts of a quota: base − (used − promised)."""

from __future__ import annotations

import pytest

from kubeloop.api.resource_list import parse_resource_list
from pkg.util.resourcequota.balance import Balance


@pytest.mark.parametrize(
    ("used", "promised", "need", "short"),
    [
        pytest.param({}, {}, {"pods": "3"}, {}, id="it fits to the last one"),
        pytest.param({"pods": "1"}, {}, {"pods": "3"}, {"pods": "2"}, id="it does not fit"),
        pytest.param({"pods": "4"}, {"pods": "2"}, {"pods": "1"}, {}, id="a migration's pods take nothing of it"),
        pytest.param({"pods": "9"}, {"pods": "2"}, {"pods": "1"}, {"pods": "-4"}, id="overfull"),
        pytest.param({"pods": "9"}, {}, {"pods": "0"}, {}, id="what asks for nothing fits into nothing"),
        pytest.param({"limits.cpu": "9"}, {}, {"limits.cpu": "9", "cpu": "1"}, {}, id="what has no limit fits"),
    ],
)
def test_a_pod(used: dict[str, str], promised: dict[str, str], need: dict[str, str], short: dict[str, str]) -> None:
    base = parse_resource_list({"pods": "3"})
    balance = Balance(base, parse_resource_list(used), parse_resource_list(promised))
    assert balance.lacking_resources(parse_resource_list(need)) == parse_resource_list(short)
