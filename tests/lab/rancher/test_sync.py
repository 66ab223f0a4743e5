"""Rancher's controllers in process: what a namespace gets of what it requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kubeloop.api.registry import NAMESPACES
from kubeloop.testing.fake.server import FakeCluster
from lab.rancher.project import ANNOTATION_QUOTA_PROJECT, PROJECTS
from tests.lab.rancher.in_process import RancherInProcess

pytestmark = pytest.mark.virtual_time

LIMIT = {"limitsCpu": "4", "limitsMemory": "10Gi"}
DEFAULT = {"limitsCpu": "1", "limitsMemory": "1Gi"}


@pytest.fixture
async def rancher() -> AsyncIterator[RancherInProcess]:
    async with RancherInProcess(FakeCluster()) as running:
        yield running


@pytest.fixture
async def project(rancher: RancherInProcess) -> RancherInProcess:
    rancher.project(LIMIT, DEFAULT)
    await asyncio.sleep(1.0)
    return rancher


async def test_a_namespace_gets_its_request_and_the_default_s_rest(project: RancherInProcess) -> None:
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "3", "limits.memory": "1Gi"}
    assert project.requested() == {"limitsCpu": "3", "limitsMemory": "1Gi"}
    assert project.validated() == "fits"


async def test_a_namespace_that_requests_nothing_gets_the_default(project: RancherInProcess) -> None:
    project.namespace()
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "1", "limits.memory": "1Gi"}
    assert project.requested() == DEFAULT


async def test_a_quota_that_does_not_fit_is_created_with_zeros(project: RancherInProcess) -> None:
    project.namespace(limitsCpu="5", limitsMemory="8Gi")
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "0", "limits.memory": "8Gi"}
    assert project.requested() == {"limitsCpu": "5", "limitsMemory": "8Gi"}
    assert project.validated() == "Oversubscribed resource quota [limits.cpu=5]"


async def test_an_update_that_does_not_fit_leaves_the_quota(project: RancherInProcess) -> None:
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    await project.request(limitsCpu="60")
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "3", "limits.memory": "1Gi"}
    assert project.requested() == {"limitsCpu": "60", "limitsMemory": "1Gi"}
    assert project.validated() == "Oversubscribed resource quota [limits.cpu=60]"


async def test_a_request_is_granted_once_another_namespace_makes_room(project: RancherInProcess) -> None:
    project.namespace("other", limitsCpu="2")
    project.namespace(limitsCpu="2")
    await asyncio.sleep(1.0)
    await project.request(limitsCpu="3")
    await asyncio.sleep(1.0)
    assert project.validated() == "Oversubscribed resource quota [limits.cpu=5]"
    await project.request("other", limitsCpu="1")
    await asyncio.sleep(1.0)
    # The other namespace's smaller request changes the project's used limit, and that is an event of the project.
    assert project.hard() == {"limits.cpu": "3", "limits.memory": "1Gi"}
    assert project.used_limit() == {"limitsCpu": "4", "limitsMemory": "2Gi"}


async def test_what_did_not_fit_counts_for_others_but_not_as_used(project: RancherInProcess) -> None:
    project.namespace("greedy", limitsCpu="60")
    project.namespace(limitsCpu="1")
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "0", "limits.memory": "1Gi"}
    assert project.validated() == "Oversubscribed resource quota [limits.cpu=61]"
    assert project.used_limit() == {}


async def test_a_quota_that_equals_the_request_is_not_validated(project: RancherInProcess) -> None:
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    await project.set_hard(limits_cpu="60")
    await project.request(limitsCpu="60", limitsMemory="1Gi")
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "60", "limits.memory": "1Gi"}
    assert project.validated() == "fits"


async def test_any_change_of_the_namespace_reverts_a_raise(project: RancherInProcess) -> None:
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    await project.set_hard(limits_cpu="5")
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "5", "limits.memory": "1Gi"}
    await project.annotate("ns1", {"anything": "else"})
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "3", "limits.memory": "1Gi"}


async def test_a_restart_writes_the_request_over_what_was_raised(project: RancherInProcess) -> None:
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    await project.set_hard(limits_cpu="5")
    project.agent.restart()
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "3", "limits.memory": "1Gi"}


async def test_limits_of_others_are_dropped_with_the_spec(project: RancherInProcess) -> None:
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    await project.set_hard(pods="5")
    project.agent.restart()
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "3", "limits.memory": "1Gi"}


async def test_limits_that_cannot_be_read_stop_all_of_the_project(project: RancherInProcess) -> None:
    project.namespace("broken", limitsCpu="lots")
    project.namespace(limitsCpu="1")
    await asyncio.sleep(1.0)
    assert project.hard() is None
    assert project.hard("broken") is None


async def test_an_unknown_project_has_the_request_deleted(project: RancherInProcess) -> None:
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    await project.annotate("ns1", {"field.cattle.io/projectId": "local:another"})
    await asyncio.sleep(1.0)
    assert project.hard() is None
    assert project.requested() is None


async def test_a_project_without_a_default_has_quotas_deleted(project: RancherInProcess) -> None:
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    project.project(LIMIT, None)
    await asyncio.sleep(1.0)
    assert project.hard() is None


async def test_a_project_without_its_quota_removes_the_requests(project: RancherInProcess) -> None:
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    project.project(None, None)
    await asyncio.sleep(1.0)
    assert project.requested() is None
    assert project.hard() is None


async def test_a_larger_project_grants_what_waits(project: RancherInProcess) -> None:
    project.namespace(limitsCpu="60")
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "0", "limits.memory": "1Gi"}
    project.project({**LIMIT, "limitsCpu": "60"}, DEFAULT)
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "60", "limits.memory": "1Gi"}
    assert project.validated() == "fits"


async def test_a_namespace_that_moves_is_counted_where_it_is(project: RancherInProcess) -> None:
    project.project(LIMIT, DEFAULT, "p-2")
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    assert (project.used_limit("p-1"), project.used_limit("p-2")) == ({"limitsCpu": "3", "limitsMemory": "1Gi"}, {})
    await project.annotate("ns1", {"field.cattle.io/projectId": "local:p-2"})
    await asyncio.sleep(1.0)
    assert project.annotations()[ANNOTATION_QUOTA_PROJECT] == "local:p-2"
    assert (project.used_limit("p-1"), project.used_limit("p-2")) == ({}, {"limitsCpu": "3", "limitsMemory": "1Gi"})


async def test_without_any_project_with_limits_rancher_does_nothing(rancher: RancherInProcess) -> None:
    rancher.namespace(limitsCpu="3")
    rancher.project(None, None)
    await asyncio.sleep(1.0)
    assert rancher.hard() is None
    assert rancher.annotations().keys() == {"field.cattle.io/projectId", "field.cattle.io/resourceQuota"}


async def test_without_a_project_a_request_is_not_validated(rancher: RancherInProcess) -> None:
    """The stand-in's own leniency."""
    rancher.namespace(project="", limitsCpu="300")
    await asyncio.sleep(1.0)
    assert rancher.hard() == {"limits.cpu": "300"}
    assert rancher.validated() is None


async def test_each_namespace_is_initialized_once_without_a_loop(project: RancherInProcess) -> None:
    project.namespace("plain", project="")
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    assert '"ResourceQuotaInit","Status":"True"' in project.annotations("plain")["cattle.io/status"]
    calls = (
        len(project.cluster.asked("patch", NAMESPACES.plural)),
        len(project.cluster.asked("patch", PROJECTS.plural)),
    )
    await asyncio.sleep(1.0)
    project.agent.restart()
    await asyncio.sleep(1.0)
    later = len(project.cluster.asked("patch", NAMESPACES.plural)), len(project.cluster.asked("patch", PROJECTS.plural))
    assert later == calls


async def test_older_releases_have_another_message_and_no_project_mark() -> None:
    async with RancherInProcess(FakeCluster(), "2.13") as rancher:
        rancher.project(LIMIT, DEFAULT)
        rancher.namespace(limitsCpu="5")
        rancher.namespace("other", limitsCpu="1")
        await asyncio.sleep(1.0)
        assert rancher.hard() == {"limits.cpu": "0", "limits.memory": "1Gi"}
        assert rancher.validated() == "Resource quota [limits.cpu=6] exceeds project limit"
        assert ANNOTATION_QUOTA_PROJECT not in rancher.annotations()
