"""The cluster for one module: which controller runs, with which flags, and what KubeVirt is told."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually
from tests.e2e.api import KUBEVIRT, Api
from tests.e2e.headroom.namespace import PATIENCE, QuotaNamespace
from tests.program import Program

T = TypeVar("T")
R = TypeVar("R")

SETTINGS = "/apis/harvesterhci.io/v1beta1/settings"
RATIO = "additional-guest-memory-overhead-ratio"
KUBEVIRTS = f"{KUBEVIRT}/namespaces/default/kubevirts"
PARALLEL = {"migrations": {"parallelMigrationsPerCluster": 100, "parallelOutboundMigrationsPerNode": 100}}
"""Many namespaces at once: none shall wait for another's migration."""


class Environment:
    """One controller at a time, over all its namespaces."""

    def __init__(self, cluster: Cluster, api: Api, start: Callable[..., Program]) -> None:
        self.cluster = cluster
        self.api = api
        self._start = start
        self._flags: tuple[str, ...] = ()
        self._program: Program | None = None
        self._namespaces: list[QuotaNamespace] = []

    def namespace(self, **given: Any) -> QuotaNamespace:
        """A namespace that goes with `clear`."""
        self._namespaces.append(QuotaNamespace(self.api, **given))
        return self._namespaces[-1]

    def namespaces(self, count: int, **given: Any) -> list[QuotaNamespace]:
        return self.together(lambda _: self.namespace(**given), range(count))

    def clear(self) -> None:
        self.together(QuotaNamespace.leave, self._namespaces)
        self._namespaces.clear()

    def together(self, act: Callable[[T], R], over: Iterable[T]) -> list[R]:
        """`act` on each at the same time; the first failure, when all have ended."""
        things = list(over)
        with ThreadPoolExecutor(max(1, len(things))) as pool:
            return [future.result() for future in [pool.submit(act, thing) for thing in things]]

    # headroom.

    def run(self, *flags: str) -> Program:
        """The controller with these flags (in takeover mode), and no other."""
        if self._program is None or self._flags != flags or self._program.process.poll() is not None:
            self.stop()
            estimate = () if "--estimate" in flags else ("--estimate", "exact")
            self._program = self._start("takeover", *estimate, *flags)
            self._flags = flags
        return self._program

    def stop(self) -> None:
        """No controller at all."""
        if self._program is not None:
            assert self._program.stop() == 0
            assert "Traceback" not in self._program.text()
            self._program = None

    def kill(self) -> None:
        """A crash."""
        if self._program is not None:
            self._program.kill()
            self._program = None

    # KubeVirt and Harvester.

    def ratio(self, value: str) -> None:
        """Harvester's setting for the memory overhead; the next migration uses it."""
        body = {"apiVersion": "harvesterhci.io/v1beta1", "kind": "Setting", "metadata": {"name": RATIO}}
        if self.api.find(f"{SETTINGS}/{RATIO}") is None:
            self.api.create(SETTINGS, {**body, "value": value, "default": "1.5"})
        self.api.patch(f"{SETTINGS}/{RATIO}", {"value": value})

    def configure(self, **configuration: Any) -> None:
        """The KubeVirt CR's configuration, beside PARALLEL; None takes a field away."""
        self.api.patch(f"{KUBEVIRTS}/kubevirt", {"spec": {"configuration": configuration}})

    def observed_version(self, version: str) -> None:
        """The KubeVirt CR says which release is installed."""
        status = {"phase": "Deployed", "observedKubeVirtVersion": version}
        self.api.patch(f"{KUBEVIRTS}/kubevirt/status", {"status": status})

    @contextlib.contextmanager
    def release(self, profile: str, version: str) -> Iterator[None]:
        """Another release of KubeVirt's controllers, which the CR says too."""
        spec = json.loads((self.cluster.directory / "processes" / "kubevirt.json").read_text())
        self._respawn([*spec["argv"], "--overhead-profile", profile], spec["env"])
        self.observed_version(version)
        try:
            yield
        finally:
            self._respawn(spec["argv"], spec["env"])
            self.observed_version("v1.8.0")

    def _respawn(self, argv: list[str], env: dict[str, str]) -> None:
        processes.stop(self.cluster.directory, ["kubevirt"], grace=3.0)
        processes.spawn("kubevirt", argv, self.cluster.directory, env)


@contextlib.contextmanager
def environment(cluster: Cluster, api: Api, start: Callable[..., Program]) -> Iterator[Environment]:
    """An environment whose KubeVirt lets every migration go at once. It leaves nothing behind."""
    made = Environment(cluster, api, start)
    api.create(
        KUBEVIRTS,
        {
            "apiVersion": "kubevirt.io/v1",
            "kind": "KubeVirt",
            "metadata": {"name": "kubevirt"},
            "spec": {"configuration": PARALLEL},
        },
    )
    try:
        eventually(
            lambda: api.get(f"{KUBEVIRTS}/kubevirt").get("status", {}).get("phase") == "Deployed", PATIENCE
        )
        made.ratio("1.5")
        yield made
        made.clear()
        made.stop()
    finally:
        api.delete(f"{SETTINGS}/{RATIO}")
        api.delete(f"{KUBEVIRTS}/kubevirt")
