"""Causes that keep headroom from its work: told once, by name, where people look, for as long as they last."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from kubeloop.api.registry import CONFIG_MAPS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, BadRequest, Forbidden, Invalid, ServerError
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.reconcile import Trouble
from pkg.config.causes import Cause, decode_causes
from pkg.config.management import Management
from pkg.selfcheck.installation import Installation
from pkg.selfcheck.troubles import END_AFTER, EVENT_REFUSED, EVENT_UNANSWERED, REPORT_AFTER, Troubles
from pkg.util.resourcequota.policy import EstimateKind, Mode
from tests.decisions import sentences
from tests.kinds import Events, Server
from tests.objects import quota

pytestmark = pytest.mark.virtual_time

DENIED = 'admission webhook "q.example.org" denied the request: not by\nyou'
POLICY = """resourcequotas "q" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: hands off"""
RBAC = 'resourcequotas "q" is forbidden: User "u" cannot patch resource "resourcequotas" in API group ""'


class RigManagement(Management):
    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.found: list[tuple[Controller[Any], Trouble]] = []

    def troubles(self) -> list[tuple[Controller[Any], Trouble]]:
        return self.found


class TroublesRig:
    """Controllers whose troubles a test sets."""

    def __init__(self) -> None:
        server = Server()
        server.kind(CONFIG_MAPS)
        self.management = RigManagement(server.client())
        self.quotas: Controller[Any] = self.management.resource_quotas
        self.namespaces: Controller[Any] = self.management.namespaces
        self.find_troubles = self.management.found
        self.events = Events()
        self.management._recorders["headroom"] = self.events.recorder
        runs = Installation(Mode.TAKEOVER, EstimateKind.EXACT)
        self.troubles = Troubles(self.management, "own", ["mtq"], lambda: runs, list)

    def refuse(self, key: str, error: ApiError | None, *, handler: str = "writer", kind: str = "quotas") -> None:
        self.find_troubles.append((getattr(self, kind), Trouble(handler, key, error)))

    async def looks(self, seconds: float) -> None:
        running = asyncio.create_task(self.troubles.run())
        await asyncio.sleep(seconds)
        running.cancel()

    def cache(self, name: str) -> None:
        self.quotas.informer.indexer.add(quota({}, name=name))


def waiting(by: str) -> float | None:
    return REGISTRY.get_sample_value("headroom_requests_refused", {"by": by})


async def test_causes_that_no_request_met_are_measured_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TroublesRig()
    reverting = Cause("field manager kubectl-edit", 0, "lowers it", ["ResourceQuota a/q", "ResourceQuota b/q"], 2)
    monkeypatch.setattr(rig.management.reverts, "causes", lambda: [reverting])
    rig.refuse("a/q", BadRequest(DENIED))
    await rig.looks(REPORT_AFTER + 1.5)
    assert [cause.by for cause in rig.troubles.causes] == ["webhook q.example.org", "field manager kubectl-edit"]
    assert reverting.line("b") == "field manager kubectl-edit: lowers it: ResourceQuota b/q and 1 more"
    assert waiting("field manager kubectl-edit") == 2
    monkeypatch.undo()
    await rig.looks(1.5)
    assert waiting("field manager kubectl-edit") is None


WEBHOOK = "webhook q.example.org"
CODES: dict[str, tuple[ApiError, str, str]] = {
    "400 of a webhook": (BadRequest(DENIED), WEBHOOK, " refuses headroom's requests (400): not by you"),
    "403 of a webhook": (Forbidden(DENIED), WEBHOOK, " refuses headroom's requests (403): not by you"),
    "422 of a policy": (
        Invalid(POLICY), "ValidatingAdmissionPolicy p (binding b)", " refuses headroom's requests (422): hands off",
    ),
    "403 of RBAC": (
        Forbidden(RBAC), "RBAC", " refuses headroom's requests (403): " + RBAC.partition("forbidden: ")[2],
    ),
    "500 of a webhook that does not answer": (
        ServerError('failed calling webhook "q.example.org": EOF'), WEBHOOK, ": it does not answer: EOF",
    ),
}  # fmt: skip


@sentences(CODES)
async def test_a_refusal_is_an_event_a_metric_and_a_cause(case: tuple[ApiError, str, str]) -> None:
    error, by, text = case[0], case[1], case[1] + case[2]
    rig = TroublesRig()
    rig.cache("q")
    rig.refuse("ns1/q", error)
    await rig.looks(60)
    assert rig.events.recorded == [("ns1/q", "Warning", EVENT_REFUSED, text)]
    (cause,) = rig.troubles.causes
    assert (cause.text, cause.objects, waiting(by)) == (text, ["ResourceQuota ns1/q"], 1)
    rig.find_troubles.clear()
    await rig.looks(END_AFTER + 2)
    assert (rig.troubles.causes, waiting(by)) == ([], None)
    rig.refuse("ns1/q", error)
    await rig.looks(REPORT_AFTER + 2)
    assert len(rig.events.recorded) == 2


async def test_a_vmi_that_is_invalid_by_itself_keeps_headroom_from_nothing() -> None:
    rig = TroublesRig()
    invalid = Invalid('virtualmachineinstances "a" is invalid: metadata.annotations: Too long', status=422)
    rig.find_troubles.append((rig.management.virtual_machine_instances, Trouble("writer", "shop/a", invalid)))
    await rig.looks(10)
    assert (rig.events.recorded, rig.troubles.causes, waiting("validation")) == ([], [], None)
    rig.refuse("shop/q", Invalid('resourcequotas "q" is invalid: spec.hard: Invalid value'))
    await rig.looks(10)
    assert [cause.objects for cause in rig.troubles.causes] == [["ResourceQuota shop/q"]]


async def test_a_refusal_is_told_once_it_is_more_than_a_moment() -> None:
    rig = TroublesRig()
    rig.cache("q")
    rig.refuse("ns1/q", Forbidden(DENIED))
    await rig.looks(REPORT_AFTER - 0.5)
    rig.find_troubles.clear()
    await rig.looks(30)
    assert (rig.events.recorded, rig.troubles.causes) == ([], [])
    for _ in range(4):
        rig.refuse("ns1/q", Forbidden(DENIED))
        await rig.looks(0.5)
        rig.find_troubles.clear()
        await rig.looks(0.5)
    assert len(rig.events.recorded) == 1


async def test_a_missing_answer_is_told_at_the_first_look(caplog: pytest.LogCaptureFixture) -> None:
    rig = TroublesRig()
    rig.cache("q")
    rig.refuse("ns1/q", None)
    await rig.looks(0.1)
    text = "the API server, or a webhook that it asks, does not answer"
    assert rig.events.recorded == [("ns1/q", "Warning", EVENT_UNANSWERED, text)]
    assert waiting("no answer") == 1
    assert f"writer waits for an answer: ResourceQuota ns1/q: {text}" in caplog.messages
    rig.find_troubles.clear()
    await rig.looks(END_AFTER + 2)


async def test_a_kind_that_may_not_be_read_is_told_on_the_installation() -> None:
    rig = TroublesRig()
    rig.refuse("", Forbidden(RBAC), handler="")
    await rig.looks(10)
    ((key, _, reason, text),) = rig.events.recorded
    assert (key, reason) == ("own/headroom", EVENT_REFUSED)
    assert text.endswith(": resourcequotas")


async def test_a_handler_with_events_of_its_own_is_published() -> None:
    rig = TroublesRig()
    rig.refuse("shop", Forbidden(DENIED), handler="mtq", kind="namespaces")
    await rig.looks(10)
    assert rig.events.recorded == []
    assert [cause.objects for cause in rig.troubles.causes] == [["Namespace shop"]]


async def test_many_objects_are_one_cause_for_each_who_refuses() -> None:
    rig = TroublesRig()
    for number in range(1000):
        rig.refuse(f"ns{number:04}/q", BadRequest(DENIED))
    rig.refuse("shop", Forbidden(RBAC), kind="namespaces")
    await rig.looks(10)
    webhook, rbac = rig.troubles.causes
    assert (webhook.count, len(webhook.objects), rbac.count) == (1000, 200, 1)
    assert waiting("webhook q.example.org") == 1000
    assert webhook.line("ns0007").endswith("not by you: ResourceQuota ns0007/q and 999 more")
    assert len(msgspec.json.encode(rig.troubles.causes)) < 20_000


LINES: dict[str, tuple[Callable[[Cause], object], object]] = {
    "of a namespace": (lambda cause: bool(cause.waiting("shop")), True),
    "of another one that begins alike": (lambda cause: bool(cause.waiting("sho")), False),
    "of a namespace itself": (lambda cause: bool(cause.waiting("bare")), True),
    "a line that names the namespace's": (
        lambda cause: cause.line("shop"), "w refuses headroom's requests (400): no: ResourceQuota shop/q and 2 more",
    ),
    "a line": (lambda cause: cause.line(), "w refuses headroom's requests (400): no: Namespace bare and 2 more"),
}  # fmt: skip


@sentences(LINES)
def test_what_a_cause_says(case: tuple[Callable[[Cause], object], object]) -> None:
    request, answer = case
    assert request(Cause("w", 400, "no", ["Namespace bare", "ResourceQuota shop/q", "VirtualMachine a/b"], 3)) == answer


@pytest.mark.parametrize("text", ["", "{", '{"by": "x"}', '[{"by": 5}]'])
def test_what_another_program_wrote_names_nobody(text: str) -> None:
    assert decode_causes(text) == []


async def test_control_characters_of_a_sentence_are_not_printed() -> None:
    rig = TroublesRig()
    rig.refuse("ns1/q", BadRequest('admission webhook "w" denied the request: \x1b[31mred\u202e'))
    await rig.looks(10)
    assert [cause.reason for cause in rig.troubles.causes] == ["\\x1b[31mred\\u202e"]
