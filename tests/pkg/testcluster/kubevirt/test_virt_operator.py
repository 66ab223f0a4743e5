"""A KubeVirt becomes Deployed, and whoever waits may look again."""

from __future__ import annotations

from typing import Any

import pytest

from pkg.api.kubevirt import KubeVirt
from pkg.testcluster.kubevirt.options import Options
from pkg.testcluster.kubevirt.virt_operator import OperatorHandler
from tests.pkg.testcluster.kubevirt.fakes import FakeKind
from tests.pkg.testcluster.kubevirt.samples import NOW, convert, metadata


class Gate:
    """Counts."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


async def change(kubevirt: KubeVirt | None, *, known: bool = True) -> tuple[FakeKind[KubeVirt], Gate]:
    kind, gate = FakeKind(KubeVirt), Gate()
    client: Any = kind
    waker: Any = gate
    if kubevirt is not None and known:
        kind.seed(kubevirt)
        kubevirt = kind.get_cached("kubevirt")
    await OperatorHandler(client, waker, Options()).on_kubevirt_changed("t1/kubevirt", kubevirt)
    return kind, gate


def kubevirt(phase: str | None = None, **meta: Any) -> KubeVirt:
    status = {"phase": phase} if phase else {}
    return convert({"metadata": metadata("kubevirt", **meta), "status": status}, KubeVirt)


async def test_a_new_kubevirt_is_deployed() -> None:
    kind, gate = await change(kubevirt())
    assert kind.objects["t1/kubevirt"]["status"] == {"phase": "Deployed", "observedKubeVirtVersion": "v1.8.0"}
    assert kind.calls == [("patch", "kubevirt", "status")]
    assert gate.woken == 1


LEFT_ALONE = {
    "one that is Deployed": kubevirt("Deployed"),
    "one whose phase somebody has set": kubevirt("Deploying"),
    "one that is being deleted": kubevirt(deletionTimestamp=NOW),
}


@pytest.mark.parametrize("found", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
async def test_left_alone(found: KubeVirt) -> None:
    kind, gate = await change(found)
    assert kind.calls == []
    assert gate.woken == 1


async def test_a_kubevirt_that_goes_may_change_the_limits() -> None:
    _, gate = await change(None)
    assert gate.woken == 1


async def test_a_kubevirt_that_goes_meanwhile_is_no_failure() -> None:
    kind, _ = await change(kubevirt(), known=False)
    assert kind.patches == []
