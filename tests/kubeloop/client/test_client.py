"""Discovery: only a well-formed list of what is served, without the kind, says that it is gone; a client's identity and
work on many objects."""

from typing import Any, cast

import pytest

from kubeloop.api.registry import CONFIG_MAPS, PODS
from kubeloop.client.client import Client, for_each, own_user
from kubeloop.client.errors import ApiError, Conflict, NotFound, NotInstalled, Unreachable
from kubeloop.testing.fake import FakeCluster
from kubeloop.testing.scripted_server import (
    GET,
    Reply,
    ScriptedServer,
    body,
    cut,
    groups,
    raw,
    refuse,
    resources,
    status,
)
from pkg.api.kubevirt import VIRTUAL_MACHINES

VM_KIND = VIRTUAL_MACHINES.kind
VERSION = f"/apis/{VIRTUAL_MACHINES.api_version}"
PAGE = raw(b"<html>no such backend</html>", 404, {"Content-Type": "text/html"})

ANSWERS: dict[str, tuple[dict[str, Reply], bool | None]] = {
    "the list has it": ({VERSION: resources("kubevirt.io/v1", "kubevirts", "virtualmachines")}, True),
    "the list does not have it": ({VERSION: resources("kubevirt.io/v1", "kubevirts")}, False),
    "the list is empty": ({VERSION: resources("kubevirt.io/v1")}, False),
    "the version is gone, and the groups are without the group": (
        {VERSION: status(404, "NotFound"), "/apis": groups("apps/v1")},
        False,
    ),
    "the version is gone, and the group has others": (
        {VERSION: status(404, "NotFound"), "/apis": groups("kubevirt.io/v1alpha3")},
        False,
    ),
    "the version is gone, but the groups have it": (
        {VERSION: status(404, "NotFound"), "/apis": groups("kubevirt.io/v1")},
        True,
    ),
    "a proxy says 404 to everything": ({VERSION: PAGE, "/apis": PAGE}, None),
    "a proxy says 200 to everything": ({VERSION: raw(b"<html>")}, None),
    "an empty object": ({VERSION: body({})}, None),
    "a list of another version": ({VERSION: resources("apps/v1", "deployments")}, None),
    "another kind of list": ({VERSION: groups("apps/v1")}, None),
    "a Status with 200": ({VERSION: status(200, "NotFound")}, None),
    "entries without a name": (
        {VERSION: body({"kind": "APIResourceList", "groupVersion": "kubevirt.io/v1", "resources": [{}]})},
        None,
    ),
    "half a list": ({VERSION: cut(b'{"kind":"APIResourceList","groupVersion":"kubevirt.io/v1"', 4000)}, None),
    "half a list of groups": ({VERSION: PAGE, "/apis": cut(b'{"kind":"APIGroupList","groups":[', 4000)}, None),
    "groups of another shape": ({VERSION: PAGE, "/apis": body({"kind": "APIGroupList"})}, None),
    "it is not allowed": ({VERSION: status(403, "Forbidden")}, None),
    "it is unavailable, as an aggregated API may be": ({VERSION: status(503, "ServiceUnavailable")}, None),
    "there is no answer": ({VERSION: refuse()}, None),
}


@pytest.mark.parametrize(("replies", "served"), ANSWERS.values(), ids=ANSWERS)
async def test_only_a_well_formed_list_confirms_that_a_kind_is_gone(
    replies: dict[str, Reply], served: bool | None, server: ScriptedServer, client: Client
) -> None:
    for path, reply in replies.items():
        server.always(GET, path, reply)
    machines = client.resource(VIRTUAL_MACHINES)
    if served is None:
        with pytest.raises(ApiError):
            await machines.is_served()
    else:
        assert await machines.is_served() is served


async def test_a_kind_is_found_by_its_name_in_a_manifest() -> None:
    client = FakeCluster().client()
    resources = [
        (await client.resource_by_kind(*kind)).resource for kind in (("v1", "Node"), ("kubevirt.io/v1", VM_KIND))
    ]
    assert [(kind.path("ns"), kind.status_subresource) for kind in resources] == [
        ("/api/v1/nodes", True),
        ("/apis/kubevirt.io/v1/namespaces/ns/virtualmachines", True),
    ]
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ns"}, "data": {"a": "b"}}
    written = await (await client.resource_by_kind("v1", "ConfigMap")).apply(body, field_manager="test")
    assert (written.key, (await client.resource(CONFIG_MAPS).get(name="a", namespace="ns")).data) == (
        "ns/a",
        {"a": "b"},
    )


@pytest.mark.parametrize(("api_version", "kind"), [("v1", "Nodes"), ("none.example.org/v1", "Node")])
async def test_a_kind_that_no_server_knows_is_not_installed(api_version: str, kind: str) -> None:
    with pytest.raises(NotInstalled, match=f"no kind {kind} of {api_version}"):
        await FakeCluster().client().resource_by_kind(api_version, kind)


async def test_every_server_has_the_core_group(server: ScriptedServer, client: Client) -> None:
    server.always(GET, "/apis", groups("apps/v1"))
    with pytest.raises(ApiError):
        await client.resource(PODS).is_served()
    server.always(GET, "/api/v1", resources("v1", "pods"))
    assert await client.resource(PODS).is_served()


class Answering:
    """A client whose server gives one answer, or none."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.transport = self
        self.requests: list[tuple[Any, ...]] = []
        self._answer = answer

    async def request(self, *args: Any, **_: Any) -> bytes:
        self.requests.append(args)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


async def user_from(answer: bytes | Exception) -> str:
    return await own_user(cast("Client", Answering(answer)))


async def test_the_user_of_a_self_subject_review() -> None:
    assert await user_from(b'{"status":{"userInfo":{"username":"system:serviceaccount:a:b"}}}') == (
        "system:serviceaccount:a:b"
    )


@pytest.mark.parametrize(
    "answer",
    [
        NotFound("no such resource"),
        Unreachable("gone"),
        b"{}",
        b'{"status":null}',
        b'{"status":{"userInfo":[]}}',
        b"<html>",
        b"[]",
    ],
    ids=["an old server", "no server", "nothing", "null", "a list", "no JSON", "another shape"],
)
async def test_a_server_that_does_not_say(answer: bytes | Exception) -> None:
    assert await user_from(answer) == ""


async def test_what_fails_for_one_keeps_none_of_the_others_from_it(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    async def work(number: int) -> int:
        calls.append(number)
        if number in (1, 3):
            raise (NotFound if number == 1 else Conflict)(f"no {number}")
        return -number

    with pytest.raises(NotFound, match="no 1"):
        await for_each(range(5), work)
    assert (calls, caplog.messages) == ([0, 1, 2, 3, 4], ["3: no 3"])
    assert await for_each([0, 2], work) == [0, -2]
