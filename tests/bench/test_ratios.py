"""Costs of the framework's inner loops, as multiples of plain Python on the same machine at the same moment.

A ratio that got 1.5 times worse than RECORDED fails. Ours and the plain loop alternate, and the least CPU time of each
counts: what else runs on the machine slows both or neither. `python -m tests.bench.test_ratios` prints them.
"""

import asyncio
import gc
import json
import time
from collections import deque
from collections.abc import Callable, Mapping

from kubeloop.api.core import Pod
from kubeloop.cache.store import Indexer
from kubeloop.client.decode import decoder_for
from kubeloop.workqueue.rate_limiting_queue import DelayingQueue
from pkg.api.kubevirt import VirtualMachineInstance
from tests.bench.objects import pod, vmi

RECORDED = {
    "a list of VMIs ÷ json.loads": 0.40,
    "a list of pods ÷ json.loads": 0.28,
    "a watch event of a VMI ÷ json.loads": 0.29,
    "a work queue's cycle ÷ a deque and a set": 10.80,
    "an informer's store ÷ a dict": 8.00,
}
"""Measured on 2026-11-22 (Python 3.11, two cores)."""
WORSE = 1.5
ROUNDS = 100
SECONDS = 30.0
Loops = tuple[Callable[[], object], Callable[[], object]]


def _listed(kind: type[VirtualMachineInstance] | type[Pod]) -> Loops:
    make = vmi if kind is VirtualMachineInstance else pod
    items = [make("default", f"bench-{number}") for number in range(50)]
    body = json.dumps({"kind": f"{kind.__name__}List", "metadata": {}, "items": items}).encode()
    decoder = decoder_for(kind)
    return lambda: decoder.list_page(body), lambda: json.loads(body)


def _watched() -> Loops:
    event = {"type": "MODIFIED", "object": vmi("default", "bench", 4000)}
    line = json.dumps(event, separators=(",", ":")).encode()
    decoder = decoder_for(VirtualMachineInstance)
    return lambda: [decoder.watch_event(line) for _ in range(50)], lambda: [json.loads(line) for _ in range(50)]


def _queued() -> Loops:
    names = [f"namespace-{number % 20}/name-{number}" for number in range(1000)]

    async def framework() -> None:
        queue: DelayingQueue[str] = DelayingQueue()
        for name in names:
            queue.add(name)
        for _ in names:
            queue.done(await queue.get())

    def plain() -> None:
        line: deque[str] = deque()
        keys: set[str] = set()
        for name in names:
            if name not in keys:
                keys.add(name)
                line.append(name)
        while line:
            keys.discard(line.popleft())

    loop = asyncio.new_event_loop()
    return lambda: loop.run_until_complete(framework()), plain


def _stored() -> Loops:
    body = json.dumps({"items": [vmi("default", f"bench-{n}") for n in range(500)]}).encode()
    objects = decoder_for(VirtualMachineInstance).list_page(body).items

    def framework() -> None:
        indexer: Indexer[VirtualMachineInstance] = Indexer()
        for obj in objects:
            indexer.add(obj)

    return framework, lambda: {f"{obj.metadata.namespace}/{obj.metadata.name}": obj for obj in objects}


LOOPS: dict[str, Callable[[], Loops]] = {
    "a list of VMIs ÷ json.loads": lambda: _listed(VirtualMachineInstance),
    "a list of pods ÷ json.loads": lambda: _listed(Pod),
    "a watch event of a VMI ÷ json.loads": _watched,
    "a work queue's cycle ÷ a deque and a set": _queued,
    "an informer's store ÷ a dict": _stored,
}


def ratios(enough: Callable[[Mapping[str, float]], bool]) -> dict[str, float]:
    """The least CPU time of each first loop, over that of the second: many short runs in turn, some of them
    undisturbed. Beside load none may be for a while: they go on until that is `enough`, or SECONDS have passed."""
    loops = {name: make() for name, make in LOOPS.items()}
    least = {name: [float("inf"), float("inf")] for name in LOOPS}
    multiples: dict[str, float] = {}
    until = time.monotonic() + SECONDS
    gc.collect()
    gc.disable()
    try:
        while not multiples or (time.monotonic() < until and not enough(multiples)):
            for name, pair in loops.items():
                for _ in range(ROUNDS):
                    least[name] = list(map(min, least[name], map(_cpu_seconds, pair)))
            multiples = {name: framework / plain for name, (framework, plain) in least.items()}
    finally:
        gc.enable()
    return multiples


def _cpu_seconds(loop: Callable[[], object]) -> float:
    began = time.process_time()
    loop()
    return time.process_time() - began


def _worse(multiples: Mapping[str, float]) -> dict[str, float]:
    return {name: ratio for name, ratio in multiples.items() if ratio > WORSE * RECORDED[name]}


def test_no_ratio_got_half_as_bad_again() -> None:
    assert _worse(ratios(lambda multiples: not _worse(multiples))) == {}


if __name__ == "__main__":
    for title, measured in ratios(lambda _: True).items():
        print(f'    "{title}": {measured:.2f},')
