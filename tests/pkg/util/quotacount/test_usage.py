"""What quota counts of a pod: the recorded numbers, and each rule of the API server's evaluator."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Pod, PodSpec, ResourceQuota, ResourceQuotaSpec
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util.kubevirt.launcher import render_containers
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quantity import Quantity, QuantityError
from pkg.util.quotacount.releases import releases_of
from pkg.util.quotacount.usage import counted, is_extended, pod_usage
from pkg.util.resource_list import format_resource_list, parse_resource_list
from tests.pkg.util import vectors


def pod(
    *containers: dict[str, Any],
    init: list[dict[str, Any]] | None = None,
    status: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    document = {
        "metadata": metadata or {},
        "spec": {"containers": list(containers), "initContainers": init or [], **spec},
        "status": status or {},
    }
    return msgspec.convert(document, Pod)


def asks(name: str = "c", restart: str | None = None, **requests: str) -> dict[str, Any]:
    """A container that requests this and is limited to twice that."""
    resources = parse_resource_list(requests)
    doubled = {key: str(quantity + quantity) for key, quantity in resources.items()}
    return {"name": name, "restartPolicy": restart, "resources": {"requests": requests, "limits": doubled}}


def sidecar(name: str = "s", **requests: str) -> dict[str, Any]:
    return asks(name, "Always", **requests)


def as_running(name: str) -> Pod:
    recorded = vectors.recorded(name, Pod)
    return msgspec.structs.replace(recorded, status=msgspec.structs.replace(recorded.status, phase="Running"))


def test_the_recorded_pod_counts_what_the_recorded_quota_says() -> None:
    quota = vectors.recorded(vectors.QUOTA, ResourceQuota)
    usage = pod_usage(vectors.recorded(vectors.TARGET_POD, Pod))
    assert {name: usage[name] for name in quota.used} == parse_resource_list(quota.used)
    assert format_resource_list(usage)["limits.cpu"] == "2015m"
    assert format_resource_list(usage)["limits.memory"] == "4670936833"


def test_source_and_target_of_a_migration_count_the_same() -> None:
    assert pod_usage(as_running(vectors.SOURCE_POD)) == pod_usage(vectors.recorded(vectors.TARGET_POD, Pod))


def test_the_source_pod_counts_as_an_object_only_once_it_is_over() -> None:
    assert pod_usage(vectors.recorded(vectors.SOURCE_POD, Pod)) == {"count/pods": Quantity.of(1)}


def test_the_seeds_pod_counts_what_the_seed_observed() -> None:
    vmi = vectors.recorded(vectors.VMI, VirtualMachineInstance)
    rendered = render_containers(vmi, Rendering(), overhead=442497017)
    spec = PodSpec(containers=rendered.containers, init_containers=rendered.init_containers)
    usage = format_resource_list(pod_usage(Pod(spec=spec)))
    assert (usage["limits.cpu"], usage["limits.memory"]) == ("2015m", "4797464313")


def test_every_name_that_a_quota_may_use_is_there() -> None:
    container = asks(cpu="1", memory="1Gi") | {
        "resources": {
            "requests": {
                "cpu": "1",
                "memory": "1Gi",
                "ephemeral-storage": "1G",
                "hugepages-2Mi": "4Mi",
                "example.com/gpu": "2",
            },
            "limits": {
                "cpu": "2",
                "memory": "2Gi",
                "ephemeral-storage": "2G",
                "hugepages-2Mi": "4Mi",
                "example.com/gpu": "2",
            },
        }
    }
    assert format_resource_list(pod_usage(pod(container))) == {
        "count/pods": "1",
        "pods": "1",
        "cpu": "1",
        "requests.cpu": "1",
        "limits.cpu": "2",
        "memory": "1Gi",
        "requests.memory": "1Gi",
        "limits.memory": "2Gi",
        "ephemeral-storage": "1G",
        "requests.ephemeral-storage": "1G",
        "limits.ephemeral-storage": "2G",
        "hugepages-2Mi": "4Mi",
        "requests.hugepages-2Mi": "4Mi",
        "requests.example.com/gpu": "2",
    }


@pytest.mark.parametrize(
    ("made", "cpu"),
    [
        pytest.param(pod(asks(cpu="1"), asks("d", cpu="2")), "3", id="containers add up"),
        pytest.param(
            pod(asks(cpu="1"), init=[asks("i", cpu="5")]), "5", id="a larger init container sets the least"
        ),
        pytest.param(
            pod(asks(cpu="4"), init=[asks("i", cpu="3")]), "4", id="a smaller init container costs nothing"
        ),
        pytest.param(
            pod(asks(cpu="1"), init=[asks("i", cpu="2"), asks("j", cpu="3")]),
            "3",
            id="init containers run in turn",
        ),
        pytest.param(
            pod(asks(cpu="1"), init=[sidecar(cpu="2")]), "3", id="a restartable init container runs on"
        ),
        pytest.param(
            pod(asks(cpu="1"), init=[sidecar(cpu="2"), asks("i", cpu="5")]),
            "7",
            id="an init container after a restartable one runs beside it",
        ),
        pytest.param(
            pod(asks(cpu="1"), init=[asks("i", cpu="5"), sidecar(cpu="2")]),
            "5",
            id="an init container before a restartable one does not",
        ),
        pytest.param(
            pod(asks(cpu="1"), init=[sidecar("s", cpu="2"), sidecar("t", cpu="3"), asks("i", cpu="1")]),
            "6",
            id="several restartable ones add up",
        ),
        pytest.param(pod(asks(cpu="1"), overhead={"cpu": "250m"}), "1250m", id="the runtime's overhead"),
        pytest.param(
            pod(
                asks(cpu="1"),
                asks("d", cpu="2"),
                resources={"requests": {"cpu": "5"}, "limits": {"cpu": "10"}},
            ),
            "5",
            id="pod-level resources stand for the containers'",
        ),
    ],
)
def test_requests_and_limits_over_a_pods_life(made: Pod, cpu: str) -> None:
    usage = pod_usage(made)
    assert usage["requests.cpu"] == Quantity.parse(cpu)
    if made.spec.overhead is None:
        assert usage["limits.cpu"] == Quantity.parse(cpu) + Quantity.parse(cpu)


def test_overhead_is_added_to_limits_that_are_there_and_not_zero() -> None:
    container = {"name": "c", "resources": {"limits": {"cpu": "1", "ephemeral-storage": "0"}}}
    made = pod(container, overhead={"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1G"})
    limits = {name: str(amount) for name, amount in pod_usage(made).items() if name.startswith("limits.")}
    assert limits == {"limits.cpu": "2", "limits.ephemeral-storage": "0"}


def test_pod_level_resources_count_only_for_cpu_memory_and_huge_pages() -> None:
    made = pod(
        asks(cpu="1"),
        resources={"requests": {"memory": "2Gi", "hugepages-2Mi": "2Mi", "ephemeral-storage": "1G"}},
    )
    requests = {name: str(amount) for name, amount in pod_usage(made).items() if name.startswith("requests.")}
    assert requests == {"requests.cpu": "1", "requests.memory": "2Gi", "requests.hugepages-2Mi": "2Mi"}


STATUS = {"name": "c", "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "6"}}}


@pytest.mark.parametrize(
    ("status", "cpu", "limit"),
    [
        pytest.param({"containerStatuses": [STATUS]}, "3", "6", id="resources in force that are larger"),
        pytest.param(
            {"containerStatuses": [STATUS | {"allocatedResources": {"cpu": "4"}}]},
            "4",
            "6",
            id="what is allocated",
        ),
        pytest.param(
            {
                "containerStatuses": [
                    STATUS | {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}
                ]
            },
            "2",
            "4",
            id="resources in force that are smaller: the spec",
        ),
        pytest.param({"containerStatuses": [STATUS | {"name": "other"}]}, "2", "4", id="another container's"),
        pytest.param({"containerStatuses": [{"name": "c"}]}, "2", "4", id="a status without resources"),
        pytest.param(
            {
                "containerStatuses": [
                    STATUS | {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}
                ],
                "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
            },
            "1",
            "1",
            id="a resize that cannot be: what is in force",
        ),
        pytest.param(
            {
                "containerStatuses": [
                    STATUS | {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}
                ],
                "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}],
            },
            "2",
            "4",
            id="a resize that is put off: the larger one",
        ),
    ],
)
def test_a_resize_under_way_counts_what_it_may_take(status: dict[str, Any], cpu: str, limit: str) -> None:
    made = pod(asks(cpu="2"), status=status)
    for release in ("1.33", "1.37"):
        usage = pod_usage(made, releases=releases_of([release]))
        assert usage["requests.cpu"] == Quantity.parse(cpu)
        assert usage["limits.cpu"] == Quantity.parse(limit)
    assert pod_usage(made, releases=releases_of(["1.32"]))["requests.cpu"] == Quantity.of(2)


@pytest.mark.parametrize(
    ("phase", "live"),
    [
        ("Pending", True),
        ("Running", True),
        ("Unknown", True),
        (None, True),
        ("Succeeded", False),
        ("Failed", False),
    ],
)
def test_a_pod_counts_until_its_phase_is_terminal(phase: str | None, live: bool) -> None:
    made = pod(asks(cpu="1"), status={"phase": phase})
    assert counted(made, ResourceQuotaSpec()) is live
    assert ("limits.cpu" in pod_usage(made)) is live
    assert pod_usage(made)["count/pods"] == Quantity.of(1)


@pytest.mark.parametrize(
    ("now", "grace", "live"),
    [
        pytest.param(1_000_030.0, 30, True, id="within its grace period"),
        pytest.param(1_000_030.5, 30, False, id="beyond it, as on a lost node"),
        pytest.param(9_999_999.0, None, True, id="no grace period known"),
        pytest.param(None, 30, True, id="no time given"),
    ],
)
def test_a_pod_stuck_in_deletion_counts_until_its_grace_is_over(
    now: float | None, grace: int | None, live: bool
) -> None:
    metadata = {"deletionTimestamp": "1970-01-12T13:46:40Z", "deletionGracePeriodSeconds": grace}
    made = pod(asks(cpu="1"), metadata=metadata)
    assert counted(made, ResourceQuotaSpec(), now) is live
    assert ("pods" in pod_usage(made, now)) is live


def test_scopes_decide_whether_a_live_pod_counts() -> None:
    made = pod(asks(cpu="1"))
    assert counted(made, ResourceQuotaSpec(scopes=["NotTerminating"]))
    assert not counted(made, ResourceQuotaSpec(scopes=["Terminating"]))


@pytest.mark.parametrize(
    ("name", "extended"),
    [
        ("example.com/gpu", True),
        ("devices.kubevirt.io/kvm", True),
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("kubernetes.io/thing", False),
        ("sub.kubernetes.io/thing", False),
        ("requests.example.com/gpu", False),
        ("example.com/" + "a" * 63, True),
        ("example.com/" + "a" * 64, False),
        ("example.com/", False),
        ("/gpu", False),
        ("Example.com/gpu", False),
        ("example.com/a/b", False),
        ("a" * 244 + "/gpu", True),
        ("a" * 245 + "/gpu", False),
    ],
)
def test_extended_resources_are_qualified_names_outside_kubernetes(name: str, extended: bool) -> None:
    assert is_extended(name) is extended
    counts = f"requests.{name}" in pod_usage(pod({"name": "c", "resources": {"requests": {name: "1"}}}))
    assert counts is (extended or name in ("cpu", "hugepages-2Mi"))


def test_a_quantity_that_is_none_is_an_error() -> None:
    with pytest.raises(QuantityError, match="cpu: 'one'"):
        pod_usage(pod({"name": "c", "resources": {"requests": {"cpu": "one"}}}))


def test_the_work_grows_with_the_pod_and_no_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """An admission review may hold thousands of containers, and a stranger can send one."""
    work = 0

    def counting(method: Any) -> Any:
        def called(*given: Any) -> Any:
            nonlocal work
            work += 1
            return method(*given)

        return called

    many = [asks(restart=how, **{f"example.com/r{n}": "1"}) for n in range(300) for how in ("Always", None)]
    made = pod(*many, init=many)
    monkeypatch.setattr(Quantity, "__add__", counting(Quantity.__add__))
    monkeypatch.setattr(Quantity, "__lt__", counting(Quantity.__lt__))
    monkeypatch.setattr(Quantity, "__gt__", counting(Quantity.__gt__))
    usage = pod_usage(made)
    assert usage["requests.example.com/r299"] == Quantity.of(3)
    assert work < 20 * len(many)
