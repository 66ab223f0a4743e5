"""Work about many VMs lets others run in between, and a decision finds what was worked out."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import pytest

from kubeloop.api.core import ResourceQuota
from pkg.config import time_slices as module
from pkg.config.time_slices import MANY, SLICE, TimeSlices
from pkg.util.resourcequota import vm
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.planner import plan
from tests.decisions import EXACT, namespace, sentences
from tests.objects import EARLIER, launcher, quota, running_vmi, vmim


class Steps:
    """Each takes as long as a third of a slice."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.log: list[str] = []
        monkeypatch.setattr(module, "perf_counter", lambda: self.now)

    def of(self, name: str, count: int) -> Iterator[None]:
        for _ in range(count):
            self.now += SLICE / 3
            self.log.append(name)
            yield


async def test_others_run_after_every_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch)
    work = asyncio.create_task(TimeSlices().take(steps.of("a", 9)))
    marks = []
    while not work.done():
        await asyncio.sleep(0)
        marks.append(len(steps.log))
    assert max(later - earlier for earlier, later in zip([0, *marks], marks, strict=False)) == 3
    assert steps.log == ["a"] * 9


async def test_what_is_worked_out_at_the_same_time_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many namespaces there are, the event loop is held for one slice."""
    steps, slices = Steps(monkeypatch), TimeSlices()
    await asyncio.gather(slices.take(steps.of("a", 7)), slices.take(steps.of("b", 4)))
    assert "".join(steps.log) == "aaabbbaaaba"


def many(deleting: Sequence[int] = (), spec: dict[str, object] | None = None) -> Facts:
    instances = [running_vmi(f"vm{number}") for number in range(MANY)]
    metadata = {"deletion_timestamp": EARLIER, "deletion_grace_period_seconds": 60}
    pods = [launcher(instance) for instance in instances]
    for number in deleting:
        pods[number] = msgspec.structs.replace(
            pods[number], metadata=msgspec.structs.replace(pods[number].metadata, **metadata)
        )
    full_quota: ResourceQuota = quota()
    if spec:
        full_quota = msgspec.structs.replace(full_quota, spec=msgspec.structs.replace(full_quota.spec, **spec))
    snapshot = namespace(full_quota, [vmim(vm=instance.name) for instance in instances], pods, instances)
    return replace(snapshot, now=1_767_225_600.0)  # EARLIER


@sentences(
    {
        "a VM after another": many(),
        "their pods are being deleted": many(range(MANY)),
        "a quota with scopes": many(spec={"scopes": ["NotTerminating"]}),
        "a VM that is not understood": replace(
            many(), instances={**many().instances, "vm3": running_vmi("vm3", limits={"memory": "lots"})}
        ),
    }
)
async def test_a_decision_finds_what_was_worked_out(case: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plan(replace(case, cache=type(case.cache)()), EXACT)
    assert expected.annotations
    await TimeSlices().work_out(case, EXACT)

    def worked_out_again(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(vm, "assess", worked_out_again)
    decision = plan(case, EXACT)
    assert (decision.annotations, decision.hard) == (expected.annotations, expected.hard)
    assert [str(problem) for problem in decision.problems] == [str(problem) for problem in expected.problems]
