"""What a person is told, by an API server whose answers are written down here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kubeloop.api import registry
from kubeloop.client.errors import NotFound
from kubeloop.testing.scripted_server import PATCH, Reply, ScriptedServer, body, status
from lab.demo.driver import told

QUOTA = registry.RESOURCE_QUOTAS.path("quota-test", "default-abc")
DENIED = 'admission webhook "guard.headroom" denied the request: vm2 migrates'
HARD = {"spec": {"hard": {"limits.cpu": "3", "limits.memory": "5000Mi"}}}
CONFIG = {
    "current-context": "a",
    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    "users": [{"name": "a", "user": {}}],
}


async def asked(folder: Path, answer: Reply | None) -> tuple[str, ScriptedServer]:
    async with ScriptedServer() as server:
        if answer is not None:
            server.script(PATCH, QUOTA, answer)
        clusters = [{"name": "a", "cluster": {"server": server.url}}]
        kubeconfig = folder / "config"
        kubeconfig.write_text(json.dumps({**CONFIG, "clusters": clusters}), "utf-8")
        return await told(kubeconfig, PATCH, QUOTA, HARD), server


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(status(403, "Forbidden", DENIED), DENIED, id="a webhook says no"),
        pytest.param(status(403, "Forbidden", "person may not"), "person may not", id="RBAC says no"),
        pytest.param(body({"metadata": {"name": "default-abc"}}), "", id="nothing refuses it"),
    ],
)
async def test_what_a_person_is_told(answer: Reply, said: str, tmp_path: Path) -> None:
    assert said in (found := (await asked(tmp_path, answer))[0])
    assert bool(found) is bool(said)


async def test_it_is_asked_as_a_person_and_nothing_is_written(tmp_path: Path) -> None:
    _, server = await asked(tmp_path, body({}))
    (seen,) = server.requests
    assert seen.query == {"dryRun": "All"}
    assert seen.headers["Impersonate-User"] == "person"
    assert seen.json == HARD


async def test_another_answer_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await asked(tmp_path, None)
