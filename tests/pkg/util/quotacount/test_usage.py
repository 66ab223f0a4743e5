"""Quota's count of a pod: the seed's numbers and cases that the record of Kubernetes' evaluators lacks, the defaults
that the API server gives the pod first, and the rules that belong to the version that it reports."""

from typing import Any

import msgspec
import pytest

from kubeloop.api.core import LimitRange, Pod, ResourceQuota, ResourceQuotaSpec
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.resource_list import format_resource_list, parse_resource_list
from pkg.util.quotacount.pod_resources import apply_limit_ranges
from pkg.util.quotacount.releases import NEWEST, RELEASES, UNKNOWN, doubt, releases_of, version_of
from pkg.util.quotacount.usage import is_charged, is_extended, pod_usage, unnamed_resources
from tests.decisions import sentences
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


def test_the_recorded_pod_counts_what_the_recorded_quota_says() -> None:
    quota = vectors.recorded(vectors.QUOTA, ResourceQuota)
    usage = pod_usage(vectors.recorded(vectors.TARGET_POD, Pod))
    assert {name: usage[name] for name in quota.used} == parse_resource_list(quota.used)
    assert format_resource_list(usage)["limits.cpu"] == "2015m"
    assert format_resource_list(usage)["limits.memory"] == "4670936833"


@pytest.mark.parametrize(
    ("now", "grace", "live"),
    [
        pytest.param(1_000_030.0, 30, True, id="within its grace period"),
        pytest.param(1_000_030.5, 30, False, id="beyond it, as on a lost node"),
        pytest.param(9_999_999.0, None, True, id="no grace period known"),
        pytest.param(1_000_000.0, 13_835_058_055, False, id="a grace of more nanoseconds than 64 bits hold"),
        pytest.param(None, 30, True, id="no time given"),
    ],
)
def test_a_pod_stuck_in_deletion_counts_until_its_grace_is_over(
    now: float | None, grace: int | None, live: bool
) -> None:
    metadata = {"deletionTimestamp": "1970-01-12T13:46:40Z", "deletionGracePeriodSeconds": grace}
    terminated_pod = pod(asks(cpu="1"), metadata=metadata)
    assert is_charged(terminated_pod, ResourceQuotaSpec(), now) is live
    assert ("pods" in pod_usage(terminated_pod, now)) is live
    assert pod_usage(terminated_pod, now)["count/pods"] == Quantity.of(1)


EXTENDED = ["example.com/gpu", "devices.kubevirt.io/kvm", "example.com/" + "a" * 63, "a" * 244 + "/gpu"]
KUBERNETES_OWN = ["cpu", "hugepages-2Mi", "kubernetes.io/thing", "sub.kubernetes.io/thing", "requests.example.com/gpu"]
NO_NAMES = ["example.com/", "/gpu", "Example.com/gpu", "example.com/a/b", "example.com/" + "a" * 64, "a" * 245 + "/gpu"]


@pytest.mark.parametrize("name", [*EXTENDED, *KUBERNETES_OWN, *NO_NAMES])
def test_extended_resources_have_qualified_names_of_others(name: str) -> None:
    extended = name in EXTENDED
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
        def called(*arguments: Any) -> Any:
            nonlocal work
            work += 1
            return method(*arguments)

        return called

    containers = [asks(restart=policy, **{f"example.com/r{n}": "1"}) for n in range(300) for policy in ("Always", None)]
    large_pod = pod(*containers, init=containers)
    monkeypatch.setattr(Quantity, "__add__", counting(Quantity.__add__))
    monkeypatch.setattr(Quantity, "__lt__", counting(Quantity.__lt__))
    monkeypatch.setattr(Quantity, "__gt__", counting(Quantity.__gt__))
    usage = pod_usage(large_pod)
    assert usage["requests.example.com/r299"] == Quantity.of(3)
    assert work < 20 * len(containers)


BOTH = {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
ONLY_CPU = {"resources": {"limits": {"cpu": "1"}}}
REQUESTED = {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
UNNAMED: dict[str, tuple[Pod, list[str]]] = {
    "a limit is a request, too": (pod(BOTH), []),
    "of the containers one does not say": (pod(BOTH, ONLY_CPU), ["limits.memory", "memory"]),
    "of the init containers": (pod(BOTH, init=[ONLY_CPU]), ["limits.memory", "memory"]),
    "a request is no limit": (pod(REQUESTED), ["limits.memory"]),
    "said for the whole pod": (pod(ONLY_CPU, resources={"limits": {"memory": "1Gi"}}), []),
    "said of the whole pod without a word": (pod(ONLY_CPU, resources={}), ["limits.memory", "memory"]),
}


@sentences(UNNAMED, "checked_pod, missing")
def test_what_a_pod_has_to_name(checked_pod: Pod, missing: list[str]) -> None:
    assert (
        unnamed_resources(checked_pod, ["requests.cpu", "memory", "limits.memory", "limits.ephemeral-storage"])
        == missing
    )


# ---- what the API server and LimitRanges give a pod before quota looks at it ---------------------------------


def ranges(*items: dict[str, Any]) -> list[LimitRange]:
    return [msgspec.convert({"spec": {"limits": [{"type": "Container"} | item]}}, LimitRange) for item in items]


def cpu(amount: str) -> dict[str, str]:
    return {"cpu": amount}


NOTHING: dict[str, Any] = {}
TWO = {"limits": cpu("2")}
USUAL = {"default": cpu("1"), "defaultRequest": cpu("100m")}
EACH = {"cpu": "1", "memory": "1Gi"}
COMPLETED: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, str] | None, dict[str, str] | None]] = {
    "nothing asked for and no defaults": (NOTHING, [], None, None),
    "a request becomes the limit": (TWO, [], cpu("2"), cpu("2")),
    "unless it is given": (TWO | {"requests": cpu("1")}, [], cpu("2"), cpu("1")),
    "default is the limit, defaultRequest the request": (NOTHING, [USUAL], cpu("1"), cpu("100m")),
    "what the limit made the request comes before defaultRequest": (TWO, [USUAL], cpu("2"), cpu("2")),
    "only what is missing is filled": ({"requests": cpu("5m")}, [{"default": EACH}], EACH, EACH | cpu("5m")),
    "max is the default's default": (NOTHING, [{"max": cpu("4")}], cpu("4"), cpu("4")),
    "min is defaultRequest's last default": (NOTHING, [{"min": cpu("50m")}], None, cpu("50m")),
    "default stands before max and min": (
        NOTHING,
        [{"max": cpu("4"), "default": cpu("2"), "min": cpu("1")}],
        cpu("2"),
        cpu("2"),
    ),
    "of several the first that has one": (NOTHING, [{"default": cpu("1")}, {"default": EACH | cpu("9")}], EACH, EACH),
    "limits of pods give no default": (NOTHING, [{"type": "Pod", "max": cpu("9")}], None, None),
}


@sentences(COMPLETED, "resources, items, limits, requests")
def test_containers_are_completed(resources: Any, items: Any, limits: Any, requests: Any) -> None:
    original = pod({"name": "c", "resources": resources}, init=[{"name": "i", "resources": resources}])
    encoded = msgspec.json.encode(original)
    spec = apply_limit_ranges(original, ranges(*items)).spec
    for completed in (*spec.containers, *(spec.init_containers or ())):
        assert (completed.resources.limits, completed.resources.requests) == (limits, requests)
    assert len(spec.init_containers or ()) == 1
    assert msgspec.json.encode(original) == encoded


def test_the_last_item_of_one_limit_range_wins() -> None:
    items = [{"type": "Container", "default": cpu(amount)} for amount in ("1", "2")]
    limit_range = msgspec.convert({"spec": {"limits": items}}, LimitRange)
    assert apply_limit_ranges(pod({"name": "c"}), [limit_range]).spec.containers[0].resources.limits == cpu("2")


# ---- releases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("v1.34.4", "1.34"),
        ("v1.34.4+rke2r1", "1.34"),
        ("1.37", "1.37"),
        ("v1.37.0-rc.1", "1.37"),
        ("v1.31.14", "1.30"),
        ("v1.25.9", "1.30"),
        ("v1.36.3", "1.36"),
    ],
)
def test_a_version_counts_by_its_minor_release(version: str, release: str) -> None:
    assert releases_of([version]) == (RELEASES[release],)


@pytest.mark.parametrize("version", ["v1.38.0", "v2.0.0", "", "latest", "1", "v1.370000.1"])
def test_by_a_version_that_is_not_known_every_release_counts(version: str) -> None:
    assert releases_of([version]) == releases_of(["v1.34.4", version]) == UNKNOWN


def test_servers_that_differ_count_by_all_of_them() -> None:
    assert releases_of(["v1.34.1", "v1.35.0", "v1.34.4"]) == (RELEASES["1.34"], RELEASES["1.35"])
    assert releases_of([]) == UNKNOWN
    assert UNKNOWN[-1:] == NEWEST
    assert version_of("1.37") == version_of("v1.37.0-rc.1") == (1, 37, 0), "without a patch it is its first"


@pytest.mark.parametrize(
    ("versions", "sentence"),
    [
        (["v1.36.3"], ""),
        (["v1.36.3", "v1.36.1"], ""),
        (["v1.36.3", "v1.37.2"], "API servers differ (v1.36.3, v1.37.2): the larger count holds"),
        (["v1.36.3", "v9"], "Kubernetes version 'v9' is not known to headroom: the largest count of any release holds"),
        ([], "Kubernetes version '' is not known to headroom: the largest count of any release holds"),
    ],
    ids=str,
)
def test_why_more_is_counted_is_a_sentence(versions: list[str], sentence: str) -> None:
    assert doubt(versions) == sentence
