"""Storage for a VM's volumes. The text is Harvester's, byte for byte."""

import json
from dataclasses import dataclass, field

import msgspec
import pytest

from kubeloop.api.core import ResourceQuota
from kubeloop.api.quantity import Quantity
from kubeloop.webhook.admission import Decision
from pkg.api.kubevirt import VirtualMachine
from pkg.util import constants
from pkg.webhook.resources.virtualmachine import decide, storage_of, validate
from tests.decisions import sentences
from tests.objects import by_name, quota
from tests.pkg.webhook.fake_view import FakeView, State, request

pytestmark = pytest.mark.virtual_time

SHORT = "storage insufficient resources due to resource quota"
LIMIT = '{"limit":{"requestsStorage":"100Gi"}}'
NULLS = (
    '[null,{"metadata":null,"spec":null,"status":null},{"metadata":{"labels":{"a":null}},"spec":{"resources":null}},'
    '{"spec":{"resources":{"limits":null,"requests":{"storage":null}}}},'
    '{"apiVersion":null,"spec":{"resources":{"requests":{"cpu":null,"storage":"1Gi"}}}}]'
)


def machine(*sizes: str, text: str | None = None) -> VirtualMachine:
    """A VM whose volume claim templates have these sizes, or say `text`."""
    templates = [
        {"metadata": {"name": f"disk-{n}"}, "spec": {"resources": {"requests": {"storage": size}}}}
        for n, size in enumerate(sizes)
    ]
    annotations = {}
    if sizes or text is not None:
        annotations[constants.ANNOTATION_VOLUME_CLAIM_TEMPLATES] = json.dumps(templates) if text is None else text
    return msgspec.convert(
        {"metadata": {"name": "vm1", "namespace": "ns1", "annotations": annotations}}, VirtualMachine
    )


@dataclass(frozen=True)
class VmUpdate:
    new: VirtualMachine
    old: VirtualMachine | None = None
    limits: str = LIMIT
    used: str = "0"
    annotations: dict[str, str] = field(default_factory=dict)
    quotas: int = 1

    @property
    def found(self) -> list[ResourceQuota]:
        return [quota({}, self.annotations, used={"requests.storage": self.used}) for _ in range(self.quotas)]


FITS = {
    "it fits": VmUpdate(machine("60Gi", "39Gi")),
    "to the last byte": VmUpdate(machine("60Gi", "40Gi")),
    "beside what is used": VmUpdate(machine("30Gi"), used="70Gi"),
    "no volumes": VmUpdate(machine()),
    "an empty annotation": VmUpdate(machine(text="")),
    "null for templates": VmUpdate(machine(text="null")),
    "as many templates as a VM may have volumes": VmUpdate(machine(text=f"[{'{},' * 255}{{}}]"), used="100Gi"),
    "templates that ask for nothing": VmUpdate(machine(text='[{"spec":{}},{}]'), used="100Gi"),
    "nulls, which Go takes": VmUpdate(machine(text=NULLS), used="99Gi"),
    "an update that asks for no more": VmUpdate(machine("500Gi"), machine("500Gi"), used="500Gi"),
    "an update that asks for less": VmUpdate(machine("400Gi"), machine("500Gi"), used="500Gi"),
    "an update whose increase fits": VmUpdate(machine("510Gi"), machine("500Gi"), used="90Gi"),
    "no limit for storage": VmUpdate(machine("1Ti"), limits='{"limit":{"limitsCpu":"1"}}'),
    "a limit of zero is none": VmUpdate(machine("1Ti"), limits='{"limit":{"requestsStorage":"0"}}'),
    "no annotation on the namespace": VmUpdate(machine("1Ti"), limits=""),
    "no default quota": VmUpdate(machine("1Ti"), quotas=0),
    "what migrations hold is not used": VmUpdate(
        machine("30Gi"), used="90Gi", annotations={by_name(): '{"requests.storage":"20Gi"}'}
    ),
    "an old annotation that is garbage asked for nothing": VmUpdate(machine("100Gi"), machine(text="x")),
}

DENIED = {
    "a byte too much": VmUpdate(machine("60Gi", str(40 * 2**30 + 1))),
    "beside what is used": VmUpdate(machine("31Gi"), used="70Gi"),
    "an update whose increase does not fit": VmUpdate(machine("511Gi"), machine("500Gi"), used="90Gi"),
    "more is used than there is": VmUpdate(machine("1"), used="101Gi"),
    "one of two quotas is full": VmUpdate(machine("1Gi"), used="100Gi", quotas=2),
}


@sentences(FITS | DENIED)
def test_a_machine_is(case: VmUpdate) -> None:
    decision = decide(case.new, case.old, case.limits, case.found)
    denied = case in DENIED.values()
    assert (decision.allowed, decision.message) == (not denied, SHORT if denied else "")


UNREADABLE = {
    "an annotation that is not JSON": VmUpdate(machine("1Gi"), limits="x"),
    "a limit that is no quantity": VmUpdate(machine("1Gi"), limits='{"limit":{"requestsStorage":"much"}}'),
    "limits that are none": VmUpdate(machine("1Gi"), limits='{"limit":3}'),
    "an entry": VmUpdate(machine("1Gi"), annotations={by_name(): "x"}),
}


@sentences(UNREADABLE)
def test_garbage_blocks_nothing_but_is_told(case: VmUpdate) -> None:
    decision = decide(case.new, case.old, case.limits, case.found)
    assert decision.allowed
    assert decision.warnings


@pytest.mark.parametrize("old", [machine("1Gi"), machine("2Gi")], ids=["as much", "less"])
def test_who_asks_for_no_more_is_not_told(old: VirtualMachine) -> None:
    assert decide(machine("1Gi"), old, LIMIT, UNREADABLE["an entry"].found) == Decision()


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "{}",
        '[{"spec":{"resources":{"requests":{"storage":"10GB"}}}}]',
        "[1]",
        '[{"metadata":1}]',
        f"[{'{},' * 256}{{}}]",
    ],
)
def test_garbage_templates_are_denied_where_storage_is_limited(text: str) -> None:
    decision = decide(machine(text=text), None, LIMIT, [quota({})])
    assert decision.message.startswith("failed to unmarshal the volumeClaimTemplates annotation: ")
    assert decide(machine(text=text), None, "", [quota({})]).allowed


def test_storage_is_summed_up_in_any_spelling() -> None:
    assert storage_of(machine("1Gi", "1024Mi", "1e9")) == Quantity.parse(str(2 * 2**30 + 10**9))


async def test_a_live_look_precedes_a_denial() -> None:
    full, free = (quota({}, used={"requests.storage": used}) for used in ("100Gi", "0"))
    view = FakeView(State(full, limits=LIMIT), State(free, limits=LIMIT))
    assert (await validate(view, request(machine("1Gi")))).allowed
    assert view.looked == ["quotas", "namespace"]
    larger = State(full, limits='{"limit":{"requestsStorage":"200Gi"}}')
    assert (await validate(FakeView(State(full, limits=LIMIT), larger), request(machine("1Gi")))).allowed


async def test_when_the_api_server_does_not_answer_the_cache_decides() -> None:
    view = FakeView(State(quota({}, used={"requests.storage": "100Gi"}), limits=LIMIT), None)
    assert (await validate(view, request(machine("1Gi")))).message == SHORT
    update = request(machine("1Gi"), machine("2Gi"))
    assert (await validate(view, update)).allowed
