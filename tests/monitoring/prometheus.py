"""A real Prometheus on loopback that scrapes given ports every second, with the product's alerts at another pace."""

import json
import math
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kubeloop.testing.cluster.binaries import ensure_prometheus
from kubeloop.testing.cluster.paths import free_ports
from kubeloop.testing.polling import eventually
from tests.monitoring.queries import ALERTS

QUICK = {"> 300": "> 8", "> 86400": "> 8", "[5m]": "[10s]", "_seconds + 60": "_seconds + 1"}
"""Minutes and days of the expressions, in seconds of a test; `for` is two seconds."""
VARIABLES = {"$job": "headroom-metrics", "$__rate_interval": "10s"}


class Prometheus:
    """`start`, ask, `stop`."""

    def __init__(self, folder: Path, targets: Mapping[str, int]) -> None:
        """`targets`: names of pods to the ports of their /metrics."""
        (self._port,) = free_ports(1)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.began = 0.0
        """When the first scrapes were through: before that, no process leads."""
        (folder / "alerts.yaml").write_text(_quick(ALERTS.read_text("utf-8")), "utf-8")
        scrape = {
            "job_name": "headroom-metrics",
            "honor_labels": True,
            "static_configs": [
                {"targets": [f"127.0.0.1:{port}"], "labels": {"pod": pod}} for pod, port in targets.items()
            ],
        }
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [scrape],
        }
        (folder / "prometheus.yaml").write_text(json.dumps(configuration), "utf-8")

    def start(self) -> "Prometheus":
        command = [
            str(ensure_prometheus()["prometheus"]),
            f"--config.file={self._folder}/prometheus.yaml",
            f"--storage.tsdb.path={self._folder}/data",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        eventually(self._is_ready, 30, lambda: (self._folder / "prometheus.log").read_text()[-2000:])
        eventually(lambda: self._ask("query", query="leader_election_master_status == 1"), 30)
        eventually(lambda: not self.firing(), 30)
        self.began = time.time()
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        return {series["metric"]["alertname"] for series in self._ask("query", query='ALERTS{alertstate="firing"}')}

    def fired(self) -> set[str]:
        """Returns those that have fired since the start."""
        return {series["metric"]["alertname"] for series in self._range('ALERTS{alertstate="firing"}')}

    def has_data(self, query: str) -> bool:
        """Reports whether a query of the dashboard has had a value since the start."""
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        values = [float(value) for series in self._range(query) for _, value in series["values"]]
        return any(not math.isnan(value) for value in values)

    def _range(self, query: str) -> list[dict[str, Any]]:
        return self._ask("query_range", query=query, start=str(self.began), end=str(time.time()), step="1")

    def _ask(self, path: str, **parameters: str) -> list[dict[str, Any]]:
        address = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _quick(text: str) -> str:
    for slow, quick in QUICK.items():
        assert slow in text, slow
        text = text.replace(slow, quick)
    return re.sub(r"^( +for:) .*$", r"\1 2s", text, flags=re.MULTILINE)


def severities() -> dict[str, str]:
    """Alert to severity."""
    (group,) = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return {rule["alert"]: rule["labels"]["severity"] for rule in group["rules"]}
