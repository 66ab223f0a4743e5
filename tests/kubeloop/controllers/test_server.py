"""Health and metrics as a kubelet and Prometheus see them."""

import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest

from kubeloop.api.registry import CONFIG_MAPS, SECRETS
from kubeloop.controllers.errors import BindError
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.controllers.listener import parse_bind_address
from kubeloop.controllers.server import HealthServer, serve_health
from kubeloop.testing.cluster.paths import free_ports
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.workqueue.queue import Queue


@dataclass
class Checks:
    """Says what it was told."""

    problems: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)

    def healthy(self) -> list[str]:
        return self.problems

    def unready(self) -> list[str]:
        return self.waiting

    def notes(self) -> list[str]:
        return []


class FailingChecks(Checks):
    def healthy(self) -> list[str]:
        raise ValueError("odd")


@contextlib.asynccontextmanager
async def serving(
    checks: Checks | ControllerFactory, health: str, metrics: str | None = None
) -> AsyncIterator[HealthServer]:
    server = await serve_health(checks, health, metrics)
    try:
        yield server
    finally:
        await server.close()


async def get(address: tuple[str, int], path: str, **headers: str) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address[0]}:{address[1]}{path}", headers=headers) as answer,
    ):
        return answer.status, await answer.text(), answer.headers["Content-Type"]


ANSWERS: dict[str, tuple[str, list[str], list[str], int, str]] = {
    "healthy": ("/healthz", [], [], 200, "ok"),
    "healthy, though not synced": ("/healthz", [], ["pods"], 200, "ok"),
    "every problem has a line": ("/healthz", ["watch of pods", "worker 3"], [], 500, "watch of pods\nworker 3\n"),
    "ready": ("/readyz", [], [], 200, "ok"),
    "ready, though not healthy": ("/readyz", ["watch of pods"], [], 200, "ok"),
    "not ready: every kind has a line": (
        "/readyz",
        [],
        ["not synced: pods", "not synced: settings"],
        503,
        "not synced: pods\nnot synced: settings\n",
    ),
    "what is excluded is not looked at": (
        "/readyz?exclude=webhook+registration",
        [],
        ["not ready: webhook registration: not reached", "not synced: pods"],
        503,
        "not synced: pods\n",
    ),
    "ready but for what is excluded": (
        "/readyz?exclude=webhook+registration",
        [],
        ["not ready: webhook registration: not reached"],
        200,
        "ok",
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_answer(case: str) -> None:
    path, problems, waiting, status, text = ANSWERS[case]
    async with serving(Checks(problems, waiting), "127.0.0.1:0") as server:
        assert (await get(server.addresses[0], path))[:2] == (status, text)


async def test_a_check_that_fails_is_a_problem_without_a_traceback() -> None:
    async with serving(FailingChecks(), "127.0.0.1:0") as server:
        status, text, _ = await get(server.addresses[0], "/healthz")
    assert (status, text) == (500, "check failed: ValueError: odd\n")


async def test_metrics_are_beside_health_by_default_in_prometheus_text() -> None:
    queue: Queue[str] = Queue("served")
    queue.add("a")
    async with serving(Checks(), "127.0.0.1:0") as server:
        status, text, content_type = await get(server.addresses[0], "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain")
    assert 'workqueue_depth{name="served"} 1.0' in text
    assert 'workqueue_adds_total{name="served"} 1.0' in text


async def test_prometheus_gets_openmetrics_when_it_asks() -> None:
    async with serving(Checks(), "127.0.0.1:0") as server:
        _, text, content_type = await get(
            server.addresses[0], "/metrics", Accept="application/openmetrics-text;version=1.0.0"
        )
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


SERVED: dict[str, tuple[str, str | None, list[tuple[int, int]]]] = {
    # the addresses -> what each listener answers for /healthz and /metrics
    "everything off": ("0", None, []),
    "both off": ("0", "0", []),
    "health off": ("0", "127.0.0.1:0", [(404, 200)]),
    "metrics off": ("127.0.0.1:0", "0", [(200, 404)]),
    "metrics beside health": ("127.0.0.1:0", None, [(200, 200)]),
    "metrics have an address of their own": ("127.0.0.1:0", "localhost:0", [(200, 404), (404, 200)]),
    "the same address twice is one server": ("127.0.0.1:{0}", "127.0.0.1:{0}", [(200, 200)]),
}


@pytest.mark.parametrize("case", SERVED)
async def test_what_is_served_where(case: str) -> None:
    health, metrics, answers = SERVED[case]
    (port,) = free_ports(1)
    async with serving(Checks(), health.format(port), metrics and metrics.format(port)) as server:
        results = [
            ((await get(address, "/healthz"))[0], (await get(address, "/metrics"))[0]) for address in server.addresses
        ]
    assert results == answers


@pytest.mark.parametrize("metrics", [False, True])
async def test_an_address_in_use_is_one_line_and_leaves_nothing_open(metrics: bool) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        busy = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(BindError) as caught:
            await serve_health(Checks(), address if metrics else busy, busy if metrics else None)
        assert str(caught.value) == f"cannot listen on {busy}: Address already in use"
        with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
            pass


async def test_a_host_that_does_not_exist_is_one_clear_line() -> None:
    with pytest.raises(BindError, match=r"^cannot listen on no\.such\.host\.invalid:8081: (?!Unknown error)[^\n]+$"):
        await serve_health(Checks(), "no.such.host.invalid:8081")


ADDRESSES: dict[str, tuple[str, int] | None] = {
    "127.0.0.1:8081": ("127.0.0.1", 8081),
    ":8081": ("", 8081),
    "localhost:0": ("localhost", 0),
    "[::1]:8081": ("::1", 8081),
    "[::]:8081": ("::", 8081),
    "localhost:65535": ("localhost", 65535),
    "8081": None,
    "localhost": None,
    "localhost:": None,
    "localhost:http": None,
    "localhost:65536": None,
    "localhost:-1": None,
    "localhost:٣": None,
    "::1:8081": None,
    "[::1:8081": None,
    "": None,
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_bind_address(text: str) -> None:
    expected = ADDRESSES[text]
    if expected is None:
        with pytest.raises(BindError, match="is not an address to listen on"):
            parse_bind_address(text)
    else:
        assert parse_bind_address(text) == expected


async def test_without_a_host_every_interface_is_served() -> None:
    (port,) = free_ports(1)
    async with serving(Checks(), f":{port}"):
        assert (await get(("127.0.0.1", port), "/healthz"))[0] == 200


async def test_a_factory_has_what_is_asked() -> None:
    cluster = FakeCluster(CONFIG_MAPS)
    factory = ControllerFactory(cluster.client())
    factory.controller(CONFIG_MAPS).cache()
    factory.controller(SECRETS).cache()
    async with serving(factory, "127.0.0.1:0") as server:
        status, text, _ = await get(server.addresses[0], "/readyz")
        assert (status, text) == (503, "not synced: configmaps\nnot synced: secrets\n")
        await factory.start()
        assert await factory.wait_for_sync(10)
        status, text, _ = await get(server.addresses[0], "/readyz")
        assert (status, text) == (200, "ok\nnot installed: secrets")
        assert (await get(server.addresses[0], "/healthz"))[0] == 200
        await factory.stop()
