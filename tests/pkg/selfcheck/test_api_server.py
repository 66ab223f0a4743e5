"""The version that API servers report, and by which releases pods count then."""

import asyncio

import pytest

from kubeloop.client.client import Client
from kubeloop.testing.polling import until
from kubeloop.testing.scripted_server import GET, ScriptedServer, body, raw, status
from pkg.selfcheck import api_server
from pkg.selfcheck.api_server import ANSWERS, KubernetesVersion, ask_version
from pkg.util.quotacount.releases import RELEASES, UNKNOWN

pytestmark = pytest.mark.virtual_time


def test_in_an_upgrade_both_versions_count_until_one_is_silent() -> None:
    version = KubernetesVersion("v1.36.3")
    assert version.releases() == (RELEASES["1.36"],)
    for _ in range(ANSWERS - 1):
        version.record("v1.37.2")
    assert version.versions == ("v1.36.3", "v1.37.2")
    assert version.releases() == (RELEASES["1.36"], RELEASES["1.37"])
    version.record("v1.37.2")
    assert version.releases() == (RELEASES["1.37"],)


def test_what_is_not_known_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    version = KubernetesVersion()
    assert version.releases() == UNKNOWN
    assert not caplog.text
    for _ in range(3):
        version.record("v1.38.0")
    assert version.releases() == UNKNOWN
    assert caplog.text.count("Kubernetes version 'v1.38.0' is not known to headroom") == 1


async def test_it_is_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "PERIOD", 0.01)
    async with ScriptedServer() as server, Client(server.config()) as client:
        server.script(GET, "/version", body({"gitVersion": "v1.36.3"}), status(403, "Forbidden", "no"))
        server.always(GET, "/version", body({"gitVersion": "v1.37.2"}))
        version = KubernetesVersion(await ask_version(client))
        asking = asyncio.create_task(version.run(client))
        await until(lambda: len(version.versions) == 2)
        asking.cancel()
    assert version.versions == ("v1.36.3", "v1.37.2")


@pytest.mark.parametrize("answer", [b"{}", b"no JSON", b"[]", b'{"gitVersion": 7}'])
async def test_an_answer_without_a_version_is_none(answer: bytes) -> None:
    async with ScriptedServer() as server, Client(server.config()) as client:
        server.always(GET, "/version", raw(answer))
        assert await ask_version(client) == ""
