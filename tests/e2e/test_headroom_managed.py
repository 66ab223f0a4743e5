"""Quotas without Rancher, and several in one namespace."""

from __future__ import annotations

import json

import pytest

from lab.namespace import Namespace, by_value
from tests.e2e.conftest import ONE_LOOP
from tests.e2e.headroom.amounts import ONE, TWO, plus, watched
from tests.e2e.headroom.environment import Environment

pytestmark = [pytest.mark.cluster, ONE_LOOP, pytest.mark.usefixtures("cleared")]

REQUESTS = {"requests.cpu": "130m", "requests.memory": "3340109497", "pods": "1"}
"""What quota counts of the seed's VM."""
MANAGED = {"headroom.harvesterhci.io/managed": "true"}
BASE = "headroom.harvesterhci.io/base"


async def base_of(namespace: Namespace, name: str) -> object:
    return by_value(json.loads((await namespace.annotations(name)).get(BASE, "{}")))


class TestManaged:
    async def test_a_quota_without_rancher_is_managed_by_its_label_and_is_refused_without(
        self, on: Environment
    ) -> None:
        on.run()
        namespace = await on.running("vm1")
        await namespace.make_quota("team", ONE)
        migration = await namespace.migrate(linger=0.5)
        await namespace.stays_refused(migration)
        assert await namespace.annotations("team") == {}
        async with watched(namespace) as (versions,):
            await namespace.patch_quota({"metadata": {"labels": MANAGED}}, "team")
            await namespace.succeed(migration)
            await namespace.settle(ONE, "team")
            assert await versions.hards("team") == [by_value(ONE), by_value(TWO), by_value(ONE)]
        assert await base_of(namespace, "team") == by_value(ONE)

    async def test_every_quota_of_a_namespace_is_managed(self, on: Environment) -> None:
        """Rancher's default and two beside it, each with limits of its own."""
        on.run()
        namespace = await on.running("vm1", limits=ONE)
        bases = {"": ONE, "requests": REQUESTS, "memory": {"limits.memory": "5Gi"}}
        for name in ("requests", "memory"):
            await namespace.make_quota(name, bases[name], labels=MANAGED)
        one = by_value(ONE | REQUESTS)
        async with watched(namespace) as (versions,):
            await namespace.succeed(await namespace.migrate(linger=0.5))
            for name, base in bases.items():
                await namespace.settle(base, name)
                found = by_value(base)
                assert await versions.hards(name) == [found, plus(found, one), found], name
