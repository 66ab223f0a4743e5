"""The installed headroom: does it run, by its Lease, its webhooks, and whether these answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from kubeloop.api.core import LeaseSpec
from pkg.config.cause import Cause
from pkg.report.installation import Installed, LeaseState, lease_state
from tests.decisions import sentences

NOW = 1767268800.0  # 2026-01-01T12:00:00Z
REFUSED = "dial tcp 10.0.0.1:443: connect: connection refused"
HELD = LeaseSpec(holder_identity="pod-0", lease_duration_seconds=15, renew_time="2026-01-01T11:59:58.000000Z")


@dataclass(frozen=True)
class Found:
    """The parts of an installation that are known, and the alarms."""

    lease: LeaseState | None = None
    webhooks: Mapping[str, str] = field(default_factory=dict)
    unreachable: str | None = None
    alarms: Sequence[str] = ()
    is_stopped: bool = False
    absent: Sequence[str] = ()
    problem: str = ""


PODS = "pods.headroom.harvesterhci.io"
FOUND = {
    "nothing is known": Found(),
    "it runs, and its webhooks answer": Found(LeaseState("pod-0", 2.0, 15.0), {PODS: "Fail"}, ""),
    "it was killed": Found(
        LeaseState("pod-0", 35.4, 15.0),
        alarms=["headroom has not been running for 35 s: nothing is raised or given back"],
        is_stopped=True,
    ),
    "it ended and released the Lease": Found(
        LeaseState("", 3.0, 1.0),
        alarms=["headroom has not been running for 3 s: nothing is raised or given back"],
        is_stopped=True,
    ),
    "it has been gone for days": Found(
        LeaseState("pod-0", 200000.0, 15.0),
        alarms=["headroom has not been running for 2 d: nothing is raised or given back"],
        is_stopped=True,
    ),
    "the Lease never had a holder": Found(
        LeaseState("", None, 15.0),
        alarms=["headroom has not been running: nothing is raised or given back"],
        is_stopped=True,
    ),
    "a webhook with Fail does not answer": Found(
        LeaseState("pod-0", 2.0, 15.0),
        {PODS: "Fail", "namespaces.headroom.harvesterhci.io": "Ignore"},
        REFUSED,
        [
            f"webhook {PODS} is registered and does not answer: "
            f"pods are refused in namespaces with added headroom ({REFUSED})"
        ],
    ),
    "webhooks with Ignore do not answer": Found(
        None,
        {PODS: "Ignore"},
        REFUSED,
        [
            "the webhooks are registered and do not answer: what they are about waits for them, "
            f"and is not checked ({REFUSED})"
        ],
    ),
    "it runs and may not write": Found(
        LeaseState("pod-0", 2.0, 15.0),
        problem="resourceQuotaController: ns1/q: Forbidden",
        alarms=["headroom cannot do its work: resourceQuotaController: ns1/q: Forbidden"],
    ),
    "nobody may ask whether they answer": Found(None, {PODS: "Fail"}, None),
    "it was never installed": Found(
        absent=["a", "b"],
        alarms=[
            "headroom is not running here: there is no Lease, ConfigMap or webhook of it in a, b "
            "(--headroom-namespace names another namespace)"
        ],
        is_stopped=True,
    ),
}


@sentences(FOUND)
def test_what_is_wrong_is_said(case: Found) -> None:
    installed = Installed(case.lease, case.webhooks, case.unreachable, case.absent, problem=case.problem)
    assert (installed.alarms(), installed.is_stopped) == (list(case.alarms), case.is_stopped)


WEBHOOK = Cause("webhook q", 400, "not by you", ["ResourceQuota a/q", "ResourceQuota b/q"], 2)
RIGHTS = Cause("RBAC", 403, "may not", ["Namespace c"], 1)
PROBLEM = f"{WEBHOOK.line()}; and 1 more, see /readyz"
FIRST = {
    "of all namespaces": ("", PROBLEM),
    "of one in which something waits": ("b", f"{WEBHOOK.text}: ResourceQuota b/q and 1 more"),
    "of one that waits for another": ("c", RIGHTS.line()),
    "of one in which nothing waits": ("d", PROBLEM),
}


@sentences(FIRST)
def test_a_refusal_names_what_waits_in_the_namespace_asked_about(case: tuple[str, str]) -> None:
    namespace, problem = case
    installed = Installed(LeaseState("pod-0", 2.0, 15.0), problem=PROBLEM, causes=[WEBHOOK, RIGHTS])
    assert installed.alarms(namespace) == [f"headroom cannot do its work: {problem}"]
    assert [refusal["by"] for refusal in installed.document()["refused"]] == ["webhook q", "RBAC"]


MISSING = {
    "nothing is known": (Installed(), ["no controller was found", "no webhooks are registered"]),
    "all of it works": (Installed(LeaseState("pod-0", 2.0, 15.0), {PODS: "Ignore"}, ""), []),
    "webhooks that may not be probed": (
        Installed(LeaseState("pod-0", 2.0, 15.0), {PODS: "Ignore"}, None),
        ["it is not known whether the API server reaches the webhooks"],
    ),
}


@sentences(MISSING)
def test_what_a_check_asks_for_is_known_to_work_or_named(case: tuple[Installed, list[str]]) -> None:
    installed, expected = case
    missing = installed.missing(controller=True, webhooks=True)
    assert len(missing) == len(expected)
    assert all(map(str.startswith, missing, expected))
    assert installed.missing(controller=False, webhooks=False) == []


LEASES = {
    "renewed two seconds ago": (HELD, LeaseState("pod-0", 2.0, 15.0), True),
    "run out": (LeaseSpec("pod-0", 1, None, HELD.renew_time), LeaseState("pod-0", 2.0, 1.0), False),
    "released": (LeaseSpec(None, 1, None, HELD.renew_time), LeaseState("", 2.0, 1.0), False),
    "never held": (LeaseSpec(), LeaseState("", None, 15.0), False),
    "its clock is ahead": (LeaseSpec("pod-0", 15, None, "2026-01-01T12:00:05Z"), LeaseState("pod-0", 0.0, 15.0), True),
    "a time that is none": (LeaseSpec("pod-0", 15, None, "soon"), LeaseState("pod-0", None, 15.0), False),
}  # fmt: skip


@sentences(LEASES)
def test_a_lease(case: tuple[LeaseSpec, LeaseState, bool]) -> None:
    spec, expected, live = case
    state = lease_state(spec, NOW)
    assert (state, state.is_live) == (expected, live)


@pytest.mark.parametrize(("running", "lease"), [(None, None), (True, LeaseState("pod-0", 2.0, 15.0))])
def test_the_document(running: bool | None, lease: LeaseState | None) -> None:
    document = Installed(lease, {PODS: "Fail"}, REFUSED).document()
    assert (document["running"], document["webhooks"], document["unreachable"]) == (running, {PODS: "Fail"}, REFUSED)


@sentences(
    {
        "there are none": (Installed(), ""),
        "they answer": (
            Installed(None, {PODS: "Fail"}, "", endpoint="Service ns/headroom-webhook"),
            "webhooks registered at Service ns/headroom-webhook: pods (Fail); they answer",
        ),
    }
)
def test_what_is_registered_is_said(case: tuple[Installed, str]) -> None:
    installed, lines = case
    assert installed.registration == lines
