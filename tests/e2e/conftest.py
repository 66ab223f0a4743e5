"""Fixtures that the end-to-end tests of a run share on its cluster.

Tests that play KubeVirt and Rancher themselves ask for `alone`: the stand-ins stand still for that module.
"""

import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.cluster import Cluster
from lab.cluster import RancherAgent
from lab.rancher import releases
from tests.e2e.accounts import BY_HAND, apply, documents, kubeconfig_of
from tests.e2e.admin import Admin, admin_of
from tests.e2e.api import Api
from tests.e2e.headroom.environment import Environment, environment
from tests.e2e.tenant import Tenant
from tests.program import Program, headroom

ONE_LOOP = pytest.mark.asyncio(loop_scope="module")
"""Of the tests that share `on`."""
STAND_INS = ("kubevirt", "rancher")
StartController = Callable[..., Program]
MakeTenant = Callable[..., Awaitable[Tenant]]


@pytest.fixture(scope="module")
def alone(cluster: Cluster) -> Iterator[None]:
    """Without stand-ins, for a module. Its tenants are gone (or going) when they come back."""
    for name in STAND_INS:
        processes.find(cluster.directory, name).signal(signal.SIGKILL)
    yield
    for name in STAND_INS:
        cluster.restart(name)


RANCHERS = (releases.DEFAULT, releases.NEWEST)
"""The releases that tests with Rancher run beside: with and without its lock of quotas."""


@pytest.fixture(scope="module", params=RANCHERS)
def rancher(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[RancherAgent]:
    """Rancher's agent, of each release in turn."""
    agent = RancherAgent(cluster.directory)
    release = agent.release
    if release != request.param:
        agent.install(request.param)
    yield agent
    if release != request.param:
        agent.install(release)


@contextlib.contextmanager
def frozen(cluster: Cluster, name: str) -> Iterator[None]:
    """Stops one of the cluster's processes; what it has in its hands stays there."""
    process = processes.find(cluster.directory, name)
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


@pytest.fixture(scope="session")
def kubeconfig(cluster: Cluster) -> Path:
    return cluster.kubeconfig


@pytest.fixture(scope="session")
def api(kubeconfig: Path) -> Api:
    return Api(kubeconfig)


@pytest.fixture(scope="module")
def own_kubeconfig(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """headroom's own account, with the rights of deploy/rbac.yaml and no others."""
    apply(api, documents(*BY_HAND))
    return kubeconfig_of(api, "headroom", tmp_path_factory.mktemp("own"))


@pytest.fixture
async def tenant(cluster: Cluster) -> AsyncIterator[MakeTenant]:
    """Makes namespaces that go with the test."""
    async with admin_of(cluster) as admin:
        yield partial(Tenant.made, admin)


class Controllers:
    """Starts `headroom controller` against the cluster, and ends by pid whatever still runs at the end."""

    def __init__(self, kubeconfig: Path, logs: Path) -> None:
        self._kubeconfig = kubeconfig
        self._logs = logs
        self._started: list[Program] = []

    def __call__(self, mode: str = "takeover", *arguments: str, ready: bool = True) -> Program:
        """`mode` with Harvester's estimate (the seeds' numbers) unless `arguments` say otherwise."""
        log = self._logs / f"controller-{len(self._started)}.log"
        words = ["controller", "--kubeconfig", str(self._kubeconfig), "--mode", mode, *arguments]
        if "--estimate" not in arguments:
            words += ["--estimate", "harvester"]
        program = Program(log, *words)
        self._started.append(program)
        return program.start(ready=ready)

    def end(self) -> None:
        for program in self._started:
            program.kill()
        for program in self._started:
            print(f"{program.log}:\n{program.text()[-4000:]}")  # pytest shows it where the test has failed
            assert "the API server warns: unknown field" not in program.text()


@pytest.fixture
def controller(own_kubeconfig: Path, tmp_path: Path) -> Iterator[StartController]:
    """Starts controllers for one test, under headroom's own account."""
    controllers = Controllers(own_kubeconfig, tmp_path)
    yield controllers
    controllers.end()


@pytest.fixture(scope="module")
def shared_controller(own_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartController]:
    """Starts controllers for a whole module, under headroom's own account."""
    controllers = Controllers(own_kubeconfig, tmp_path_factory.mktemp("controllers"))
    yield controllers
    controllers.end()


@pytest.fixture(scope="module")
def running(cluster: Cluster, own_kubeconfig: Path) -> Iterator[Program]:
    """Controllers and webhooks in one process for a whole module, under headroom's own account."""
    with headroom(cluster, "controller", "--webhook", "--kubeconfig", str(own_kubeconfig)) as process:
        yield process


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    """Removes what a test made when the test ends."""
    async with admin_of(cluster) as administrator:
        yield administrator


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on(cluster: Cluster, shared_controller: StartController) -> AsyncIterator[Environment]:
    """Serves the tests whose VMs the stand-ins run."""
    async with environment(cluster, shared_controller) as shared:
        yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def cleared(on: Environment) -> AsyncIterator[None]:
    """The namespaces of a test go with it."""
    yield
    await on.admin.clear()
