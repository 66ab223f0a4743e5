"""Records of objects from the API server, the words of quota admission, and the kinds that a run follows."""

import pytest

from kubeloop.api.quantity import QuantityError
from kubeloop.api.registry import PODS
from kubeloop.client.errors import ServerError
from kubeloop.testing.cluster.reporting import ClusterError
from kubeloop.testing.fake.server import FakeCluster
from lab.questions import Quota
from lab.record import Amounts, Happening, Record, Refusal
from lab.watching import Watching
from tests.decisions import by_value
from tests.lab.builder import BASE, ENTRY, ONE, RecordBuilder, sample

WORDS = "exceeded quota: q, requested: limits.cpu=2015m, used: limits.cpu=1, limited: limits.cpu=3,pods=1"


def test_requests_and_limits_are_read_from_admission_s_words() -> None:
    refusal = Refusal.of(f'Error creating pod: pods "a" is forbidden: {WORDS}')
    assert refusal == Refusal(WORDS, by_value({"limits.cpu": "2015m"}), by_value({"limits.cpu": "3", "pods": "1"}))


def test_what_is_no_refusal_and_what_cannot_be_read() -> None:
    assert Refusal.of("forbidden: limited: pods=1") is None
    assert Refusal.of("exceeded quota: limited: x=y") == Refusal("exceeded quota: limited: x=y", {}, {})


def test_every_version_of_the_quota_is_kept_with_its_entries() -> None:
    builder = RecordBuilder()
    builder.quota(1, BASE, ONE)
    builder.quota(2, BASE, ONE, ENTRY)
    versions = [(version.at, [*version.entries]) for version in builder.record.quotas]
    assert versions == [(1, []), (2, [ENTRY])]


def test_phases_are_noted_once_each_with_their_versions() -> None:
    """A refusal is remembered after it has passed."""
    track = sample().record.migrations["m1"]
    assert track.refused == 3
    assert [change.phase for change in track.phases] == ["", "Pending", "Scheduling", "Running", "Succeeded"]
    assert [change.version for change in track.phases] == sorted(change.version for change in track.phases)


@pytest.mark.parametrize("ends", ["succeeds", "is deleted", "is deleted after it has failed"])
def test_a_pod_counts_until_it_has_ended(ends: str) -> None:
    builder = RecordBuilder()
    builder.pod(1, "p", "Running")
    builder.pod(1, "other", "Running")
    assert builder.record.usage == Amounts.of("4030m", "9594928626")
    if ends != "is deleted":
        builder.pod(2, "p", "Succeeded" if ends == "succeeds" else "Failed")
    if ends != "succeeds":
        builder.pod_deleted(2 if ends == "is deleted" else 3, "p")
    change = builder.record.pods["p"].ended
    assert change is not None
    assert change.at == 2
    assert builder.record.usage == Amounts.of(*ONE)


def test_an_event_is_the_last_migration_s_with_its_increase() -> None:
    builder = RecordBuilder()
    builder.event(0, "no room for the VM itself")
    builder.migration(1, "Pending")
    builder.event(1, "no", name="e1")
    builder.event(2, "no", name="e1", count=3)
    builder.event(2, "no", name="e1", count=3)
    builder.migration(3, "Pending", name="m2")
    builder.migration(3, "Pending", name="m3", vm="vm2")
    builder.event(3, "no")
    assert [(event.subject, event.count) for event in builder.record.events] == [("m1", 1), ("m1", 2), ("m2", 1)]


def test_amounts_are_two_and_printed_as_the_api_server_does() -> None:
    assert Amounts.of("3", "5000Mi") == Amounts.of("3000m", "5242880k") != Amounts.of("3", "5242880001")
    assert str(Amounts.of("2015m", "5000Mi")) == "cpu 2015m, memory 5000Mi"
    assert str(Quota(Amounts.of("3", "1k"), Amounts())) == "hard cpu 3, memory 1k; used cpu 0, memory 0"
    assert Amounts(by_value({"pods": 3})) == Amounts()
    assert Amounts.of("2015m", "1") + Amounts.of("985m", "2") == Amounts.of("3", "3")
    with pytest.raises(QuantityError):
        Amounts.of("much", "1")


def broken(_: object) -> None:
    raise ServerError("etcd is away", status=500)


async def test_a_kind_that_cannot_be_listed_is_an_error() -> None:
    cluster = FakeCluster()
    cluster.reactors.append(broken)
    watching = Watching(cluster.client(), {"ns": Record()}, PODS, sync_timeout=0.2)
    with pytest.raises(ClusterError, match="did not list all that is followed within"):
        async with watching:
            pytest.fail("it was entered")


async def test_a_listener_that_fails_fails_the_run() -> None:
    def fail(_: Happening) -> None:
        raise ValueError("no number")

    cluster = FakeCluster()
    cluster.put(PODS, {"metadata": {"name": "a", "namespace": "ns"}})
    watching = Watching(cluster.client(), {"ns": Record(listener=fail)}, PODS)
    await watching.__aenter__()
    with pytest.raises(ValueError, match="no number"):
        await watching.__aexit__(None, None, None)
