"""The freshness of an observation: a cached value is used only while nothing that it depends on has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import LimitRange, Namespace, Pod, PodStatus, ResourceQuotaSpec
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt
from pkg.util.constants import ANNOTATION_STORAGE_MIGRATION, SETTING_OVERHEAD_RATIO
from pkg.util.quotacount.releases import NEWEST, releases_of
from pkg.util.resourcequota.facts import Cache
from pkg.util.resourcequota.observe import Listed, Observer, Source
from tests.objects import quota

Objects = dict[str, list[dict[str, Any]]]


def meta(name: str, version: int, namespace: str = "") -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(version)}


def cluster(version: int) -> Objects:
    """Everything that a rendering is made of; the value of each field is the version."""
    limits = {"type": "Container", "default": {"memory": f"{version}Mi"}}
    configuration = {
        "additionalGuestMemoryOverheadRatio": f"{version}.25",
        "autoCPULimitNamespaceLabelSelector": {"matchLabels": {"version": "2"}},
    }
    return {
        "kubevirts": [
            {
                "metadata": meta("kubevirt", version, "kubevirt"),
                "spec": {"configuration": configuration},
                "status": {"phase": "Deployed"},
            }
        ],
        "settings": [{"metadata": meta(SETTING_OVERHEAD_RATIO, version), "default": f"{version}.5"}],
        "limit_ranges": [{"metadata": meta("limits", version, "ns1"), "spec": {"limits": [limits]}}],
        "namespaces": [{"metadata": {**meta("ns1", version), "labels": {"version": str(version)}}}],
    }


def source(objects: Objects) -> Source:
    kinds = {"kubevirts": KubeVirt, "settings": Setting, "limit_ranges": LimitRange, "namespaces": Namespace}
    readers: dict[str, Any] = {
        name: Listed([msgspec.convert(raw, kinds[name]) for raw in raws]) for name, raws in objects.items()
    }
    return Source(**readers)


@pytest.mark.parametrize("kind", cluster(1))
def test_a_change_is_rendered_anew(kind: str) -> None:
    observer = Observer(source(cluster(1)))
    old = observer.observe(quota(), 0.0).rendering
    assert observer.observe(quota(), 1.0).rendering is old, "nothing has changed"
    now = source({**cluster(1), kind: cluster(2)[kind]})
    result = observer.observe(quota(), 2.0, source=now).rendering
    assert result == now.rendering("ns1") != old


def test_an_upgrade_of_kubernetes_is_rendered_anew() -> None:
    runs = ["v1.36.3"]
    upgraded = replace(source(cluster(1)), kubernetes=lambda: releases_of(runs))
    observer = Observer(upgraded)
    old = observer.observe(quota(), 0.0).rendering
    runs[:] = ["v1.37.2"]
    result = observer.observe(quota(), 1.0).rendering
    assert (old.kubernetes, result.kubernetes) == (releases_of(["1.36"]), releases_of(["1.37"]))


@pytest.mark.parametrize(("said", "allowed"), [("true", True), ("false", False), ("", False)])
def test_an_annotation_allows_storage_migrations(said: str, allowed: bool) -> None:
    objects = cluster(1)
    objects["namespaces"][0]["metadata"]["annotations"] = {ANNOTATION_STORAGE_MIGRATION: said}
    assert Observer(source(objects)).observe(quota(), 0.0).storage_migration is allowed


def pod(cpu: str, version: str) -> Pod:
    resources = {"limits": {"cpu": cpu}}
    content = {
        "metadata": {"name": "p", "uid": "uid-p", "resourceVersion": version},
        "spec": {"containers": [{"name": "c", "resources": resources}]},
    }
    return msgspec.convert(content, Pod)


def test_a_pods_usage_is_cached_by_its_version() -> None:
    memo, spec = Cache(), ResourceQuotaSpec(hard={"limits.cpu": "9"})

    def counted(cpu: str, version: str) -> str:
        return str(memo.usage(pod(cpu, version), spec, 0.0, NEWEST)["limits.cpu"])

    assert [counted("1", "7"), counted("2", "7"), counted("2", "8")] == ["1", "1", "2"]
    assert [counted("1", ""), counted("2", "")] == ["1", "2"]


def test_what_a_pod_counts_is_remembered_by_release() -> None:
    memo, spec = Cache(), ResourceQuotaSpec()
    resized = msgspec.structs.replace(
        pod("1", "7"),
        status=msgspec.convert(
            {"containerStatuses": [{"name": "c", "resources": {"limits": {"cpu": "5"}}}]}, PodStatus
        ),
    )

    def counted(release: str) -> str:
        return str(memo.usage(resized, spec, 0.0, releases_of([release]))["limits.cpu"])

    assert [counted("1.32"), counted("1.37"), counted("1.32")] == ["1", "5", "1"]
