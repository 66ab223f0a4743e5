"""Fixtures of the client's tests."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kubeloop.api import registry
from kubeloop.api.core import ResourceQuota
from kubeloop.client.client import Client
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.retry import RetryPolicy
from kubeloop.client.transport import Transport
from kubeloop.testing.scripted_server import ScriptedServer
from tests.kubeloop.client.rig import Sleeps, TransportRig


@pytest.fixture
async def rig() -> AsyncIterator[TransportRig]:
    sleeps = Sleeps()
    async with ScriptedServer() as server:
        transport = Transport(server.config(), retry=RetryPolicy(sleep=sleeps))
        rig = TransportRig(server, transport, sleeps)
        yield rig
        for other_transport in (transport, *rig.other_transports):
            await other_transport.close()


PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No configuration and no proxy of the machine's own; ~ and temporary files in a folder of the test's.

    Keys that were written for the ssl module are gone afterwards, whatever went wrong."""
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    yield
    assert os.listdir(tmp_path / "temporary") == []


@pytest.fixture
def server(rig: TransportRig) -> ScriptedServer:
    return rig.server


@pytest.fixture
def client(rig: TransportRig) -> Client:
    return Client(rig.transport)


@pytest.fixture
def quotas(client: Client) -> ResourceClient[ResourceQuota]:
    return client.resource(registry.RESOURCE_QUOTAS)
