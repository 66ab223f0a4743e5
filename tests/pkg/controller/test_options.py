"""Which objects the controllers do anything about."""

from __future__ import annotations

from pkg.controller.options import Options
from tests.decisions import sentences

SELECTED = {
    "all of them, unless some are chosen": ([], "any/quota", True),
    "an object of a chosen namespace": (["mine", "test-*"], "test-1/quota", True),
    "an object of another namespace": (["mine", "test-*"], "tenant/quota", False),
    "a chosen namespace itself": (["test-*"], "test-1", True),
    "another namespace itself": (["test-*"], "tenant", False),
    "the lock of a chosen namespace": (["test-*"], "lock.test-1.com", True),
    "the lock of another namespace": (["test-*"], "lock.tenant.com", False),
}


@sentences(SELECTED)
def test_what_is_selected(case: tuple[list[str], str, bool]) -> None:
    only, key, selected = case
    assert Options(only_namespaces=only).selects(key) is selected
