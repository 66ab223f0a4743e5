"""Prometheus counters, read from a program's /metrics, and what was added to them meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

Counts = dict[str, float]


def samples(text: str, metric: str) -> Iterator[tuple[Mapping[str, str], float]]:
    """Labels and value of each sample of a metric. An API server exports megabytes: the rest is not parsed."""
    lines = "\n".join(line for line in text.splitlines() if line.startswith(metric))
    for family in text_string_to_metric_families(f"{lines}\n"):
        yield from ((each.labels, each.value) for each in family.samples if each.name == metric)


def counts(text: str, metric: str, name: Callable[[Mapping[str, str]], str]) -> Counts:
    """The samples of a metric, added up by what `name` makes of their labels; "" leaves one out."""
    found: Counts = {}
    for labels, value in samples(text, metric):
        if key := name(labels):
            found[key] = found.get(key, 0.0) + value
    return found


def added(before: Counts, after: Counts) -> Counts:
    """What grew, the most first."""
    grown = {key: value - before.get(key, 0.0) for key, value in after.items()}
    return dict(sorted(((k, v) for k, v in grown.items() if v > 0), key=lambda pair: -pair[1]))


def requests_of_client(text: str) -> Counts:
    """The requests that headroom sent, by HTTP method."""
    return counts(text, "rest_client_requests_total", lambda labels: labels.get("method", ""))


def requests_of_server(text: str) -> Counts:
    """The requests that an API server answered, as `VERB resource`; watches and its own clients' included."""

    def name(labels: Mapping[str, str]) -> str:
        resource, sub = labels.get("resource", ""), labels.get("subresource", "")
        return f"{labels.get('verb', '')} {resource}{f'/{sub}' if sub else ''}" if resource else ""

    return counts(text, "apiserver_request_total", name)


def process_cpu(text: str) -> float:
    """Seconds."""
    return counts(text, "process_cpu_seconds_total", lambda labels: "all").get("all", 0.0)


def process_memory(text: str) -> int:
    """Bytes that are resident now."""
    return int(counts(text, "process_resident_memory_bytes", lambda labels: "all").get("all", 0.0))
