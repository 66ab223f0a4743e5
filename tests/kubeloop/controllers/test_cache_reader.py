"""The read-only view of a cache."""

import pytest

from kubeloop.api import registry
from kubeloop.api.core import Pod
from kubeloop.api.meta import ObjectMeta
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.cache.store import Indexer
from kubeloop.client.errors import BadRequest, NotFound
from kubeloop.controllers.cache_reader import CacheReader
from pkg.api.harvesterhci import SETTINGS, Setting
from tests.kinds import Kind


def pod(namespace: str, name: str, app: str = "") -> Pod:
    return Pod(metadata=ObjectMeta(namespace=namespace, name=name, labels={"app": app}))


PODS = [pod("one", "a", "web"), pod("one", "b", "db"), pod("two", "a", "web")]


def reader() -> CacheReader[Pod]:
    indexer: Indexer[Pod] = Indexer()
    indexer.replace(PODS)
    return CacheReader(indexer)


@pytest.mark.parametrize(
    ("namespace", "name", "expected"),
    [("one", "a", PODS[0]), ("two", "a", PODS[2]), ("two", "b", None), ("", "a", None), ("three", "a", None)],
)
def test_get(namespace: str, name: str, expected: Pod | None) -> None:
    assert reader().get(namespace=namespace, name=name) is expected


@pytest.mark.parametrize("read", ["get", "require"])
def test_a_namespaced_kind_is_not_read_without_a_namespace(read: str) -> None:
    informer = SharedIndexInformer(Kind(registry.PODS).client)
    informer.indexer.replace(PODS)
    cache = CacheReader(informer.indexer, informer)
    assert cache.get(name="a", namespace="one") is PODS[0]
    with pytest.raises(BadRequest, match="Pod a has a namespace, and none is given"):
        getattr(cache, read)(name="a")


@pytest.mark.parametrize(
    ("namespace", "labels", "expected"),
    [
        ("", None, PODS),
        ("one", None, PODS[:2]),
        ("nowhere", None, []),
        ("", {"app": "web"}, [PODS[0], PODS[2]]),
        ("one", "app!=web", [PODS[1]]),
        ("two", {}, [PODS[2]]),
    ],
)
def test_list(namespace: str, labels: str | dict[str, str] | None, expected: list[Pod]) -> None:
    assert reader().list(namespace, labels=labels) == expected


def test_an_index_can_be_added_to_a_filled_cache_once() -> None:
    cache = reader()
    cache.add_indexer("app", lambda obj: [obj.labels["app"]])
    assert cache.by_index("app", "web") == [PODS[0], PODS[2]]
    assert cache.by_index("app", "none") == []
    with pytest.raises(ValueError, match="app"):
        cache.add_indexer("app", lambda obj: [])


def test_require_raises_not_found_in_the_api_servers_words() -> None:
    informer = SharedIndexInformer(Kind(SETTINGS).client)
    cache = CacheReader(informer.indexer, informer)
    with pytest.raises(NotFound, match=r'settings\.harvesterhci\.io "ratio" not found') as caught:
        cache.require(name="ratio")
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")
    ratio = Setting(metadata=ObjectMeta(name="ratio"))
    informer.indexer.add(ratio)
    assert cache.require(name="ratio") is ratio
