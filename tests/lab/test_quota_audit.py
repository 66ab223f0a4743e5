"""The audit of quotas that end-to-end tests rely on finds what it is there for."""

from __future__ import annotations

import pytest

from lab.record import Amounts
from tests.e2e.quota_audit import QuotaAudit
from tests.lab.builder import BASE, ENTRY, ONE, RecordBuilder

ROOM = '{"limits.cpu":"2015m","limits.memory":"4797464313"}'
RAISED = ("5015m", "10040344313")


def audited() -> tuple[QuotaAudit, RecordBuilder]:
    """A migration whose room quota admission knows of since second 2."""
    builder = RecordBuilder()
    audit = QuotaAudit(Amounts.of(*BASE), builder.record)
    builder.quota(0, BASE)
    builder.pod(0, "source", "Running")
    builder.migration(1, "Pending", refused=True)
    builder.quota(2, RAISED, ONE, ENTRY, text=ROOM)
    return audit, builder


def refused(limit: str) -> str:
    return f"exceeded quota: q, requested: limits.cpu=2015m, used: limits.cpu=1, limited: limits.cpu={limit}"


@pytest.mark.parametrize(
    ("at", "limit", "also", "found"),
    [
        pytest.param(2.5, "5015m", "2", (0, 0), id="told within a second"),
        pytest.param(9.0, "3", "2", (0, 0), id="told late, by the limit of before"),
        pytest.param(9.0, "5015m", "2", (1, 0), id="by the raised limit, which another pod has filled"),
        pytest.param(9.0, "5015m", "1m", (0, 1), id="by the raised limit, which has room"),
        pytest.param(9.0, "what", "2", (1, 0), id="by words that cannot be read"),
    ],
)
def test_refusals(at: float, limit: str, also: str, found: tuple[int, int]) -> None:
    audit, builder = audited()
    builder.pod(3, "other", "Running", vm="vm2", takes=(also, "1"))
    builder.event(at, refused(limit))
    assert (len(audit.refusals), len(audit.behind)) == found


def test_a_version_below_base_and_entries_is_a_revert() -> None:
    audit, builder = audited()
    assert audit.reverts == []
    builder.quota(3, BASE, ONE, ENTRY, text=ROOM)
    assert len(audit.reverts) == 1
