"""Namespace UPDATE. Texts are Harvester's, byte for byte (pkg/webhook/resources/namespace/validator.go)."""

import json
from typing import Any

import pytest

from kubeloop.api.core import ResourceQuota
from pkg.util.constants import LABEL_MANAGED
from pkg.util.resourcequota.entries import MAX_LENGTH
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.webhook.resources.namespace import decide, denial_reason, validate
from tests.decisions import sentences
from tests.kinds import edited
from tests.objects import ENTRY, MARKS, annotated_namespace, by_name, by_uid, quota, vmim
from tests.pkg.util.resourcequota.test_rancher import KEY, RancherNamespace
from tests.pkg.webhook.fake_view import FakeView, State, request

pytestmark = pytest.mark.virtual_time

POLICY = Policy(Mode.TAKEOVER, EstimateKind.HARVESTER)
OLD = '{"limit":{"limitsCpu":"1"}}'
USED = {"limits.cpu": "2015m", "limits.memory": "4797464313"}
MIGRATES = "namespace ns1 has migrating VMs, can't change resource quotas"
CANT = "can't update the resource quota of namespace ns1, error: "
FORMAT = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def limit(**fields: Any) -> str:
    return json.dumps({"limit": fields}, separators=(",", ":"))


ALLOWED = {
    "the annotation goes": (OLD, None, USED),
    "the annotation becomes empty": (OLD, "", USED),
    "the annotation stays as it is": (OLD, OLD, USED),
    "more than what is used": (OLD, limit(limitsCpu="3", limitsMemory="5Gi"), USED),
    "exactly what is used": (OLD, limit(limitsCpu="2015m", limitsMemory="4797464313"), USED),
    "neither a cpu nor a memory limit": (OLD, limit(pods="1", requestsCpu="1m"), USED),
    "empty limits are none": (OLD, limit(limitsCpu="", limitsMemory=""), USED),
    "null is no limit at all": (OLD, "null", USED),
    "a limit that is null": (OLD, '{"limit":null}', USED),
    "nothing is used": (OLD, limit(limitsCpu="1m", limitsMemory="1"), {}),
    "no status yet": (OLD, limit(limitsCpu="0"), {}),
    "the first annotation of all": (None, limit(limitsCpu="3"), USED),
    "names match by folded case, as Go's decoder matches them": (OLD, limit(LIMITSCPU="3"), USED),
    "a spelling with a binary suffix": (OLD, limit(limitsMemory="4.5Gi"), USED),
    "a spelling with an exponent": (OLD, limit(limitsMemory="48e8"), USED),
    "more than a terabyte in exabytes": (OLD, limit(limitsMemory="1E"), USED),
}

DENIED = {
    "less cpu than is used": (limit(limitsCpu="2"), "new CPU limit 2 is lower than the current used CPU limit 2015m"),
    "less memory than is used": (
        limit(limitsMemory="1.5Gi"),
        "new Memory limit 1536Mi is lower than the current used Memory limit 4797464313",
    ),
    "both too low: the cpu is named": (
        limit(limitsMemory="1", limitsCpu="1"),
        "new CPU limit 1 is lower than the current used CPU limit 2015m",
    ),
    "one byte too little": (
        limit(limitsMemory="4797464312"),
        "new Memory limit 4797464312 is lower than the current used Memory limit 4797464313",
    ),
    "a spelling that is kept as it was written": (
        limit(limitsCpu="+1"),
        "new CPU limit +1 is lower than the current used CPU limit 2015m",
    ),
    "an exponent": (limit(limitsCpu="2e0"), "new CPU limit 2e0 is lower than the current used CPU limit 2015m"),
    "a negative limit": (limit(limitsCpu="-1"), "new CPU limit -1 is lower than the current used CPU limit 2015m"),
    "a cpu limit that is no quantity": (limit(limitsCpu="abc"), f"invalid LimitsCPU abc, error: {FORMAT}"),
    "an exponent and a suffix": (limit(limitsCpu="2e3m"), f"invalid LimitsCPU 2e3m, error: {FORMAT}"),
    "an unknown suffix": (limit(limitsMemory="1gi"), f"invalid LimitsMemory 1gi, error: {FORMAT}"),
    "a suffix of known letters in the wrong order": (
        limit(limitsMemory="1iG"),
        "invalid LimitsMemory 1iG, error: unable to parse quantity's suffix",
    ),
    "a space": (limit(limitsMemory="1 Gi"), f"invalid LimitsMemory 1 Gi, error: {FORMAT}"),
    "a sign too many": (limit(limitsCpu="--1"), "invalid LimitsCPU --1, error: unable to parse quantity's suffix"),
    "half of a JSON": (
        '{"limit":',
        'invalid NamespaceResourceQuota {"limit":, error: field.cattle.io/resourceQuota is not JSON: '
        "Expecting value: line 1 column 10 (char 9)",
    ),
    "a list": (
        "[]",
        "invalid NamespaceResourceQuota [], error: field.cattle.io/resourceQuota: the document must be an object",
    ),
    "a number for a limit": (
        '{"limit":{"limitsCpu":3}}',
        'invalid NamespaceResourceQuota {"limit":{"limitsCpu":3}}, error: '
        "field.cattle.io/resourceQuota: limitsCpu must be a string, not 3",
    ),
    "a limit that is text": (
        '{"limit":"3"}',
        'invalid NamespaceResourceQuota {"limit":"3"}, error: field.cattle.io/resourceQuota: limit must be an object',
    ),
    "as much text as an annotation holds": (
        "x" * 256 * 1024,
        f"invalid NamespaceResourceQuota {'x' * MAX_LENGTH}, error: "
        "field.cattle.io/resourceQuota has more than 8192 characters",
    ),
}


@sentences(ALLOWED, "old, new, used")
def test_allowed(old: str | None, new: str | None, used: dict[str, Any]) -> None:
    assert decide(annotated_namespace(old), annotated_namespace(new), [quota(used=used)]).allowed


def test_garbage_under_a_request_is_denied() -> None:
    ns1 = RancherNamespace()
    ns1.migrate("vm1")
    ns1.settle()
    old = ns1.namespace
    ns1.annotate({KEY: "{"})
    assert decide(old, ns1.namespace, [ns1.quota]).message == MIGRATES


@sentences(DENIED, "annotation, problem")
def test_denied_with_harvesters_text(annotation: str, problem: str) -> None:
    decision = decide(annotated_namespace(OLD), annotated_namespace(annotation), [quota(used=USED)])
    assert (decision.allowed, decision.message) == (False, CANT + problem)


def entered(key: str, text: str = ENTRY) -> list[ResourceQuota]:
    return [quota(annotations={key: text})]


HOLDS = {
    "an entry by name": (entered(by_name()), False),
    "by uid": (entered(by_uid()), False),
    "of another program": (entered("harvesterhci.io/migrating-x"), False),
    "of a long name": (entered(by_name("a" * 40)), False),
    "one that is garbage": (entered(by_name(), "x"), False),
    "on one of several default quotas": ([quota(used={}), *entered(by_uid())], False),
    "a compensation": (entered("harvesterhci.io/migratingCompensation", "true"), True),
    "an order to Harvester": (entered("harvesterhci.io/migratingScalingResyncNeeded", "true"), True),
    "no default quota": ([], True),
}


@sentences(HOLDS, "quotas, allowed")
def test_what_holds_the_annotation(quotas: list[ResourceQuota], allowed: bool) -> None:
    decision = decide(annotated_namespace(OLD), annotated_namespace(limit(limitsCpu="900m")), quotas)
    assert (decision.allowed, decision.message) == (allowed, "" if allowed else MIGRATES)


TWO = limit(limitsCpu="3", limitsMemory="5000Mi")
WHILE_MIGRATING = {
    "an enlarged limit is let in": (TWO, limit(limitsCpu="4", limitsMemory="5000Mi"), True),
    "however much is used": (OLD, limit(limitsCpu="2"), True),
    "another spelling lowers nothing": (TWO, limit(limitsCpu="3000m", limitsMemory="5000Mi"), True),
    "one that is lowered beside it is not": (TWO, limit(limitsCpu="4", limitsMemory="4999Mi"), False),
    "a limit that comes": (OLD, TWO, False),
    "a limit that goes": (TWO, OLD, False),
    "garbage": (OLD, limit(limitsCpu="lots"), False),
    "not JSON": (OLD, "{", False),
    "garbage before": (limit(limitsCpu="lots"), OLD, False),
}


@sentences(WHILE_MIGRATING, "old, new, allowed")
def test_while_vms_migrate_nothing_is_lowered(old: str, new: str, allowed: bool) -> None:
    default_quota = quota(annotations={by_name(): ENTRY}, used=USED)
    decision = decide(annotated_namespace(old), annotated_namespace(new), [default_quota])
    assert decision.allowed is allowed
    assert decision.message == ("" if allowed else MIGRATES)


@pytest.mark.parametrize("used", [3, "3", "3000m", "3e0"])
def test_what_is_used_is_read_in_any_spelling(used: Any) -> None:
    problem = denial_reason(limit(limitsCpu="2"), {"limits.cpu": used})
    assert problem in [
        f"new CPU limit 2 is lower than the current used CPU limit {spelled}" for spelled in ("3", "3e0")
    ]


HELD, FREE, BUSY = (State(*found) for found in (entered(by_name()), [quota()], [quota(used=USED)]))
LESS, THREE = limit(limitsCpu="900m"), limit(limitsCpu="3")
LOOKS = {
    "a cache that is behind denies nothing": (HELD, FREE, OLD, LESS, "", ["quotas"]),
    "a live look may find another reason": (
        HELD, BUSY, THREE, limit(limitsCpu="2"),
        CANT + "new CPU limit 2 is lower than the current used CPU limit 2015m", ["quotas"],
    ),
    "without an answer the cache decides": (HELD, None, OLD, LESS, MIGRATES, ["quotas"]),
    "what the cache allows costs no look": (FREE, FREE, OLD, LESS, "", []),
    # Upstream lets it go, and the room with it.
    "the annotation does not go while VMs migrate": (HELD, HELD, OLD, None, MIGRATES, ["quotas"]),
}  # fmt: skip


@sentences(LOOKS, "cached, live, old, new, denial, looked")
async def test_the_cache_suggests_and_the_api_server_decides(
    cached: State, live: State | None, old: str, new: str | None, denial: str, looked: list[str]
) -> None:
    view = FakeView(cached, live)
    decision = await validate(view, request(annotated_namespace(new), annotated_namespace(old)))
    assert (decision.allowed, decision.message, view.looked) == (not denial, denial, looked)


async def test_who_switches_a_namespace_off_is_told_whose_room_goes() -> None:
    raised = State(quota(annotations={**MARKS, by_name(): ENTRY}), migrations=[vmim("Running")])
    off = edited(annotated_namespace(OLD), metadata={"annotations": {LABEL_MANAGED: "false"}})
    decision = await validate(FakeView(raised, raised), request(off, annotated_namespace(OLD)))
    assert decision.allowed
    (warning,) = decision.warnings
    assert "namespace ns1: headroom gives it back; the migrations of vm1 lose the headroom" in warning
    again = await validate(FakeView(raised, raised), request(off, off))
    assert (again.allowed, again.warnings) == (True, ())
