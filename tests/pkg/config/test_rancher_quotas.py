"""The way in which quotas with Rancher's label are raised, and whose turn it is in a project."""

import asyncio
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import ValidatingWebhookConfiguration
from kubeloop.api.registry import SELF_SUBJECT_ACCESS_REVIEWS
from kubeloop.client.errors import ApiError, BadRequest, Forbidden
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.virtual_time import virtual_time
from pkg.config.rancher_quotas import ASKS_AGAIN, ProjectTurns, RancherWrites
from pkg.util.resourcequota.observe import Listed
from pkg.util.resourcequota.policy import RancherQuotas
from pkg.util.resourcequota.rancher import SILENCE, locks_quotas
from tests.kinds import Server
from tests.objects import quota

AUTO, DIRECT, ANNOTATION, IMPERSONATE = RancherQuotas
DENIED = BadRequest(
    'admission webhook "rancher.cattle.io.resourcequotas" denied the request: users are forbidden from changing '
    "resources managed by Rancher",
    status=400,
)
OTHER = Forbidden('admission webhook "quotas.example.com" denied the request: no', status=403)


def registration(
    name: str = "rancher.cattle.io", resources: list[str] | None = None, operations: list[str] | None = None
) -> ValidatingWebhookConfiguration:
    rule = {"resources": resources or ["resourcequotas"], "operations": operations or ["CREATE", "UPDATE"]}
    body: dict[str, Any] = {"metadata": {"name": name}, "webhooks": [{"name": f"{name}.x", "rules": [rule]}]}
    return msgspec.convert(body, ValidatingWebhookConfiguration)


@pytest.mark.parametrize(
    ("configuration", "locks"),
    [
        pytest.param(registration(), True, id="Rancher's webhook is asked about quotas"),
        pytest.param(registration(resources=["*"], operations=["*"]), True, id="it is asked about everything"),
        pytest.param(registration(resources=["namespaces"]), False, id="it is asked about others"),
        pytest.param(registration(operations=["CREATE"]), False, id="it is asked about creations alone"),
        pytest.param(registration("headroom.harvesterhci.io"), False, id="it is not Rancher's"),
    ],
)
def test_a_lock_is_known_by_ranchers_registration(configuration: ValidatingWebhookConfiguration, locks: bool) -> None:
    assert locks_quotas([configuration]) is locks


async def test_the_operators_choice_is_taken_as_it_is() -> None:
    for choice in (DIRECT, ANNOTATION, IMPERSONATE):
        writes = RancherWrites(Server().client(), choice=choice)
        writes.registrations = Listed([registration()])
        await writes.look()
        assert (writes.way, writes.reason) == (choice, f"--rancher-quotas={choice}")
        assert not writes.learn(DENIED)


async def test_auto_follows_the_registration() -> None:
    writes = RancherWrites(Server().client())
    assert writes.way is DIRECT
    writes.registrations = Listed([registration()])
    assert writes.way is ANNOTATION
    assert "rancher.cattle.io covers resourcequotas" in writes.reason
    assert writes.asks(quota())
    assert not writes.asks(quota(labels={}))
    writes.registrations = Listed()
    assert writes.way is DIRECT


@pytest.mark.parametrize(("error", "way"), [(DENIED, ANNOTATION), (OTHER, DIRECT)], ids=["Rancher's", "another's"])
async def test_auto_learns_from_a_denied_write(error: ApiError, way: RancherQuotas) -> None:
    writes = RancherWrites(Server().client())
    assert writes.learn(error) is (way is ANNOTATION)
    assert writes.way is way


async def test_a_lock_between_a_decision_and_its_write_is_learned() -> None:
    writes = RancherWrites(Server().client())
    writes.registrations = Listed([registration()])
    assert writes.learn(DENIED)


@pytest.mark.parametrize(("rights", "expected"), [(2, IMPERSONATE), (1, ANNOTATION), (0, ANNOTATION)])
async def test_quotas_decided_at_once_take_the_way_of_one_answer(rights: int, expected: RancherQuotas) -> None:
    server, answer, questions = Server(), asyncio.Event(), list[Any]()

    async def review(request: Request) -> None:
        if request.plural == SELF_SUBJECT_ACCESS_REVIEWS.plural:
            questions.append(request.body["spec"]["resourceAttributes"]["resource"])
            await answer.wait()
            request.body["status"] = {"allowed": len(questions) <= rights}

    server.reactors.append(review)
    client = server.client()
    writes = RancherWrites(client, client)
    writes.registrations = Listed([registration()])

    async def way() -> RancherQuotas:
        await writes.look()
        return writes.way

    ways = [asyncio.create_task(way()) for _ in range(3)]
    await asyncio.sleep(0)
    answer.set()
    assert (await asyncio.gather(*ways), questions) == ([expected] * 3, ["serviceaccounts", "groups"])


@virtual_time
async def test_turns_of_a_project_are_taken_one_after_the_other() -> None:
    turns = ProjectTurns()
    assert turns.take("p", "a")
    assert (turns.take("p", "b"), turns.take("q", "b"), turns.take("", "b"), turns.take("", "a")) == (
        False, True, True, True,
    )  # fmt: skip
    turns.end("p", "b")
    assert not turns.take("p", "b")
    await asyncio.sleep(SILENCE + 0.1)
    assert turns.take("p", "b")
    assert not turns.take("p", "a")
    turns.end("p", "b")
    assert turns.take("p", "a")


@virtual_time
async def test_who_has_had_its_turn_waits_for_the_next() -> None:
    """A namespace whose migrations come and go all the time has another request ready at any moment."""
    turns = ProjectTurns()
    assert (turns.take("p", "a"), turns.take("p", "b")) == (True, False)
    turns.end("p", "a")
    assert (turns.take("p", "a"), turns.take("p", "b")) == (False, True)
    turns.end("p", "b")
    assert turns.take("p", "a")


@virtual_time
async def test_who_asks_no_longer_is_not_waited_for() -> None:
    turns = ProjectTurns()
    assert (turns.take("p", "a"), turns.take("p", "b")) == (True, False)
    turns.end("p", "a")
    await asyncio.sleep(ASKS_AGAIN + 0.1)
    assert turns.take("p", "a")
