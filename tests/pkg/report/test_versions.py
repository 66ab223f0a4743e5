"""Records that an earlier version had written when it was replaced in the middle of a migration: this one goes on from
there."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pkg.cmd.collect import load_collected
from pkg.report.snapshot import Snapshot
from pkg.report.status import status
from pkg.util.resourcequota.planner import plan
from tests.program import ROOT

FOLDERS = sorted((ROOT / "tests" / "vectors" / "versions").glob("*/*"))


@pytest.fixture(params=FOLDERS, ids=lambda folder: f"{folder.parent.name} {folder.name}")
def recorded(request: pytest.FixtureRequest) -> Snapshot:
    folder: Path = request.param
    return load_collected(str(folder))


def changes(snapshot: Snapshot) -> bool:
    """Reports whether the one quota is changed at all."""
    (quota,) = snapshot.quotas
    return bool(plan(snapshot.observe(quota), snapshot.basis.policy))


def test_nothing_is_changed_while_the_migration_goes_on(recorded: Snapshot) -> None:
    assert not changes(recorded)


def test_what_is_added_and_for_which_vm_is_known(recorded: Snapshot) -> None:
    (quota,) = status(recorded)
    (addition,) = quota.additions
    assert (addition.vm, quota.problems) == ("vm1", [])
    base = {name: str(row.base) for name, row in quota.resources.items()}
    assert base == {"limits.cpu": "2", "limits.memory": "2Gi"}


def test_once_the_old_pod_has_ended_it_is_given_back(recorded: Snapshot) -> None:
    """The later of the two launchers is the target; without a pod there is nothing to hold room for."""
    succeeded = [
        msgspec.structs.replace(migration, status=msgspec.structs.replace(migration.status, phase="Succeeded"))
        for migration in recorded.migrations
    ]
    newest = max(recorded.pods, key=lambda pod: pod.metadata.creation_timestamp or "")
    assert changes(replace(recorded, migrations=succeeded, pods=[newest]))
