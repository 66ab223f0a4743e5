"""Nothing is left behind, and nothing is lost: whatever went away, whenever."""

from __future__ import annotations

import pytest

from kubeloop.testing.polling import eventually
from tests.e2e.headroom.amounts import ONE, TWO
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.namespace import LASTING, QuotaNamespace
from tests.e2e.tenant import ANNOTATION, DEFAULT, by_value

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cleared")]

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
            eventually(lambda: not namespace.counting())  # noqa: B023
            namespace.delete_migration(migration)
        done.hurry(m5)
        done.succeed(m5)
        eventually(lambda: len(done.counting()) == 1)
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
            eventually(lambda: not namespace.counting())
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
