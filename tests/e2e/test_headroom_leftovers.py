"""Nothing is left behind, and nothing is lost: whatever went away, whenever, and however full the annotations are."""

from __future__ import annotations

import json
import time

import pytest

from kubeloop.testing.polling import eventually
from tests.e2e.api import CORE
from tests.e2e.headroom.amounts import ONE, SIX, THREE, TWO
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.namespace import LASTING, QuotaNamespace
from tests.e2e.tenant import ANNOTATION, DEFAULT, by_value

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cleared")]

TEXT = json.dumps(ONE, separators=(",", ":"))
ENTRY = "harvesterhci.io/migrating-vm1"


def migrating(on: Environment) -> tuple[QuotaNamespace, str]:
    """A namespace with a VM in the middle of its migration."""
    namespace = on.namespace(limits=ONE).start_vm("vm1")
    migration = namespace.migrate("vm1", phase_seconds=LASTING)
    namespace.wait_phase(migration, "Running")
    namespace.wait_hard(TWO)
    return namespace, migration


def is_back(namespace: QuotaNamespace) -> None:
    namespace.wait_hard(ONE)
    eventually(lambda: namespace.entries() == {})


class TestWhatWentAway:
    def test_while_headroom_was_down(self, on: Environment) -> None:
        """Until it is back no other pod takes the room away: that is what its start is for."""
        on.run()
        made = on.together(lambda _: migrating(on), range(5))
        (aborted, m1), (vm_gone, m2), (vmi_gone, m3), (still, m4), (done, m5) = made
        on.kill()
        aborted.delete_migration(m1)
        on.api.delete(f"{vm_gone.kubevirt}/virtualmachines/vm1")
        on.api.patch(f"{vmi_gone.kubevirt}/virtualmachines/vm1", {"spec": {"runStrategy": "Halted"}})
        for namespace, migration in ((vm_gone, m2), (vmi_gone, m3)):
            eventually(lambda: not namespace.counting(), 30)  # noqa: B023
            namespace.delete_migration(migration)
        done.hurry(m5)
        done.succeed(m5)
        eventually(lambda: len(done.counting()) == 1, 30)
        gone = [aborted, vm_gone, vmi_gone, done]
        for namespace in gone:
            assert namespace.hard() == by_value(TWO)
            assert ENTRY in namespace.entries()
        on.run()
        for namespace in gone:
            is_back(namespace)
        assert still.hard() == by_value(TWO)
        assert still.entries() == {ENTRY: by_value(ONE)}
        assert still.phase_of(m4) == "Running"

    def test_while_it_looks(self, on: Environment) -> None:
        on.run()

        def vm_is_deleted() -> None:
            namespace, _ = migrating(on)
            on.api.delete(f"{namespace.kubevirt}/virtualmachines/vm1")
            eventually(lambda: not namespace.counting(), 30)
            is_back(namespace)

        def quota_is_made_anew() -> None:
            """Under another name and without a mark, as Rancher makes it."""
            namespace, migration = migrating(on)
            old = namespace.quota()
            on.api.delete(f"{namespace.quotas}/{old['metadata']['name']}")
            body = {
                "metadata": {"name": "default-again", "labels": {DEFAULT: "true"}},
                "spec": {"hard": ONE},
            }
            on.api.create(namespace.quotas, body)
            namespace.wait_hard(TWO)
            assert namespace.phase_of(migration) == "Running"
            namespace.hurry(migration)
            namespace.succeed(migration)
            namespace.settle(ONE)

        def annotation_is_taken_away() -> None:
            namespace, migration = migrating(on)
            on.api.patch(namespace.path, {"metadata": {"annotations": {ANNOTATION: None}}})
            is_back(namespace)
            namespace.grant(TWO)
            namespace.wait_hard({"limits.cpu": "6045m", "limits.memory": "14392392939"})
            assert namespace.phase_of(migration) == "Running"

        on.together(lambda act: act(), [vm_is_deleted, quota_is_made_anew, annotation_is_taken_away])


class TestForeignEntries:
    """An entry by UID that no VMIM explains: Harvester's, perhaps, whose migration is about to show."""

    KEY = "harvesterhci.io/migratingUID-7f3e1d6c-1111-4222-8333-444455556666"

    def write(self, on: Environment) -> QuotaNamespace:
        namespace = on.namespace(limits=ONE)
        namespace.wait_counted()
        self.written = time.monotonic()
        namespace.patch_quota({"metadata": {"annotations": {self.KEY: TEXT}}})
        namespace.wait_hard(TWO)
        return namespace

    def test_one_goes_after_its_grace(self, on: Environment) -> None:
        on.run("--foreign-grace", "3")
        namespace = self.write(on)
        while True:
            entries = namespace.entries()
            if time.monotonic() - self.written > 2.5:
                break
            assert self.KEY in entries
            time.sleep(0.1)
        is_back(namespace)
        assert 3.0 < time.monotonic() - self.written < 15.0

    def test_one_stays_as_long_as_its_grace_is(self, on: Environment) -> None:
        """The same with the point switched off."""
        on.run("--foreign-grace", "3600")
        namespace = self.write(on)
        time.sleep(5.0)
        assert namespace.entries() == {self.KEY: by_value(ONE)}
        assert namespace.hard() == by_value(TWO)
        on.run("--foreign-grace", "1")
        is_back(namespace)


class TestFullAnnotations:
    """The API server takes 256 KiB of annotations; past 200 KiB migrations wait their turn."""

    VMS = ("vm1", "vm2", "vm3")

    def fill(self, namespace: QuotaNamespace, left: int) -> None:
        """Another client's annotation that leaves so many bytes."""
        have = sum(len(key) + len(text) for key, text in namespace.annotations().items())
        text = "x" * (200 * 1024 - have - left - len("example.com/notes"))
        namespace.patch_quota({"metadata": {"annotations": {"example.com/notes": text}}})

    def begin(self, on: Environment, left: int) -> tuple[QuotaNamespace, list[str]]:
        namespace = on.namespace(limits=THREE).start(*self.VMS)
        eventually(lambda: "headroom.harvesterhci.io/owner" in namespace.annotations())
        self.fill(namespace, left)
        first = namespace.migrate(self.VMS[0], phase_seconds=LASTING)
        namespace.wait_phase(first, "Running")  # its target is there: no other pod takes its room
        return namespace, [first, *(namespace.migrate(vm, phase_seconds=LASTING) for vm in self.VMS[1:])]

    def test_further_migrations_wait_and_go_on_when_others_finish(self, on: Environment) -> None:
        on.run()
        namespace, moves = self.begin(on, 120)  # an entry takes 80
        for move in moves[1:]:
            namespace.stays_refused(move, 1.0)
        assert namespace.entries() == {ENTRY: by_value(ONE)}
        event = namespace.wait_event("TooManyMigrations")
        assert event["type"] == "Warning"
        assert "waits: the annotations would take" in event["message"]
        namespace.hurry(*moves)
        namespace.succeed(*moves)
        namespace.settle(THREE)
        assert len(namespace.annotations()["example.com/notes"]) > 200_000, (
            "another client's annotation is lost"
        )

    def test_with_room_for_their_entries_they_go_at_once(self, on: Environment) -> None:
        on.run()
        namespace, moves = self.begin(on, 400)
        eventually(lambda: all(namespace.phase_of(move) == "Running" for move in moves), 30)
        assert namespace.hard() == by_value(SIX)
        assert namespace.events("TooManyMigrations") == []
        namespace.hurry(*moves)
        namespace.succeed(*moves)
        namespace.settle(THREE)


def test_an_entry_of_a_namespace_without_vms_is_gone_when_headroom_starts(on: Environment) -> None:
    """What a crashed predecessor left under our own name and mark."""
    on.stop()
    namespace = on.namespace(limits=ONE)
    marks = {
        "headroom.harvesterhci.io/owner": "headroom",
        "harvesterhci.io/skipResourceQuotaAutoScaling": "true",
    }
    namespace.patch_quota({"metadata": {"annotations": {**marks, ENTRY: TEXT}}, "spec": {"hard": TWO}})
    on.run()
    is_back(namespace)
    assert on.api.find(f"{CORE}/namespaces/{namespace.name}") is not None
