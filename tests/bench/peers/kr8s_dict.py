"""kr8s has no cache: a list and a watch into a dict, as its users write it."""

import asyncio

import kr8s
from kr8s.asyncio.objects import APIObject, new_class
from protocol import Measured, arguments

VMI = new_class("VirtualMachineInstance", "kubevirt.io/v1", plural="virtualmachineinstances")


async def main() -> None:
    kubeconfig, _, watches = arguments()
    api = await kr8s.asyncio.api(kubeconfig=kubeconfig)
    measured = Measured()
    caches: list[dict[tuple[str, str], APIObject]] = [{} for _ in range(watches)]
    for cache in caches:
        async for vmi in api.async_get(VMI, namespace=kr8s.ALL):
            cache[vmi.namespace, vmi.name] = vmi
    measured.synced(lambda: len(caches[0]))
    await asyncio.gather(*(follow(api, cache, measured) for cache in caches))


async def follow(api: kr8s.asyncio.Api, cache: dict[tuple[str, str], APIObject], measured: Measured) -> None:
    # Its list does not say a resourceVersion: the watch begins with every object once more.
    async for kind, vmi in api.async_watch(VMI, namespace=kr8s.ALL):
        cache[vmi.namespace, vmi.name] = vmi
        if kind == "DELETED":
            del cache[vmi.namespace, vmi.name]
        if kind == "MODIFIED":
            measured.events += 1


asyncio.run(main())
