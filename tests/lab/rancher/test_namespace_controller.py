"""The default quota: created, replaced, left alone, and put back when the agent restarts."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.client.errors import Conflict, NotFound, Unreachable
from lab.rancher.namespace_controller import Agent, NamespaceHandler
from tests.kinds import Kind
from tests.objects import build

ANNOTATION = "field.cattle.io/resourceQuota"
LABEL = "resourcequota.management.cattle.io/default-resource-quota"
RESTART = "testcluster.headroom.harvesterhci.io/restart-agent"
SEED = '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi"}}'
BASE = {"limits.cpu": "3", "limits.memory": "5000Mi"}
RAISED = {"limits.cpu": "5", "limits.memory": "9980344313"}


def namespace(
    name: str = "ns", annotation: str | None = SEED, *, version: str = "1", **more: str
) -> Namespace:
    annotations = {**({} if annotation is None else {ANNOTATION: annotation}), **more}
    return build(Namespace, name, namespace="", resourceVersion=version, annotations=annotations)


def quota(
    hard: dict[str, str], name: str = "default-abc", *, label: str | None = "true", ns: str = "ns"
) -> ResourceQuota:
    labels = {LABEL: label} if label else {}
    return build(ResourceQuota, name, {"hard": hard}, namespace=ns, labels=labels)


class Quotas(Kind[ResourceQuota]):
    """The server's quotas, and what was asked and written."""

    def __init__(self, *quotas: ResourceQuota) -> None:
        super().__init__(RESOURCE_QUOTAS)
        self.seed(*quotas)

    @property
    def listed(self) -> list[tuple[str, str]]:
        return [(key, body["labelSelector"]) for verb, key, body in self.calls if verb == "list"]

    @property
    def created(self) -> list[dict[str, Any]]:
        return self.asked("create")

    @property
    def patched(self) -> list[tuple[str, Any]]:
        return [(key.partition("/")[2], ops) for verb, key, ops in self.calls if verb == "patch"]


def handler(quotas: Quotas, **options: Any) -> NamespaceHandler:
    return NamespaceHandler(quotas.client, **options)


def replaced(name: str = "default-abc", hard: dict[str, str] | None = None) -> tuple[str, Any]:
    return name, [{"op": "add", "path": "/spec/hard", "value": hard or BASE}]


async def test_a_missing_quota_is_created_with_the_annotation_on_it() -> None:
    quotas = Quotas()
    await handler(quotas).on_namespace_changed("ns", namespace())
    assert quotas.created == [
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {
                "generateName": "default-",
                "namespace": "ns",
                "labels": {LABEL: "true", "cattle.io/creator": "norman"},
                "annotations": {ANNOTATION: SEED},
            },
            "spec": {"hard": BASE},
        }
    ]


async def test_a_quota_that_appeared_since_the_start_is_not_created_twice() -> None:
    quotas = Quotas()
    rancher = handler(quotas)
    await rancher.on_namespace_changed("first", namespace("first", annotation='{"limit":{"pods":"1"}}'))
    quotas.given(quota(RAISED))
    await rancher.on_namespace_changed("ns", namespace())
    assert len(quotas.created) == 1
    assert quotas.patched == [replaced()]


async def test_a_start_reads_all_quotas_at_once() -> None:
    quotas = Quotas(*(quota(RAISED, ns=f"ns{number}") for number in range(5)))
    rancher = handler(quotas)
    for number in range(5):
        await rancher.on_namespace_changed(f"ns{number}", namespace(f"ns{number}"))
    assert quotas.listed == [("", f"{LABEL}=true")]
    assert len(quotas.patched) == 5


async def test_a_failed_look_is_repeated() -> None:
    quotas = Quotas(quota(RAISED))
    quotas.errors["list"] = [Unreachable("no")]
    rancher = handler(quotas)
    with pytest.raises(Unreachable):
        await rancher.on_namespace_changed("ns", namespace())
    await rancher.on_namespace_changed("ns", namespace())
    assert quotas.patched == [replaced()]


async def test_a_raised_quota_goes_back_and_only_spec_hard_is_written() -> None:
    quotas = Quotas(quota({**RAISED, "pods": "9"}))
    await handler(quotas).on_namespace_changed("ns", namespace())
    assert quotas.patched == [replaced()]


LEFT_ALONE = {
    "a quota that says the same": (quota({"limits.cpu": "3000m", "limits.memory": "5000Mi"}), namespace()),
    "a namespace without the annotation": (quota(RAISED), namespace(annotation=None)),
    "a namespace with an empty annotation": (quota(RAISED), namespace(annotation="")),
    "an annotation that is no JSON": (quota(RAISED), namespace(annotation="{")),
    "an annotation with a bad quantity": (quota(RAISED), namespace(annotation='{"limit":{"limitsCpu":"x"}}')),
    "an annotation that limits nothing": (quota(RAISED), namespace(annotation="{}")),
}


@pytest.mark.parametrize(("known", "changed"), LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
async def test_left_alone(known: ResourceQuota, changed: Namespace) -> None:
    quotas = Quotas(known)
    await handler(quotas).on_namespace_changed("ns", changed)
    assert (quotas.created, quotas.patched) == ([], [])


async def test_another_clients_quota_is_neither_changed_nor_taken_for_the_default() -> None:
    quotas = Quotas(quota(RAISED, "mine", label=None), quota(RAISED, "no", label="false"))
    await handler(quotas).on_namespace_changed("ns", namespace())
    assert quotas.patched == []
    assert len(quotas.created) == 1


async def test_between_two_default_quotas_the_first_by_name_is_taken() -> None:
    quotas = Quotas(quota(RAISED, "default-b"), quota(RAISED, "default-a"))
    await handler(quotas).on_namespace_changed("ns", namespace())
    assert quotas.patched == [replaced("default-a")]


async def test_a_quota_that_a_person_raises_stays_until_the_annotation_changes() -> None:
    quotas = Quotas(quota(BASE))
    rancher = handler(quotas)
    await rancher.on_namespace_changed("ns", namespace())
    quotas.given(quota(RAISED))
    await rancher.on_namespace_changed("ns", namespace(version="2", other="changed"))
    assert quotas.patched == []
    await rancher.on_namespace_changed("ns", namespace(annotation='{"limit":{"limitsCpu":"4"}}', version="3"))
    assert quotas.patched == [replaced(hard={"limits.cpu": "4"})]


async def test_or_until_any_change_of_the_namespace_if_that_is_asked_for() -> None:
    quotas = Quotas(quota(BASE))
    rancher = handler(quotas, every_event=True)
    await rancher.on_namespace_changed("ns", namespace())
    quotas.given(quota(RAISED))
    await rancher.on_namespace_changed("ns", namespace())
    assert quotas.patched == []
    await rancher.on_namespace_changed("ns", namespace(version="2", other="changed"))
    assert quotas.patched == [replaced()]


async def test_what_failed_is_tried_again() -> None:
    quotas = Quotas(quota(RAISED))
    quotas.errors["patch"] = [Conflict("busy", status=409)]
    rancher = handler(quotas)
    with pytest.raises(Conflict):
        await rancher.on_namespace_changed("ns", namespace())
    await rancher.on_namespace_changed("ns", namespace())
    assert quotas.now("ns/default-abc").hard == BASE


GOING = {"the quota": [quota(RAISED)], "the namespace": []}


@pytest.mark.parametrize("known", GOING.values(), ids=GOING.keys())
async def test_what_goes_meanwhile_is_no_failure(known: list[ResourceQuota]) -> None:
    quotas = Quotas(*known)
    gone = NotFound("gone", status=404)
    quotas.errors = {"create": [gone], "patch": [gone]}
    await handler(quotas).on_namespace_changed("ns", namespace())
    assert len(quotas.created + quotas.patched) == 1


async def test_a_namespace_that_is_gone_and_comes_back_is_rendered_anew() -> None:
    quotas = Quotas(quota(BASE))
    rancher = handler(quotas)
    await rancher.on_namespace_changed("ns", namespace())
    await rancher.on_namespace_changed("ns", None)
    quotas.given(quota(RAISED))
    await rancher.on_namespace_changed("ns", namespace())
    assert quotas.patched == [replaced()]


async def test_a_restart_puts_every_quota_back() -> None:
    quotas = Quotas(quota(BASE))
    rancher = handler(quotas)
    await rancher.on_namespace_changed("ns", namespace())
    quotas.given(quota(RAISED))
    rancher.restart()
    await rancher.on_namespace_changed("ns", namespace())
    assert quotas.patched == [replaced()]


async def test_a_restart_while_a_namespace_is_being_rendered_is_not_lost() -> None:
    quotas = Quotas(quota(RAISED))
    rancher = handler(quotas)
    quotas.before = [rancher.restart]
    await rancher.on_namespace_changed("ns", namespace())
    quotas.given(quota(RAISED))
    await rancher.on_namespace_changed("ns", namespace())
    assert len(quotas.patched) == 2


class Namespaces:
    """The part of a controller that the agent uses."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.enqueued: list[str] = []

    def cache(self) -> Namespaces:
        return self

    def list(self) -> list[Namespace]:
        return [namespace(name) for name in self.names]

    def enqueue(self, key: str, *, immediately: bool) -> None:
        assert immediately
        self.enqueued.append(key)


def agent(namespaces: Namespaces) -> Agent:
    controller: Any = namespaces
    return Agent(handler(Quotas()), controller)


def system(asked: str | None) -> Namespace:
    return namespace("cattle-system", None, **({} if asked is None else {RESTART: asked}))


def test_a_restart_looks_at_every_namespace() -> None:
    namespaces = Namespaces("a", "b")
    agent(namespaces).restart()
    assert namespaces.enqueued == ["a", "b"]


ASKED: dict[str, tuple[list[str | None], int]] = {
    "no annotation": ([None, None], 0),
    "an annotation that comes": ([None, "1"], 1),
    "an annotation that comes with the namespace": (["1"], 1),
    "an annotation that changes": (["1", "2", "3"], 3),
    "an annotation that stays": (["1", "1"], 1),
    "an annotation that goes": (["1", None], 1),
    "an annotation that goes and comes back": (["1", None, "1"], 2),
}


@pytest.mark.parametrize(("values", "restarts"), ASKED.values(), ids=ASKED.keys())
async def test_restarts_by_annotation(values: list[str | None], restarts: int) -> None:
    rancher = agent(Namespaces("a"))
    for value in values:
        await rancher.on_namespace_changed("cattle-system", system(value))
    assert rancher.restarts == restarts


async def test_only_cattle_system_is_asked() -> None:
    rancher = agent(Namespaces("a"))
    for value in ("1", "2"):
        await rancher.on_namespace_changed("ns", namespace(**{RESTART: value}))
    await rancher.on_namespace_changed("cattle-system", None)
    assert rancher.restarts == 0


async def test_a_new_cattle_system_can_ask_for_what_the_old_one_asked_for() -> None:
    rancher = agent(Namespaces("a"))
    for asked in (system("1"), None, system("1")):
        await rancher.on_namespace_changed("cattle-system", asked)
    assert rancher.restarts == 2
