"""Rancher's conditions on a namespace."""

import pytest

from kubeloop.api.core import Namespace
from lab.rancher.condition import ANNOTATION, INIT, VALIDATED, is_set, with_condition
from tests.objects import build

NOW = 1767225600.9
"""2026-01-01T00:00:00.9Z."""
INITIALIZED = (
    '{"Conditions":[{"Type":"ResourceQuotaInit","Status":"True","Message":"","LastUpdateTime":"2025-12-31T00:00:00Z"}]}'
)
TRUE = '{"Type":"ResourceQuotaValidated","Status":"True","Message":"","LastUpdateTime":"2026-01-01T00:00:01Z"}'
FALSE = (
    '{"Type":"ResourceQuotaValidated","Status":"False","Message":"too much","LastUpdateTime":"2026-01-01T00:00:01Z"}'
)

WRITTEN = {
    "the first condition": ("", True, f'{{"Conditions":[{TRUE}]}}'),
    "the first condition of none": ("{}", False, f'{{"Conditions":[{FALSE}]}}'),
    "one more": (INITIALIZED, False, INITIALIZED.replace("]}", f",{FALSE}]}}")),
    "another status in its place": (
        f'{{"Conditions":[{FALSE.replace("01Z", "00Z")},{{"Type":"Other"}}]}}',
        True,
        f'{{"Conditions":[{TRUE},{{"Type":"Other","Status":"","Message":"","LastUpdateTime":""}}]}}',
    ),
}


@pytest.mark.parametrize(("old", "fits", "new"), WRITTEN.values(), ids=WRITTEN.keys())
def test_with_condition(old: str, fits: bool, new: str) -> None:
    assert with_condition(old, VALIDATED, fits, "too much", NOW) == new


def test_the_same_second_changes_nothing() -> None:
    text = with_condition(INITIALIZED, VALIDATED, False, "too much", NOW)
    assert with_condition(text, VALIDATED, False, "too much", NOW + 0.05) == text
    assert with_condition(text, VALIDATED, False, "too much", NOW + 0.1) != text


IS_SET = {
    "no annotation": ("", False),
    "another condition": (INITIALIZED, False),
    "true": (f'{{"Conditions":[{TRUE}]}}', True),
    "false": (f'{{"Conditions":[{FALSE}]}}', False),
}


@pytest.mark.parametrize(("text", "expected"), IS_SET.values(), ids=IS_SET.keys())
def test_is_set(text: str, expected: bool) -> None:
    annotations = {ANNOTATION: text} if text else {}
    assert is_set(build(Namespace, "ns1", namespace="", annotations=annotations), VALIDATED) is expected
    assert not is_set(build(Namespace, "ns1", namespace="", annotations={}), INIT)
