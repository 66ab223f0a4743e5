"""Which namespaces a stand-in for KubeVirt works in."""

from __future__ import annotations

import pytest

from pkg.api.meta import Object
from pkg.testcluster.kubevirt.register import within

SCALE = "headroom-scale-0123ab-001/vm"


@pytest.mark.parametrize(
    ("prefix", "told"),
    [
        ("", ["tenant/vm", "headroom-scaled/vm"]),
        ("headroom-scale-0123ab-", [SCALE]),
    ],
    ids=["all but those of scale runs", "those of one run alone"],
)
async def test_one_stand_in_leaves_the_other_its_namespaces(prefix: str, told: list[str]) -> None:
    seen: list[str] = []

    async def handle(key: str, obj: Object | None) -> None:
        seen.append(key)

    handler = within(prefix, handle)
    for key in ("tenant/vm", SCALE, "headroom-scaled/vm", "headroom-scale-4567cd-001/vm"):
        await handler(key, None)
    assert seen == told
