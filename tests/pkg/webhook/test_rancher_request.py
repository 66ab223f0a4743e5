"""The guard and the namespace's validator while headroom requests of Rancher what it adds: entries and the person's
annotation are in headroom's record on the namespace."""

import json
from collections.abc import Sequence

import pytest

from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.api.resource_list import parse_resource_list
from pkg.config.settings import QuotaGuard, Settings
from pkg.util.constants import ANNOTATION_APPLIED as APPLIED
from pkg.util.constants import ANNOTATION_REQUEST, LABEL_MANAGED, RANCHER_SUDO_USER
from pkg.util.constants import ANNOTATION_SKIP_AUTO_SCALING as SKIP
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.util.resourcequota.rancher import Request, format_request
from pkg.webhook.resources.namespace import decide
from pkg.webhook.resources.resourcequota import Guard
from tests.decisions import sentences
from tests.kinds import edited
from tests.objects import BASE, ENTRY, HARD, MARKS, RAISED, annotated_namespace, by_name, quota
from tests.pkg.webhook.fake_view import ALICE, RANCHER, FakeView, State, request

pytestmark = pytest.mark.virtual_time

POLICY = Policy(Mode.TAKEOVER, EstimateKind.HARVESTER)
USERS = [ALICE, RANCHER, RANCHER_SUDO_USER]


def limit(cpu: str, memory: str) -> str:
    return json.dumps({"limit": {"limitsCpu": cpu, "limitsMemory": memory}}, separators=(",", ":"))


REQUESTED = limit("5", "9980344313")
"""The person's annotation with what one VM's migration needs on top."""


def record(annotation: str = BASE, *, migrates: bool = True) -> str:
    base, review = parse_resource_list(HARD), parse_resource_list(RAISED)
    return format_request(Request(annotation, review, base, base, {by_name(): ENTRY} if migrates else {}))


RECORD = record()


def requested(annotation: str | None = REQUESTED, text: str | None = RECORD) -> Namespace:
    """The namespace with its annotation and headroom's record."""
    namespace = annotated_namespace(annotation)
    return namespace if text is None else edited(namespace, metadata={"annotations": {ANNOTATION_REQUEST: text}})


QUOTA = quota(dict(RAISED), used=HARD)
"""Only Rancher may write it: it carries neither entries nor marks."""

NAMESPACE_WRITES: dict[str, tuple[Namespace, bool]] = {
    # The namespace after the write, and whether it is let in.
    "nothing changes": (requested(), True),
    "a form saves the raised numbers": (requested(limit("5000m", "9980344313")), True),
    "a form saves the person's number beside a raised one": (requested(limit("3", "9980344313")), True),
    "a person raises a limit beyond what was requested": (requested(limit("9", "9980344313")), True),
    "a person raises a limit to less than was requested": (requested(limit("4", "9980344313")), True),
    "a person lowers a limit below their own": (requested(limit("2", "9980344313")), False),
    "a person lowers one and raises the other": (requested(limit("9", "4999Mi")), False),
    "a person takes a limit away": (requested('{"limit":{"limitsCpu":"5"}}'), False),
    "a person removes the annotation": (requested(None), False),
    "a person writes garbage": (requested("{"), False),
    "headroom gives back": (requested(BASE, None), True),
    "headroom requests more": (requested(limit("7", "14717808626")), True),
    "a removed record: the raised numbers are the person's": (requested(text=None), True),
    "the record goes with a lower limit": (requested(limit("2", "5000Mi"), None), False),
    "a tenant lowers the person's annotation in the record": (requested(text=record(limit("1", "5000Mi"))), False),
    "a tenant raises the person's annotation in the record": (requested(text=record(limit("4", "5000Mi"))), True),
    "a tenant takes the entries out of the record": (requested(text=record(migrates=False)), True),
    "a tenant takes them out and lowers a limit": (
        requested(limit("2", "9980344313"), record(migrates=False)), False,
    ),
    "a tenant makes the record garbage": (requested(text="{"), True),
}  # fmt: skip


@sentences(NAMESPACE_WRITES, "new, allowed")
def test_the_annotation_is_judged_as_the_person_means_it(new: Namespace, allowed: bool) -> None:
    decision = decide(requested(), new, [QUOTA])
    assert decision.allowed is allowed
    assert allowed or "has migrating VMs" in decision.message


def test_a_record_without_entries_holds_nothing() -> None:
    """Then what is used decides, as ever."""
    old = requested(text=record(migrates=False))
    assert decide(old, requested(limit("3", "5000Mi"), None), [QUOTA]).allowed
    denied = decide(old, requested(limit("2", "5000Mi"), None), [QUOTA])
    assert "new CPU limit 2 is lower than the current used CPU limit 3" in denied.message


LOWERED = quota(dict(HARD), used=HARD)
UNLABELLED = quota(dict(RAISED), labels={})
ENTERED = quota(dict(RAISED), {**MARKS, by_name(): ENTRY})
"""It was raised before only Rancher might write it."""
GUARDED: dict[str, tuple[ResourceQuota, ResourceQuota | None, Namespace, str]] = {
    # The quota before and after, the namespace; why it is denied, or "".
    "Rancher's old limits come back": (QUOTA, LOWERED, requested(), ""),
    "any limit is lowered, which Rancher answers for": (QUOTA, quota({"limits.cpu": "1"}), requested(), ""),
    "limits are lowered under entries from before": (ENTERED, quota(dict(HARD), ENTERED.annotations), requested(), ""),
    "it is deleted": (QUOTA, None, requested(), "it can be deleted when they are done"),
    "it loses its label": (QUOTA, UNLABELLED, requested(), "its label can be removed when they are done"),
    "it is deleted, and nothing migrates": (QUOTA, None, requested(text=record(migrates=False)), ""),
    "it is deleted, and there is no record": (QUOTA, None, requested(text=None), ""),
    "it is deleted, and the record is garbage": (QUOTA, None, requested(text="{"), ""),
    "it loses its label, and nothing migrates": (QUOTA, UNLABELLED, requested(text=record(migrates=False)), ""),
}


@sentences(GUARDED, "old, new, namespace, denied")
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("mode", [QuotaGuard.CORRECT, QuotaGuard.DENY])
async def test_a_quota_that_rancher_raises(
    old: ResourceQuota, new: ResourceQuota | None, namespace: Namespace, denied: str, user: str, mode: QuotaGuard
) -> None:
    """Whoever writes: its limits are Rancher's, the quota itself stays for the migrations."""
    guarded = guard(old, namespace, mode=mode)
    review = request(new, old, user=user)
    decision = await guarded.validate(review)
    assert (decision.allowed, denied in decision.message) == (not denied, True)
    if new is not None:
        mutated = await guarded.mutate(review)
        assert (mutated.allowed, mutated.patch) == (True, ())


@pytest.mark.parametrize("user", [ALICE, RANCHER])
async def test_a_record_is_looked_for_live_before_a_denial(user: str) -> None:
    lowered = quota(dict(HARD), ENTERED.annotations)
    review = request(lowered, ENTERED, user=user)
    stale = guard(ENTERED, requested(BASE, None), live=requested())
    assert (await stale.validate(review)).allowed
    assert not (await stale.mutate(review)).patch
    without = guard(ENTERED, requested(BASE, None))
    assert not (await without.validate(review)).allowed


SUDO: dict[str, tuple[Sequence[ResourceQuota], bool]] = {
    "headroom's entries and records": ((ENTERED, quota(dict(HARD), MARKS)), True),
    "spec.hard alone": ((ENTERED, quota(dict(HARD), ENTERED.annotations)), False),
    "the label alone": ((ENTERED, quota(dict(RAISED), ENTERED.annotations, labels={})), False),
    "headroom is switched off with it": (
        (ENTERED, quota(dict(HARD), {**ENTERED.annotations, LABEL_MANAGED: "false"})), True,
    ),
    "a record is written together with lower limits": (
        (ENTERED, quota(dict(HARD), {**ENTERED.annotations, APPLIED: "{}"})), True,
    ),
    "the owner's mark goes": ((ENTERED, quota(dict(RAISED), {SKIP: "true", by_name(): ENTRY})), True),
}  # fmt: skip


@sentences(SUDO)
async def test_under_ranchers_name_records_pass_and_limits_do_not(case: tuple[Sequence[ResourceQuota], bool]) -> None:
    (old, new), allowed = case
    decision = await guard(old, requested(BASE, None)).validate(request(new, old, user=RANCHER_SUDO_USER))
    assert decision.allowed is allowed


def guard(
    rq: ResourceQuota, cached: Namespace, *, live: Namespace | None = None, mode: QuotaGuard = QuotaGuard.CORRECT
) -> Guard:
    states = State(rq), State(rq)
    for state, namespace in zip(states, (cached, live or cached), strict=True):
        state.namespace = namespace
    return Guard(FakeView(*states), Settings(policy=POLICY, quota_guard=mode), lambda *_: None)
