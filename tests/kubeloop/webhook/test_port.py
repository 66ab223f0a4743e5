"""The webhook of docs/dev/porting.md, on an API server."""

import re
from pathlib import Path
from typing import Any

import pytest

from kubeloop.api.registry import CONFIG_MAPS, SECRETS, VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden
from kubeloop.client.loading import load_config
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.paths import free_ports
from kubeloop.testing.polling import until
from kubeloop.webhook.registration import Endpoint

PORTING = Path(__file__).parents[3] / "docs" / "dev" / "porting.md"


def page_definitions() -> dict[str, Any]:
    """Returns the definitions in the page's section."""
    section = PORTING.read_text().partition("## A webhook\n")[2]
    (code, *_) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.mark.cluster
async def test_it_is_registered_and_asked(cluster: Cluster) -> None:
    (port,) = free_ports(1)
    endpoint = Endpoint(url=f"https://127.0.0.1:{port}")
    async with Client(load_config(str(cluster.kubeconfig))) as client:
        management = ControllerFactory(client)
        server = page_definitions()["server_of"](management, endpoint, "default")
        await management.start()
        await server.start(f"127.0.0.1:{port}")
        config_maps = client.resource(CONFIG_MAPS).dry_run()

        async def refused() -> bool:
            try:
                await config_maps.create({"metadata": {"generateName": "a-"}}, namespace="default")
            except Forbidden as exc:
                return "say who owns it" in exc.message
            return False

        try:
            await until(refused, "a refusal")
            labelled = {"metadata": {"generateName": "a-", "labels": {"owner": "b"}}}
            await config_maps.create(labelled, namespace="default")
            assert server.unready() == []
        finally:
            await server.stop()
            await management.stop()
            await client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS).delete(name="example.org")
            await client.resource(SECRETS).delete(name="owner-tls", namespace="default")
