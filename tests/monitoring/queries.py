"""The queries of the alerts and of the dashboard."""

import json
from typing import Any

import yaml

from deploy.render import CHART, DEPLOY

ALERTS = CHART / "files" / "alerts.yaml"
DASHBOARD = DEPLOY / "monitoring" / "dashboard.json"
INHIBITION_RULE = DEPLOY / "monitoring" / "inhibition-rule.yaml"
"""The PrometheusRule whose alert holds back others."""
INHIBITION = DEPLOY / "monitoring" / "inhibition.yaml"
"""Alertmanager's configuration for that."""


def panels() -> dict[str, list[str]]:
    """Title of each panel with data to its queries."""
    board: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return {
        panel["title"]: [target["expr"] for target in panel["targets"]]
        for panel in board["panels"]
        if panel["type"] != "row"
    }


def queries() -> list[str]:
    alerts, inhibition = (yaml.safe_load(path.read_text("utf-8")) for path in (ALERTS, INHIBITION_RULE))
    groups = [*alerts["groups"], *inhibition["spec"]["groups"]]
    of_alerts = [rule["expr"] for group in groups for rule in group["rules"]]
    return [*of_alerts, *(query for of_panel in panels().values() for query in of_panel)]
