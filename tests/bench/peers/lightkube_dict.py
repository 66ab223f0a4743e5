"""lightkube has no cache: a list and a watch into a dict, as its users write it."""

import asyncio

from lightkube import AsyncClient, KubeConfig
from lightkube.generic_resource import create_namespaced_resource
from protocol import Measured, arguments

VMI = create_namespaced_resource("kubevirt.io", "v1", "VirtualMachineInstance", "virtualmachineinstances")


async def main() -> None:
    kubeconfig, _, watches = arguments()
    client = AsyncClient(KubeConfig.from_file(kubeconfig))
    measured = Measured()
    caches: list[dict[tuple[str, str], object]] = [{} for _ in range(watches)]
    versions = await asyncio.gather(*(fill(client, cache) for cache in caches))
    measured.synced(lambda: len(caches[0]))
    await asyncio.gather(
        *(follow(client, cache, version, measured) for cache, version in zip(caches, versions, strict=True))
    )


async def fill(client: AsyncClient, cache: dict[tuple[str, str], object]) -> str:
    listed = client.list(VMI, namespace="*")
    async for vmi in listed:
        cache[vmi.metadata.namespace, vmi.metadata.name] = vmi
    return listed.resourceVersion


async def follow(client: AsyncClient, cache: dict[tuple[str, str], object], version: str, measured: Measured) -> None:
    async for kind, vmi in client.watch(VMI, namespace="*", resource_version=version):
        cache[vmi.metadata.namespace, vmi.metadata.name] = vmi
        if kind == "DELETED":
            del cache[vmi.metadata.namespace, vmi.metadata.name]
        if kind == "MODIFIED":
            measured.events += 1


asyncio.run(main())
