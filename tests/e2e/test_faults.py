"""headroom behind a proxy that fails in every way: no quota changes wrongly, no kind stays deaf."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually
from tests.e2e.api import Api
from tests.e2e.conftest import StartController
from tests.e2e.fault_proxy import FAULTS, FaultProxy
from tests.e2e.headroom.amounts import Amounts, hards, minus, plus
from tests.e2e.headroom.environment import Environment, environment
from tests.e2e.headroom.namespace import LASTING, QuotaNamespace
from tests.e2e.headroom.shapes import LIMITS
from tests.program import Program

pytestmark = pytest.mark.cluster

LASTS = 0.8
"""Seconds of each fault before the migration ends, and after."""
PATIENCE = 60.0
"""More than a reflector's longest back-off: kinds that nothing happens to meet one fault after the other."""
DEEP = 1000


@pytest.fixture
def on(cluster: Cluster, api: Api, controller: StartController) -> Iterator[Environment]:
    with environment(cluster, api, controller) as made:
        yield made


@pytest.fixture
def proxy(api: Api, tmp_path: Path) -> Iterator[FaultProxy]:
    with FaultProxy(api, tmp_path) as made:
        yield made


@pytest.fixture
def headroom(proxy: FaultProxy, tmp_path: Path) -> Iterator[Program]:
    flags = ["--kubeconfig", str(proxy.kubeconfig), "--estimate", "exact"]
    program = Program(tmp_path / "controller.log", "controller", *flags).start()
    yield program
    program.kill()


def test_a_proxys_faults_change_no_quota_wrongly_and_leave_no_kind_deaf(
    on: Environment, proxy: FaultProxy, headroom: Program
) -> None:
    namespace = on.namespace()
    namespace.meter(*LIMITS)
    namespace.start("vm1", "vm2")
    base = namespace.grant_what_is_used(*LIMITS)
    with deep_vm(namespace), namespace.watch() as versions:
        namespace.succeed(namespace.migrate("vm1"))
        namespace.settle(base)
        room = minus(hards(versions)[1], base)
        watched = proxy.watched()
        for name in FAULTS:
            migrate_under(name, namespace, proxy, held=plus(base, room))
            namespace.settle(base)
        eventually(lambda: proxy.watched() >= watched, PATIENCE)
        most = plus(plus(base, room), room)
        assert [hard for hard in hards(versions) if not within(base, hard, most)] == []
    assert headroom.get("/readyz")[0] == 200
    assert f"VirtualMachine {namespace.name}/deep is nested deeper" in headroom.text()
    assert headroom.stop() == 0
    assert "Traceback" not in headroom.text()


def migrate_under(fault: str, namespace: QuotaNamespace, proxy: FaultProxy, held: Amounts) -> None:
    """One migration runs when the fault begins and ends meanwhile, another begins meanwhile."""
    first = namespace.migrate("vm1", phase_seconds=LASTING)
    eventually(lambda: namespace.phase_of(first) == "Running", PATIENCE)
    proxy.begin(FAULTS[fault])
    second = namespace.migrate("vm2")
    time.sleep(LASTS)
    assert within(held, namespace.hard()), f"{fault}: {namespace.hard()} is less than {held}"
    namespace.hurry(first)
    time.sleep(LASTS)
    proxy.end()
    namespace.succeed(first, second)


def within(least: Amounts, hard: Amounts, most: Amounts | None = None) -> bool:
    """Of each resource."""
    return all(amount <= hard[name] for name, amount in least.items()) and (
        most is None or all(hard[name] <= amount for name, amount in most.items())
    )


@contextlib.contextmanager
def deep_vm(namespace: QuotaNamespace) -> Iterator[None]:
    """A tenant's VM that is nested deeper than Python's parsers follow, so it is written and removed as bytes."""
    machines = f"{namespace.kubevirt}/virtualmachines"
    deep = b'{"a":' * DEEP + b"1" + b"}" * DEEP
    head = b'{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","metadata":{"name":"deep"},'
    body = head + b'"spec":{"runStrategy":"Halted","template":{"metadata":{"a":' + deep + b"}}}}"
    status, kept = send(namespace, "POST", machines, body)
    assert (status, kept.count(b'"a":')) == (201, DEEP + 1)
    try:
        yield
    finally:
        send(namespace, "DELETE", f"{machines}/deep")
        eventually(lambda: send(namespace, "GET", f"{machines}/deep")[0] == 404)


def send(namespace: QuotaNamespace, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = namespace.api.connection()
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
