"""The setting that all of the product's controllers share: how soon a key that fails is tried again."""

import asyncio
from itertools import pairwise

import pytest

from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.client.errors import BadRequest
from kubeloop.workqueue.queue import loop_time
from pkg.config.management import Management
from tests.kinds import Server

LONGEST = 30.0
"""Seconds that a migration may wait after a webhook that refused its quota is gone."""


@pytest.mark.virtual_time
@pytest.mark.parametrize(("keys", "seconds"), [(1, 3600), (1000, 600)])
async def test_a_refused_key_is_tried_at_least_every_thirty_seconds(keys: int, seconds: int) -> None:
    server = Server()
    management = Management(server.client())
    quotas = server.kind(RESOURCE_QUOTAS)
    server.kind(NAMESPACES)
    for number in range(keys):
        quotas.put(f"q{number}", "ns")
    tries: dict[str, list[float]] = {}

    async def refused(key: str, _: object) -> None:
        tries.setdefault(key, []).append(loop_time())
        raise BadRequest('admission webhook "q.example.org" denied the request: not by you')

    management.resource_quotas.on_change("refused", refused)
    await management.start()
    await asyncio.sleep(seconds)
    await management.stop()
    assert len(tries) == keys
    pauses = [later - earlier for times in tries.values() for earlier, later in pairwise(times)]
    assert max(pauses) <= LONGEST
    assert all(len(times) < seconds / 20 + 50 for times in tries.values()), "and not much more often"
