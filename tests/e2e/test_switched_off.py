"""A person switches headroom off while a VM migrates: always admitted, with a warning, and given back at once, as
`headroom release` gives back: Rancher's quotas to Harvester with their entries, others at their base."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from kubeloop.api.quantity import Quantity
from kubeloop.testing.polling import until
from pkg.util.constants import (
    ANNOTATION_MIGRATING_NAME_PREFIX,
    ANNOTATION_MIGRATING_UID_PREFIX,
    ANNOTATION_OWNER,
    ANNOTATION_SKIP_AUTO_SCALING,
    LABEL_MANAGED,
)
from tests.e2e.admin import HARD, Admin
from tests.e2e.api import CORE, MERGE_PATCH, Api

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("running")]

RAISED = Quantity.parse("5015m")
WHERE = [("quota", "labels"), ("namespace", "annotations")]


def warnings_of_patch(api: Api, path: str, patch: Mapping[str, Any]) -> list[str]:
    """Returns what the API server warns of when a person patches an object."""
    answer = api.as_user("alice", "e2e:everything").request("PATCH", path, patch, MERGE_PATCH)
    assert answer.status == 200, answer.data
    return answer.headers.getlist("Warning")


@pytest.mark.parametrize(("kind", "field"), WHERE, ids=[f"{field} of the {kind}" for kind, field in WHERE])
async def test_it_is_admitted_with_a_warning_and_given_back_at_once(
    admin: Admin, api: Api, kind: str, field: str
) -> None:
    namespace = await admin.namespace(HARD)
    migration = await namespace.migrating()
    quota = await namespace.quota()
    path = f"{CORE}/namespaces/{namespace}"
    path = f"{path}/resourcequotas/{quota.name}" if kind == "quota" else path
    assert (await namespace.hard())["limits.cpu"] == RAISED

    async def switch(value: str | None) -> list[str]:
        patch = {"metadata": {field: {LABEL_MANAGED: value}}}
        return await asyncio.to_thread(warnings_of_patch, api, path, patch)

    async def is_harvesters() -> bool:
        return not {ANNOTATION_OWNER, ANNOTATION_SKIP_AUTO_SCALING} & (await namespace.annotations()).keys()

    async def is_ours() -> bool:
        return ANNOTATION_OWNER in await namespace.annotations()

    (warning,) = await switch("false")
    assert "the migrations of vm1 lose the headroom that was added for them" in warning
    await until(is_harvesters, "the marks to go")
    (entry,) = await namespace.entries()
    assert entry.startswith(ANNOTATION_MIGRATING_UID_PREFIX)  # Harvester's controllers go on from it
    assert await namespace.phase(migration) == "Running"
    assert await switch(None) == []
    await until(is_ours, "the marks to come back")
    assert list(await namespace.entries()) == [f"{ANNOTATION_MIGRATING_NAME_PREFIX}vm1"]
    assert (await namespace.hard())["limits.cpu"] == RAISED
