"""The cluster for one module: which controller runs, with which flags, and what KubeVirt is told."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from kubeloop.api.registry import NAMESPACES
from kubeloop.client.errors import AlreadyExists
from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.cluster import Cluster
from lab.namespace import Namespace
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS
from tests.e2e.admin import Admin, admin_of
from tests.e2e.headroom.amounts import Amounts
from tests.e2e.headroom.shapes import Shape, start
from tests.program import Program

METER = "meter"
RATIO = "additional-guest-memory-overhead-ratio"
PARALLEL = {"migrations": {"parallelMigrationsPerCluster": 100, "parallelOutboundMigrationsPerNode": 100}}
"""Many namespaces at once: none shall wait for another's migration."""
_CR = {"name": "kubevirt", "namespace": "kubevirt"}
"""In the namespace of the account that the stand-in acts as, and that deploy/policy.yaml names."""


class Environment:
    """The controller, one at a time, over all its namespaces."""

    def __init__(self, cluster: Cluster, admin: Admin, start: Callable[..., Program]) -> None:
        self.cluster = cluster
        self.admin = admin
        self._start = start
        self._flags: tuple[str, ...] = ()
        self._program: Program | None = None

    async def running(self, *vms: str, shape: Shape | None = None, **options: Any) -> Namespace:
        """A new namespace, as Admin.namespace makes it, whose VMs run."""
        namespace = await self.admin.namespace(**options)
        await start(namespace, *vms, shape=shape)
        return namespace

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

    async def ratio(self, value: str) -> None:
        """Harvester's setting for the memory overhead; the next migration uses it."""
        settings = self.admin.client.resource(SETTINGS)
        with contextlib.suppress(AlreadyExists):
            await settings.create({"metadata": {"name": RATIO}, "value": value, "default": "1.5"})
        await settings.merge_patch({"value": value}, name=RATIO)

    async def configure(self, **configuration: Any) -> None:
        """The KubeVirt CR's configuration, beside PARALLEL; None takes a field away."""
        patch = {"spec": {"configuration": configuration}}
        await self.admin.client.resource(KUBEVIRTS).merge_patch(patch, **_CR)

    async def strategy(self, *methods: str) -> None:
        """Sets how KubeVirt brings VMs into launchers of a new release."""
        patch = {"spec": {"workloadUpdateStrategy": {"workloadUpdateMethods": list(methods)}}}
        await self.admin.client.resource(KUBEVIRTS).merge_patch(patch, **_CR)

    @contextlib.asynccontextmanager
    async def release(self, profile: str, version: str, *flags: str) -> AsyncIterator[None]:
        """Another release of KubeVirt's controllers, which the CR says too; `flags` are the stand-in's."""
        directory = self.cluster.directory
        argv = processes.find(directory, "kubevirt").argv
        processes.find(directory, "kubevirt").restart([*argv, "--overhead-profile", profile, *flags])
        await self._observed_version(version)
        try:
            yield
        finally:
            processes.find(directory, "kubevirt").restart(argv)
            await self._observed_version("v1.8.0")

    async def _observed_version(self, version: str) -> None:
        status = {"status": {"phase": "Deployed", "observedKubeVirtVersion": version}}
        await self.admin.client.resource(KUBEVIRTS).merge_patch(status, **_CR, subresource="status")


@contextlib.asynccontextmanager
async def environment(cluster: Cluster, start: Callable[..., Program]) -> AsyncIterator[Environment]:
    """An environment whose KubeVirt lets every migration go at once. It leaves nothing behind."""
    async with admin_of(cluster) as admin:
        env = Environment(cluster, admin, start)
        kubevirts = admin.client.resource(KUBEVIRTS)
        with contextlib.suppress(AlreadyExists):
            await admin.client.resource(NAMESPACES).create({"metadata": {"name": _CR["namespace"]}})
        body = {"metadata": {"name": _CR["name"]}, "spec": {"configuration": PARALLEL}}
        await kubevirts.create(body, namespace=_CR["namespace"])
        namespace = Namespace(admin.client, _CR["namespace"])
        try:
            await namespace.until_is(KUBEVIRTS, _CR["name"], lambda kubevirt: kubevirt.status.phase, "Deployed")
            await env.ratio("1.5")
            yield env
            await admin.clear()
            env.stop()
        finally:
            await admin.client.resource(SETTINGS).delete(name=RATIO)
            await kubevirts.delete(name=_CR["name"], namespace=_CR["namespace"])


async def meter(namespace: Namespace, *names: str) -> None:
    """A quota that measures and never refuses; headroom has nothing to do with it."""
    await namespace.make_quota(METER, dict.fromkeys(("pods", *names), "1P"))


async def grant_what_is_used(namespace: Namespace, *names: str) -> Amounts:
    """Rancher grants not a byte more than what the meter shows; it has written that when this returns."""
    used = await namespace.used(METER)
    granted = {name: used[name] for name in names}
    await namespace.grant(granted)
    await namespace.until_hard(granted)  # an older grant of the same names counts already
    return granted
