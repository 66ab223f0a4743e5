"""Prometheus' own promtool: the rules are valid, each alert fires on its fault, and nothing else does."""

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from kubeloop.testing.cluster.binaries import ensure_prometheus
from tests.monitoring.prometheus import severities
from tests.monitoring.queries import ALERTS, INHIBITION, INHIBITION_RULE

pytestmark = pytest.mark.skipif(
    not os.environ.get("HEADROOM_OBSERVABILITY"), reason="needs promtool: make observability"
)

MINUTES = 60
Series = Mapping[str, str]
"""Series to its values, one a minute, in promtool's notation."""

JOB = 'job="headroom-metrics"'
LEADER, STANDBY = '{job="headroom-metrics",pod="a"}', '{job="headroom-metrics",pod="b"}'


def always(value: float) -> str:
    return f"{value:g}x{MINUTES}"


def wrote(code: str, method: str = "PATCH") -> str:
    return f'rest_client_requests_total{{{JOB},code="{code}",method="{method}"}}'


MASTER = "leader_election_master_status"
REFUSED = 'headroom_migrations_refused_oldest_seconds{namespace="ns1"}'
OLDEST = 'headroom_quota_oldest_entry_seconds{namespace="ns1"}'
REGISTERED = 'headroom_webhook_registered{webhook="pods",failure_policy="Ignore"}'
UNREACHABLE = f"headroom_webhook_unreachable{LEADER}"
EXPIRY = f"headroom_webhook_certificate_expiry_seconds{LEADER}"
LOCK = f"headroom_mtq_oldest_lock_seconds{LEADER}"
REQUESTS = 'headroom_requests_refused{job="headroom-metrics",pod="a",by="webhook q.example.org"}'
NOT_ENFORCED = f"headroom_quotas_not_enforced{LEADER}"
POLICY = f"headroom_pod_policy_in_force{LEADER}"
DAY = 86400

HEALTHY: Series = {
    MASTER + LEADER: always(1),
    MASTER + STANDBY: always(0),
    REFUSED: "0 60 120 180 240 299 _x50",
    OLDEST: always(DAY - 1),
    NOT_ENFORCED: "0 1 0 1 0 0 1 0x53",
    REGISTERED: always(1),
    UNREACHABLE: always(0),
    EXPIRY: always(15 * DAY + 3600),
    LOCK: f"0 60 120 0x{MINUTES}",
    f"headroom_mtq_lock_limit_seconds{LEADER}": always(120),
    POLICY: always(1),
    wrote("200"): f"0+60x{MINUTES}",
    wrote("409"): f"0+60x{MINUTES}",
    wrote("422"): f"0+60x{MINUTES}",
    wrote("500"): f"0+1x{MINUTES}",
    wrote("403", "GET"): f"0+600x{MINUTES}",
}
GONE = "_x60"

FAULTS: dict[str, tuple[Series, str]] = {
    "no replica holds the lease": ({MASTER + LEADER: always(0)}, "HeadroomNoLeader"),
    "no replica is there": ({MASTER + LEADER: GONE, MASTER + STANDBY: GONE}, "HeadroomNoLeader"),
    "a migration has been refused for long": ({REFUSED: f"0+60x{MINUTES}"}, "HeadroomMigrationRefused"),
    "a quota has been raised for long": ({OLDEST: always(DAY + 60)}, "HeadroomQuotaRaised"),
    "raised limits are not enforced": ({NOT_ENFORCED: always(1)}, "HeadroomQuotaNotEnforced"),
    "nothing serves what is registered": ({EXPIRY: GONE, UNREACHABLE: always(1)}, "HeadroomWebhookDown"),
    "the API server does not reach it, and the probes fail": (
        {UNREACHABLE: always(1), wrote("500", "POST"): f"0+60x{MINUTES}"},
        "HeadroomWebhookUnreachable",
    ),
    "a certificate is not renewed": ({EXPIRY: always(14 * DAY + 60)}, "HeadroomCertificateExpires"),
    "a lock stays": ({LOCK: f"0+30x{MINUTES}"}, "HeadroomLockPastLimit"),
    "the policies are missing": ({POLICY: always(0)}, "HeadroomPolicyMissing"),
    "a webhook refuses what headroom asks for": ({REQUESTS: f"_x30 3x{MINUTES - 31}"}, "HeadroomRequestsRefused"),
    "a webhook denies writes with 400": ({wrote("400"): f"0+60x{MINUTES}"}, "HeadroomWriteErrors"),
    "rights are missing": ({wrote("403"): f"0+60x{MINUTES}"}, "HeadroomWriteErrors"),
    "the API server does not answer": ({wrote("<error>"): f"0+60x{MINUTES}"}, "HeadroomWriteErrors"),
}
QUIET: dict[str, Series] = {
    "a healthy day": {},
    "a new leader within a minute": {MASTER + LEADER: "1x20 0x40", MASTER + STANDBY: "0x21 1x40"},
    "no webhooks at all": {REGISTERED: GONE, UNREACHABLE: GONE, EXPIRY: GONE},
    "a webhook that restarts": {EXPIRY: f"{20 * DAY}x30 _ {20 * DAY}x30"},
    "one probe that fails": {UNREACHABLE: "0x30 1 0x30"},
    "a refusal of a moment": {REQUESTS: "_x30 3 stale _x28"},
    "an API server that restarts": {wrote("<error>"): "0x30 30x30"},
}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(ensure_prometheus()["promtool"]), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def check(folder: Path, changes: Series, alerts: Mapping[str, str]) -> None:
    """Reports whether exactly these alerts (name to severity) fire within the hour."""
    series = {name: values for name, values in {**HEALTHY, **changes}.items() if values != GONE}
    fires = 'max by (alertname, severity) (max_over_time(ALERTS{alertstate="firing"}[1h]))'
    labels = [f'{{alertname="{name}",severity="{severity}"}}' for name, severity in sorted(alerts.items())]
    run_test(folder, [ALERTS], series, [(fires, "59m", labels)])


def run_test(
    folder: Path, rules: Sequence[Path], series: Series, expressions: Sequence[tuple[str, str, Sequence[str]]]
) -> None:
    """Runs `promtool test rules`: each expression has, at its time, series with exactly these labels, of value 1."""
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": time, "exp_samples": [{"labels": each, "value": 1} for each in labels]}
            for query, time, labels in expressions
        ],
    }
    file = folder / "test.yaml"
    document = {"rule_files": list(map(str, rules)), "evaluation_interval": "1m", "tests": [test]}
    file.write_text(json.dumps(document), "utf-8")
    process = promtool("test", "rules", file)
    assert process.returncode == 0, process.stderr + process.stdout


def test_the_rules_are_valid() -> None:
    process = promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    assert process.returncode == 0, process.stderr + process.stdout


@pytest.mark.parametrize("case", FAULTS)
def test_an_alert_fires_on_its_fault_and_no_other_does(case: str, tmp_path: Path) -> None:
    changes, alert = FAULTS[case]
    check(tmp_path, changes, {alert: severities()[alert]})


@pytest.mark.parametrize("case", QUIET)
def test_nothing_fires(case: str, tmp_path: Path) -> None:
    check(tmp_path, QUIET[case], {})


def test_every_alert_has_a_fault() -> None:
    assert {alert for _, alert in FAULTS.values()} == severities().keys()


# ---- inhibition.yaml -------------------------------------------------------------------------------------------

QUOTA_RATIO = """kube_resourcequota{type="used"} / ignoring(type) (kube_resourcequota{type="hard"} > 0)"""
MIXIN = {"KubeQuotaAlmostFull": "> 0.9 < 1", "KubeQuotaFullyUsed": "== 1", "KubeQuotaExceeded": "> 1"}
"""Alerts of Kubernetes' mixin, which rancher-monitoring has, to what they compare a quota's used share with."""
FULL = {
    "ns1": ("10", "0x60", "KubeQuotaFullyUsed"),
    "ns2": ("9.5", "0x60", "KubeQuotaAlmostFull"),
    "ns3": ("11", "0x60", "KubeQuotaExceeded"),
    "stuck": ("10", "86460x60", "KubeQuotaFullyUsed"),
}
"""Namespace to what is used of ten, how old its oldest entry is, and the alert about it."""


def heard(firing: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns the alerts (name and namespace) that inhibition.yaml does not hold back."""
    (rule,) = yaml.safe_load(INHIBITION.read_text("utf-8"))["inhibit_rules"]
    (source,), (target,), labels = rule["source_matchers"], rule["target_matchers"], rule["equal"]
    assert labels == ["namespace"]
    names = re.compile(target.removeprefix('alertname =~ "').removesuffix('"'))
    firing = set(firing)
    sources = {namespace for name, namespace in firing if source == f"alertname = {name}"}
    return {(name, namespace) for name, namespace in firing if not (names.fullmatch(name) and namespace in sources)}


def test_a_full_quota_is_no_alert_while_vms_migrate(tmp_path: Path) -> None:
    """For forty minutes; after that it is one again."""
    mixin = [
        {"alert": name, "expr": f"{QUOTA_RATIO} {share}", "for": "15m", "labels": {"severity": "info"}}
        for name, share in MIXIN.items()
    ]
    rules = tmp_path / "mixin.yaml", tmp_path / "inhibition.yaml"
    rules[0].write_text(json.dumps({"groups": [{"name": "mixin", "rules": mixin}]}), "utf-8")
    rules[1].write_text(json.dumps(yaml.safe_load(INHIBITION_RULE.read_text("utf-8"))["spec"]), "utf-8")
    series: dict[str, str] = {}
    for namespace, (used, age, _alert) in FULL.items():
        series |= {
            f'kube_resourcequota{{namespace="{namespace}",type="used"}}': f"{used}x60",
            f'kube_resourcequota{{namespace="{namespace}",type="hard"}}': "10x60",
            f'headroom_quota_entries{{namespace="{namespace}",state="migrating"}}': "1x40 stale",
            f'headroom_quota_oldest_entry_seconds{{namespace="{namespace}"}}': age,
        }
    full = {(alert, namespace) for namespace, (_, _, alert) in FULL.items()}
    migrating = full | {("HeadroomMigrating", namespace) for namespace in ("ns1", "ns2", "ns3")}
    fires = 'max by (alertname, namespace) (ALERTS{alertstate="firing"})'
    expected = [
        (fires, time, [f'{{alertname="{name}",namespace="{namespace}"}}' for name, namespace in sorted(firing)])
        for time, firing in (("30m", migrating), ("50m", full))
    ]
    run_test(tmp_path, rules, series, expected)
    stuck = {("KubeQuotaExceeded", "ns3"), ("KubeQuotaFullyUsed", "stuck")}
    assert {alert for alert in heard(migrating) if alert[0] in MIXIN} == stuck
    assert heard(full) == full
