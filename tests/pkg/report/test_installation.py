"""The installed headroom: does it run, by its Lease, its webhooks, and whether these answer."""

from kubeloop.api.core import LeaseSpec
from pkg.config.causes import Cause
from pkg.report.installation import Installed, LeaseState, lease_state
from tests.decisions import sentences

NOW = 1767268800.0  # 2026-01-01T12:00:00Z
REFUSED = "dial tcp 10.0.0.1:443: connect: connection refused"
HELD = LeaseSpec(holder_identity="pod-0", lease_duration_seconds=15, renew_time="2026-01-01T11:59:58.000000Z")


PODS = "pods.headroom.harvesterhci.io"
LIVE = LeaseState("pod-0", 2.0, 15.0)
GONE = "headroom has not been running{}: nothing is raised or given back"
STATES: dict[str, tuple[Installed, list[str], bool]] = {
    "nothing is known": (Installed(), [], False),
    "it runs, and its webhooks answer": (Installed(LIVE, {PODS: "Fail"}, ""), [], False),
    "it was killed": (Installed(LeaseState("pod-0", 35.4, 15.0)), [GONE.format(" for 35 s")], True),
    "it ended and released the Lease": (Installed(LeaseState("", 3.0, 1.0)), [GONE.format(" for 3 s")], True),
    "it has been gone for days": (Installed(LeaseState("pod-0", 200000.0, 15.0)), [GONE.format(" for 2 d")], True),
    "the Lease never had a holder": (Installed(LeaseState("", None, 15.0)), [GONE.format("")], True),
    "a webhook with Fail does not answer": (
        Installed(LIVE, {PODS: "Fail", "namespaces.headroom.harvesterhci.io": "Ignore"}, REFUSED),
        [
            f"webhook {PODS} is registered and does not answer: "
            f"pods are refused in namespaces with added headroom ({REFUSED})"
        ],
        False,
    ),
    "webhooks with Ignore do not answer": (
        Installed(None, {PODS: "Ignore"}, REFUSED),
        [
            "the webhooks are registered and do not answer: what they are about waits for them, "
            f"and is not checked ({REFUSED})"
        ],
        False,
    ),
    "it runs and may not write": (
        Installed(LIVE, problem="controller: ns1/q: Forbidden"),
        ["headroom cannot do its work: controller: ns1/q: Forbidden"],
        False,
    ),
    "it runs twice": (
        Installed(LIVE, places=["a", "b"]),
        ["headroom runs in a and in b, and each writes the same quotas: stop all but one"],
        False,
    ),
    "nobody may ask whether they answer": (Installed(None, {PODS: "Fail"}, None), [], False),
    "it was never installed": (
        Installed(absent=["a", "b"]),
        [
            "headroom is not running here: there is no Lease, ConfigMap or webhook of it in a, b "
            "(--headroom-namespace names another namespace)"
        ],
        True,
    ),
}


@sentences(STATES)
def test_what_is_wrong_is_said(case: tuple[Installed, list[str], bool]) -> None:
    installed, alarms, is_stopped = case
    assert (installed.alarms(), installed.is_stopped) == (alarms, is_stopped)


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
    installed = Installed(LIVE, problem=PROBLEM, causes=[WEBHOOK, RIGHTS])
    assert installed.alarms(namespace) == [f"headroom cannot do its work: {problem}"]
    assert [refusal["by"] for refusal in installed.document()["refused"]] == ["webhook q", "RBAC"]


MISSING = {
    "nothing is known": (Installed(), ["no controller was found", "no webhooks are registered"]),
    "all of it works": (Installed(LIVE, {PODS: "Ignore"}, ""), []),
    "webhooks that may not be probed": (
        Installed(LIVE, {PODS: "Ignore"}, None),
        ["it is not known whether the API server reaches the webhooks"],
    ),
}


@sentences(MISSING)
def test_what_a_check_asks_for_is_known_to_work_or_named(case: tuple[Installed, list[str]]) -> None:
    installed, expected = case
    missing = list(installed.missing(controller=True, webhooks=True))
    assert len(missing) == len(expected)
    assert all(map(str.startswith, missing, expected))
    assert not list(installed.missing(controller=False, webhooks=False))


LEASES = {
    "renewed two seconds ago": (HELD, LIVE, True),
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


def test_the_document() -> None:
    document = Installed(None, {PODS: "Fail"}, REFUSED).document()
    assert (document["running"], document["webhooks"], document["unreachable"]) == (None, {PODS: "Fail"}, REFUSED)
    assert Installed(LIVE).document()["running"] is True


def test_what_is_registered_is_said() -> None:
    assert Installed().registration == ""
    installed = Installed(None, {PODS: "Fail"}, "", endpoint="Service ns/headroom-webhook")
    assert installed.registration == "webhooks registered at Service ns/headroom-webhook: pods (Fail); they answer"
