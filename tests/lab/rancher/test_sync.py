"""Rancher's controllers in process: what a namespace gets of what it requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import isawaitable
from typing import Any

import pytest

from kubeloop.api.registry import NAMESPACES
from kubeloop.testing.fake.server import FakeCluster
from lab.rancher.project import ANNOTATION_PROJECT, ANNOTATION_QUOTA_PROJECT, PROJECTS
from tests.decisions import sentences
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


Step = Callable[[RancherInProcess], Awaitable[None] | None]


def namespace(name: str = "ns1", **limit: str) -> Step:
    return lambda rancher: rancher.namespace(name, **limit)


def request(**limit: str) -> Step:
    return lambda rancher: rancher.request(**limit)


def raised(**hard: str) -> Step:
    """Somebody else writes the quota."""
    return lambda rancher: rancher.set_hard(**hard)


def project_of(limit: dict[str, str] | None, default: dict[str, str] | None) -> Step:
    return lambda rancher: rancher.project(limit, default)


def restart(rancher: RancherInProcess) -> None:
    rancher.agent.restart()


def hard(cpu: str, memory: str = "1Gi") -> dict[str, str]:
    return {"limits.cpu": cpu, "limits.memory": memory}


THREE = {"limitsCpu": "3", "limitsMemory": "1Gi"}
CASES: dict[str, tuple[list[Step], dict[str, Any]]] = {
    "the request and the default's rest": (
        [namespace(limitsCpu="3")],
        {"hard": hard("3"), "requested": THREE, "validated": "fits"},
    ),
    "a namespace that requests nothing gets the default": ([namespace()], {"hard": hard("1"), "requested": DEFAULT}),
    "a quota that does not fit is created with zeros": (
        [namespace(limitsCpu="5", limitsMemory="8Gi")],
        {
            "hard": hard("0", "8Gi"),
            "requested": {"limitsCpu": "5", "limitsMemory": "8Gi"},
            "validated": "Oversubscribed resource quota [limits.cpu=5]",
        },
    ),
    "an update that does not fit leaves the quota": (
        [namespace(limitsCpu="3"), request(limitsCpu="60")],
        {
            "hard": hard("3"),
            "requested": {**THREE, "limitsCpu": "60"},
            "validated": "Oversubscribed resource quota [limits.cpu=60]",
        },
    ),
    "what did not fit counts for others": (
        [namespace("greedy", limitsCpu="60"), namespace(limitsCpu="1")],
        {"hard": hard("0"), "validated": "Oversubscribed resource quota [limits.cpu=61]", "used_limit": {}},
    ),
    "a quota that equals the request is not validated": (
        [namespace(limitsCpu="3"), raised(limits_cpu="60"), request(limitsCpu="60", limitsMemory="1Gi")],
        {"hard": hard("60"), "validated": "fits"},
    ),
    "a restart writes the request over what was raised": (
        [namespace(limitsCpu="3"), raised(limits_cpu="5"), restart],
        {"hard": hard("3")},
    ),
    "limits of others are dropped with the spec": (
        [namespace(limitsCpu="3"), raised(pods="5"), restart],
        {"hard": hard("3")},
    ),
    "limits that cannot be read stop all of the project": (
        [namespace("broken", limitsCpu="lots"), namespace(limitsCpu="1")],
        {"hard": None},
    ),
    "an unknown project has the request deleted": (
        [namespace(limitsCpu="3"), lambda rancher: rancher.annotate("ns1", {ANNOTATION_PROJECT: "local:another"})],
        {"hard": None, "requested": None},
    ),
    "a project without a default has quotas deleted": (
        [namespace(limitsCpu="3"), project_of(LIMIT, None)],
        {"hard": None},
    ),
    "a project without its quota removes the requests": (
        [namespace(limitsCpu="3"), project_of(None, None)],
        {"hard": None, "requested": None},
    ),
    "a larger project grants what waits": (
        [namespace(limitsCpu="60"), project_of({**LIMIT, "limitsCpu": "60"}, DEFAULT)],
        {"hard": hard("60"), "validated": "fits"},
    ),
}
"""Steps, a second each, and what is then to be seen, by the methods of RancherInProcess."""


@sentences(CASES)
async def test_what_comes_of_a_namespace(project: RancherInProcess, case: tuple[list[Step], dict[str, Any]]) -> None:
    steps, expected = case
    for step in steps:
        if isawaitable(waiting := step(project)):
            await waiting
        await asyncio.sleep(1.0)
    assert {name: getattr(project, name)() for name in expected} == expected


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


async def test_any_change_of_the_namespace_reverts_a_raise(project: RancherInProcess) -> None:
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    await project.set_hard(limits_cpu="5")
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "5", "limits.memory": "1Gi"}
    await project.annotate("ns1", {"anything": "else"})
    await asyncio.sleep(1.0)
    assert project.hard() == {"limits.cpu": "3", "limits.memory": "1Gi"}


async def test_a_namespace_that_moves_is_counted_where_it_is(project: RancherInProcess) -> None:
    project.project(LIMIT, DEFAULT, "p-2")
    project.namespace(limitsCpu="3")
    await asyncio.sleep(1.0)
    assert (project.used_limit("p-1"), project.used_limit("p-2")) == ({"limitsCpu": "3", "limitsMemory": "1Gi"}, {})
    await project.annotate("ns1", {ANNOTATION_PROJECT: "local:p-2"})
    await asyncio.sleep(1.0)
    assert project.annotations()[ANNOTATION_QUOTA_PROJECT] == "local:p-2"
    assert (project.used_limit("p-1"), project.used_limit("p-2")) == ({}, {"limitsCpu": "3", "limitsMemory": "1Gi"})


async def test_without_any_project_with_limits_rancher_does_nothing(rancher: RancherInProcess) -> None:
    rancher.namespace(limitsCpu="3")
    rancher.project(None, None)
    await asyncio.sleep(1.0)
    assert rancher.hard() is None
    assert rancher.annotations().keys() == {ANNOTATION_PROJECT, "field.cattle.io/resourceQuota"}


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
