"""Forty of the recorded namespaces, replayed for real: the objects are created, headroom starts in assist mode, and
every quota ends where Harvester's own controllers left it.

status.used is the API server's affair here: quota's controller computes it, and there are no pods. So a scenario in
which it decides (a refused migration is compensated) is replayed while that controller stands still.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually
from tests.decisions import by_value, entries_by_value
from tests.e2e.api import Api
from tests.e2e.conftest import StartController, frozen
from tests.e2e.tenant import Tenant

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

_RECORD = Path(__file__).parents[1] / "vectors" / "scenarios.jsonl"
SCENARIOS: list[dict[str, Any]] = [json.loads(line) for line in _RECORD.read_text().splitlines()]
HOW_MANY = 40


def storable(scenario: dict[str, Any]) -> bool:
    """Whether the API server takes the objects as they are: Harvester's own unhashed keys are too long for it."""
    annotations = scenario["resource_quota"]["metadata"].get("annotations") or {}
    return all(len(key.partition("/")[2]) <= 63 for key in annotations)


def decided(scenario: dict[str, Any]) -> bool:
    """Whether there is one right end, by the record: it settles, and headroom adds nothing to it."""
    return bool(scenario["stable"]) and scenario["vmim"]["status"].get("phase") != "Running"


def chosen() -> list[int]:
    """As many of each sort as there are sorts: by phase, by what happens to spec.hard and to the annotations."""
    sorts: dict[tuple[Any, ...], list[int]] = {}
    for number, scenario in enumerate(SCENARIOS):
        if storable(scenario) and decided(scenario):
            sorts.setdefault(_sort(scenario), []).append(number)
    picked: list[int] = []
    while len(picked) < HOW_MANY:
        for numbers in sorts.values():
            picked += [numbers.pop(0)] if numbers else []
    return sorted(picked[:HOW_MANY])


def _sort(scenario: dict[str, Any]) -> tuple[Any, ...]:
    before, after = scenario["resource_quota"], scenario["after"]
    annotations = before["metadata"].get("annotations") or {}
    return (
        scenario["vmim"]["status"].get("phase"),
        by_value(before["spec"].get("hard") or {}) != by_value(after["hard"] or {}),
        entries_by_value(annotations) != entries_by_value(after["annotations"] or {}),
        "harvesterhci.io/migratingCompensation" in (after["annotations"] or {}),
        bool(scenario["errors"]),
    )


CHOSEN = chosen()


class Replay:
    """One recorded namespace on the API server. The uids are the server's: keys that hold the recorded ones follow."""

    def __init__(self, api: Api, scenario: dict[str, Any]) -> None:
        self.scenario = scenario
        vmi, vmim, quota = scenario["vmi"], scenario["vmim"], scenario["resource_quota"]
        self.tenant = Tenant(api, limits=scenario["namespace_annotation"], quota=False)
        made = api.create(
            f"{self.tenant.kubevirt}/virtualmachineinstances", _body("VirtualMachineInstance", vmi)
        )
        self._uids = (vmi["metadata"]["uid"], made["metadata"]["uid"])
        migration = _body("VirtualMachineInstanceMigration", vmim)
        made = api.create(f"{self.tenant.kubevirt}/virtualmachineinstancemigrations", migration)
        state = {"harvesterhci.io/migrationUID": made["metadata"]["uid"]}
        if "harvesterhci.io/migrationUID" in (vmi["metadata"].get("annotations") or {}):
            path = f"{self.tenant.kubevirt}/virtualmachineinstances/{vmi['metadata']['name']}"
            api.patch(path, {"metadata": {"annotations": state}})
        path = f"{self.tenant.kubevirt}/virtualmachineinstancemigrations/{vmim['metadata']['name']}/status"
        api.patch(path, {"status": vmim["status"]})
        annotations = self._here(quota["metadata"].get("annotations") or {})
        self.tenant.make_quota(
            quota["spec"].get("hard") or {}, annotations, quota["metadata"].get("labels") or {}
        )
        path = f"{self.tenant.path}/resourcequotas/default-abc/status"
        api.patch(path, {"status": {"used": quota.get("status", {}).get("used") or {}}})

    def _here(self, annotations: dict[str, str]) -> dict[str, str]:
        recorded, made = self._uids
        return {key.replace(recorded, made): text for key, text in annotations.items()}

    def end(self) -> tuple[dict[str, Any], dict[str, Any]]:
        quota = self.tenant.quota()
        annotations = quota["metadata"].get("annotations") or {}
        return entries_by_value(annotations), by_value(quota["spec"].get("hard") or {})

    def upstreams_ends(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        ends = [self.scenario[key] for key in ("after", "after_rq_first") if key in self.scenario]
        return [
            (entries_by_value(self._here(end["annotations"] or {})), by_value(end["hard"] or {}))
            for end in ends
        ]


def _body(kind: str, recorded: dict[str, Any]) -> dict[str, Any]:
    metadata = recorded["metadata"]
    kept = {key: metadata[key] for key in ("name", "annotations") if key in metadata}
    return {"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": kept, "spec": recorded["spec"]}


@pytest.fixture(scope="module")
def replays(api: Api, cluster: Cluster, shared_controller: StartController) -> Iterator[dict[int, Replay]]:
    """All of them at once, and headroom has looked at each."""
    with frozen(cluster, "kube-controller-manager"):
        with ThreadPoolExecutor(8) as pool:
            made = dict(zip(CHOSEN, pool.map(lambda n: Replay(api, SCENARIOS[n]), CHOSEN), strict=True))
        program = shared_controller("assist")
        eventually(
            lambda: program.metric("workqueue_depth") == 0 and program.metric("workqueue_adds_total") > 0
        )
        yield made
        program.stop()
    for replay in made.values():
        replay.tenant.leave()


def test_the_choice_holds_every_sort() -> None:
    assert len(CHOSEN) == HOW_MANY
    sorts = {_sort(SCENARIOS[number]) for number in CHOSEN}
    assert {sort[0] for sort in sorts} == {"Pending", "Succeeded", "Failed"}
    assert len(sorts) >= 10


@pytest.mark.parametrize("number", CHOSEN)
def test_the_quota_ends_where_harvester_leaves_it(replays: dict[int, Replay], number: int) -> None:
    replay = replays[number]
    try:
        eventually(lambda: replay.end() in replay.upstreams_ends(), timeout=3.0)
    except AssertionError:
        assert replay.end() == replay.upstreams_ends()[0]


def test_there_they_stay(replays: dict[int, Replay]) -> None:
    time.sleep(1.0)
    wrong = [number for number, replay in replays.items() if replay.end() not in replay.upstreams_ends()]
    assert wrong == []
