"""Counts of the quota evaluators of five Kubernetes releases, each with its default feature gates, for random objects.

A line of `tests/vectors/podusage.jsonl.gz` holds an object and, by release, what was recorded: its usage, that after
the API server's defaulting (pods), and which of the quotas of `podusage-scopes.json` match it. A release that is not
named said the same as the one before it; those under `not` said nothing.
"""

import gzip
import json
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import PersistentVolumeClaim, Pod, PodSpec, ResourceClaim, ResourceQuotaSpec
from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList
from pkg.util.quotacount.pod_resources import apply_limit_ranges
from pkg.util.quotacount.releases import NEWEST, Releases, releases_of
from pkg.util.quotacount.usage import device_usage, matches_scopes, pod_usage, storage_usage
from tests.pkg.util import vectors

RELEASES = ("1.30", "1.32", "1.34", "1.36", "1.37")
CASES = {"Pod": 415, "PersistentVolumeClaim": 30, "ResourceClaim": 15}
Case = dict[str, Any]


@cache
def cases(kind: str) -> list[Case]:
    with gzip.open(vectors.FOLDER / "podusage.jsonl.gz", "rt", encoding="utf-8") as file:
        return [case for case in map(json.loads, file) if case["kind"] == kind]


@cache
def quotas() -> dict[str, ResourceQuotaSpec]:
    text = (vectors.FOLDER / "podusage-scopes.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, ResourceQuotaSpec])


def recorded(case: Case, key: str, release: str) -> Any:
    values = case.get(key, {})
    recorded = [name for name in RELEASES[: RELEASES.index(release) + 1] if name in values]
    return values[recorded[-1]] if recorded else None


def moment(case: Case) -> float:
    return datetime.fromisoformat(case["now"]).timestamp()


def canonical(usage: ResourceList) -> dict[str, str]:
    return {name: str(quantity + ZERO) for name, quantity in usage.items()}


def usage(case: Case, releases: Releases) -> ResourceList:
    match case["kind"]:
        case "Pod":
            return pod_usage(msgspec.convert(case["object"], Pod), moment(case), releases)
        case "PersistentVolumeClaim":
            return storage_usage(msgspec.convert(case["object"], PersistentVolumeClaim), releases)
    return device_usage(msgspec.convert(case["object"], ResourceClaim), releases[0])


def defaulted(case: Case, releases: Releases) -> ResourceList:
    pod = msgspec.convert(case["object"], Pod)
    return pod_usage(apply_limit_ranges(pod, (), releases[0]), moment(case), releases)


def matches(case: Case, releases: Releases) -> list[str]:
    pod = msgspec.convert(case["object"], Pod)
    return sorted(name for name, spec in quotas().items() if matches_scopes(pod, spec, releases))


def wrong(
    kind: str, release: str, count: Callable[[Case, Releases], Any], recorded: Callable[[Case, str], Any]
) -> list[str]:
    """Returns the objects whose count differs from the record, by name."""
    selected = [case for case in cases(kind) if release not in case.get("not", ())]
    assert selected or (kind, release) == ("ResourceClaim", "1.30")
    releases = releases_of([release])
    return [case["object"]["metadata"]["name"] for case in selected if count(case, releases) != recorded(case, release)]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", CASES)
def test_usage_is_what_the_release_counts(kind: str, release: str) -> None:
    assert len(cases(kind)) == CASES[kind]
    assert not wrong(
        kind,
        release,
        lambda case, releases: canonical(usage(case, releases)),
        lambda case, release: recorded(case, "usage", release),
    )


@pytest.mark.parametrize("release", RELEASES)
def test_a_pod_counts_as_the_release_completes_it(release: str) -> None:
    assert not wrong(
        "Pod",
        release,
        lambda case, releases: canonical(defaulted(case, releases)),
        lambda case, release: recorded(case, "defaulted", release) or recorded(case, "usage", release),
    )


@pytest.mark.parametrize("release", RELEASES)
def test_scopes_match_as_in_the_release(release: str) -> None:
    assert not wrong("Pod", release, matches, lambda case, release: sorted(recorded(case, "scopes", release)))


@pytest.mark.parametrize("kind", ["Pod", "PersistentVolumeClaim"])
def test_of_several_releases_the_largest_counts(kind: str) -> None:
    several = releases_of(["1.32", "1.34", "1.37"])
    for case in cases(kind):
        usages = [usage(case, (release,)) for release in several]
        names = {name for release_usage in usages for name in release_usage}
        largest = {name: max(release_usage.get(name, ZERO) for release_usage in usages) for name in names}
        assert usage(case, several) == largest
    assert several[-1:] == NEWEST


LIKE = {"scopeName": "PriorityClass", "operator": "Like", "values": ["high"]}


@pytest.mark.parametrize("spec", [{"scopes": ["Invented"]}, {"scopeSelector": {"matchExpressions": [LIKE]}}])
def test_what_kubernetes_does_not_know_matches_nothing(spec: Case) -> None:
    pod = Pod(spec=PodSpec(priority_class_name="high"))
    assert not matches_scopes(pod, msgspec.convert(spec, ResourceQuotaSpec))
    assert matches_scopes(pod, ResourceQuotaSpec())
