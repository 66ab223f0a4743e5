"""The room is exactly what quota counts of the target pod: no byte more, none less."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kubeloop.testing.polling import eventually
from pkg.util.quantity import ZERO, Quantity
from tests.e2e.headroom.amounts import Amounts, hards, minus, plus
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.namespace import LASTING, METER, PATIENCE, QuotaNamespace
from tests.e2e.headroom.shapes import COUNTED, LIMITS, SHAPES, SIDECARS, SMALL_CONTAINERS, Shape
from tests.e2e.tenant import by_value

pytestmark = pytest.mark.cluster

MARGIN = Quantity.parse("128Mi")
ALONE = "--no-compensate"
"""So that it is the estimate, and nothing else, that makes room."""
ROOMY = {"limits.cpu": "20", "limits.memory": "40Gi", "requests.cpu": "20", "requests.memory": "40Gi"}
OF_SMALL = {"limits.cpu": "50m", "limits.memory": "32Mi", "requests.cpu": "7m", "requests.memory": "17Mi"}
"""What a hook sidecar counts under SMALL_CONTAINERS."""
CONSOLE = {
    "type": "guest-console-log",
    "resources": {"limits": {"cpu": "30m", "memory": "90M"}, "requests": {"cpu": "9m", "memory": "45M"}},
}
"""A KubeVirt CR's supportContainerResources."""


@pytest.fixture(autouse=True)
def clear(on: Environment) -> Iterator[None]:
    yield
    on.clear()
    on.ratio("1.5")


def counted(shape: Shape) -> tuple[str, ...]:
    return (*COUNTED, *shape.names)


def running(on: Environment, shape: Shape) -> QuotaNamespace:
    """A namespace with one VM, whose meter counts all there is to count."""
    namespace = on.namespace()
    namespace.meter(*counted(shape))
    return namespace.start("vm1", shape=shape)


def move(namespace: QuotaNamespace, base: Amounts) -> tuple[list[Amounts], Amounts]:
    """Migrate vm1 and wait until its source is gone: each spec.hard on the way, and what the target counts.

    It runs until the raise is seen: under a quota with room, a shorter migration could end before it. What the target
    counts is asked when it is the only pod: while quota refuses a pod, another quota of the namespace may count it for
    a moment, for the API server updates them one after another.
    """
    pods = namespace.used(METER)["pods"]
    with namespace.watch() as versions:
        migration = namespace.migrate("vm1", linger=0.3, phase_seconds=LASTING)
        eventually(lambda: len(hards(versions)) > 1, PATIENCE)
        namespace.hurry(migration)
        namespace.succeed(migration)
        namespace.settle(base)
        eventually(lambda: namespace.used(METER)["pods"] == pods, PATIENCE)
        target = namespace.used(METER)
        target["count/pods"] = target["pods"]  # the source that is over is still an object
        return hards(versions), {name: target[name] for name in base}


def test_vms_of_every_shape_get_to_the_byte_what_their_targets_count(on: Environment) -> None:
    """Harvester's numbers leave out what runs beside the guest: under a quota that is full they are refused."""
    on.run("--estimate", "harvester", ALONE)
    namespaces = dict(zip(SHAPES, on.together(lambda name: running(on, SHAPES[name]), SHAPES), strict=True))
    others = [name for name in SHAPES if name != "no screen and no console"]
    on.together(lambda name: namespaces[name].grant_what_is_used(*LIMITS), others)
    refused = {name: namespaces[name].migrate("vm1") for name in others}
    on.together(lambda name: namespaces[name].stays_refused(refused[name]), others)
    on.together(lambda name: namespaces[name].delete_migration(refused[name]), others)

    on.run(ALONE)

    def goes_through(name: str) -> None:
        namespace, shape = namespaces[name], SHAPES[name]
        base = namespace.grant_what_is_used(*counted(shape))
        found, target = move(namespace, base)
        raised = plus(base, target)
        assert all(amount > ZERO for amount in target.values()), (name, target)
        assert (found[0], found[1], found[-1]) == (base, raised, base), (name, found)
        if not shape.steps:
            assert len(found) == 3, (name, found)
        for hard in found:
            assert all(hard[resource] <= raised[resource] for resource in raised), (name, hard)

    on.together(goes_through, SHAPES)


def test_a_ratio_that_was_changed_meanwhile_is_never_below_and_hardly_above(on: Environment) -> None:
    """Raised from 1.5 to 4.5, and lowered to 1.0: the source pod has the overhead of another day."""
    on.run(ALONE)
    namespaces = dict(zip(SHAPES, on.together(lambda name: running(on, SHAPES[name]), SHAPES), strict=True))
    for ratio in ("4.5", "1.0"):
        bases = {name: namespaces[name].grant_what_is_used(*counted(SHAPES[name])) for name in SHAPES}
        on.ratio(ratio)
        moved = on.together(lambda name: move(namespaces[name], bases[name]), SHAPES)  # noqa: B023
        for name, (found, target) in zip(SHAPES, moved, strict=True):
            added = minus(found[1], bases[name])
            within(added, target, (ratio, name))
    overheads = {
        namespace.pods()[0]["metadata"]["annotations"]["kubevirt.io/memory-overhead-bytes"]
        for namespace in namespaces.values()
    }
    assert len(overheads) > 5, "shapes differ in their overhead"


def within(added: Amounts, target: Amounts, what: object) -> None:
    """Never below; above by the margin at most, and that only in memory."""
    for resource, amount in target.items():
        margin = MARGIN if "memory" in resource else ZERO
        assert amount <= added[resource] <= amount + margin, (what, resource, added, target)


@pytest.mark.parametrize(
    ("profile", "version"),
    [("0.54", "v0.54.0"), ("1.0", "v1.0.1"), ("main", "v1.8.3")],
    ids=["KubeVirt 0.54 knows no ratio", "KubeVirt 1.0", "a KubeVirt that says it is another"],
)
def test_other_releases_of_kubevirt(on: Environment, profile: str, version: str) -> None:
    on.run(ALONE)
    names = ["the seed's VM", "a GPU and a host device", "exec probes and a TPM"]
    with on.release(profile, version):
        namespaces = dict(zip(names, on.together(lambda name: running(on, SHAPES[name]), names), strict=True))
        bases = {name: namespaces[name].grant_what_is_used(*counted(SHAPES[name])) for name in names}
        on.ratio("4.5")
        for name, (found, target) in zip(
            names, on.together(lambda name: move(namespaces[name], bases[name]), names), strict=True
        ):
            within(minus(found[1], bases[name]), target, name)
        on.clear()


def test_what_came_after_the_source_pod_counts_for_the_target(on: Environment) -> None:
    """A quota on limits makes KubeVirt limit a VM that has none; the KubeVirt CR says how large support containers are.
    A LimitRange completes what a container lacks, but a tenant can write one: the base pays for that."""
    on.run(ALONE)

    def later(name: str) -> None:
        namespace = on.namespace().start("vm1", shape=shapes[name])
        if name == "a LimitRange":
            namespace.limit_range(SMALL_CONTAINERS)
        namespace.meter(*ROOMY)
        namespace.grant(ROOMY)
        if name == "the size of the console's container":
            on.configure(supportContainerResources=[CONSOLE])
        found, target = move(namespace, by_value(ROOMY))
        added = minus(target, by_value(OF_SMALL)) if name == "a LimitRange" else target
        assert (found[0], found[1]) == (by_value(ROOMY), plus(by_value(ROOMY), added)), name

    shapes = {
        "a quota on limits": SHAPES["no limits under a quota on limits"],
        "a LimitRange": Shape(annotations={SIDECARS: '[{"image":"one"}]'}),
        "the size of the console's container": SHAPES["container disks and a file system"],
    }
    try:
        for name in shapes:
            later(name)
    finally:
        on.configure(supportContainerResources=None)
