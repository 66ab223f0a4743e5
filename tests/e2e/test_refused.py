"""Another webhook, a policy or RBAC refuses that a quota is raised: by whichever status, it is named in the first line
of every command, by one event, the metric and /readyz; once it is gone the quota is raised within 30 seconds."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually
from tests.e2e.accounts import ADMISSION, NAMESPACE, RBAC, forget
from tests.e2e.admin import HARD
from tests.e2e.api import Api, Raw
from tests.e2e.conftest import MakeTenant, frozen
from tests.e2e.denying_webhook import denying_webhook
from tests.e2e.tenant import RAISED, Tenant
from tests.program import Program, program, run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

TOLD = 30.0
"""Seconds until it is told, at most."""
REPAIRED = 30.0
"""Seconds until the quota is raised once nobody refuses it any more."""
SENTENCE = "quotas are changed by their owner alone"
WEBHOOK = "webhook quotas.example.org"

Obstacle = Callable[[Api, str, Path], contextlib.AbstractContextManager[None]]


def denied(**status: Any) -> Obstacle:
    """Refuses by a webhook with this status."""

    def obstacle(api: Api, namespace: str, folder: Path) -> contextlib.AbstractContextManager[None]:
        def deny(_: Mapping[str, Any]) -> dict[str, Any]:
            return {"allowed": False, "status": {"message": SENTENCE, **status}}

        return denying_webhook(api, "quotas.example.org", namespace, deny, folder)

    return obstacle


@contextlib.contextmanager
def policy(api: Api, namespace: str, _: Path) -> Iterator[None]:
    """Refuses by a ValidatingAdmissionPolicy."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["resourcequotas"], "operations": ["UPDATE"]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    validations = [{"expression": "false", "message": SENTENCE}]
    constraints = {"resourceRules": [rule], "namespaceSelector": selector}
    objects: dict[str, Raw] = {
        "validatingadmissionpolicies": {"validations": validations, "matchConstraints": constraints},
        "validatingadmissionpolicybindings": {"policyName": "no-quotas", "validationActions": ["Deny"]},
    }
    for kind, spec in objects.items():
        api.create(f"{ADMISSION}/{kind}", {"metadata": {"name": "no-quotas"}, "spec": spec})
    body = {"metadata": {"annotations": {"example.org/probe": "1"}}}
    quota = f"/api/v1/namespaces/{namespace}/resourcequotas/default-abc?dryRun=All"

    def in_force() -> bool:  # the API server learns of it by a watch
        with contextlib.suppress(Exception):
            api.patch(quota, body)
            return False
        return True

    eventually(in_force)
    try:
        yield
    finally:
        for kind in objects:
            api.delete(f"{ADMISSION}/{kind}/no-quotas")


@contextlib.contextmanager
def rights(api: Api, _namespace: str, _folder: Path) -> Iterator[None]:
    """Refuses by RBAC: the role may only read quotas."""
    role = f"{RBAC}/clusterroles/headroom"
    rules = api.get(role)["rules"]
    reads = {"verbs": ["get", "list", "watch"]}
    api.patch(role, {"rules": [rule | reads if "resourcequotas" in rule["resources"] else rule for rule in rules]})
    try:
        yield
    finally:
        api.patch(role, {"rules": rules})


OBSTACLES: dict[str, tuple[Obstacle, str, int, str]] = {
    "a webhook that gives no status": (denied(), WEBHOOK, 400, SENTENCE),
    "a webhook's 409": (denied(code=409, reason="Conflict"), WEBHOOK, 409, SENTENCE),
    "a policy": (policy, "ValidatingAdmissionPolicy no-quotas (binding no-quotas)", 422, SENTENCE),
    "missing rights": (rights, "RBAC", 403, 'cannot patch resource "resourcequotas"'),
}
"""Each by one status: what every other one means is a row of tests/kubeloop/client/test_errors.py."""


@pytest.fixture(scope="module")
def headroom(cluster: Cluster, api: Api, own_kubeconfig: Path) -> Iterator[Program]:
    forget(api)
    flags = ("--estimate", "harvester", "--leader-elect", "--leader-elect-retry-period", "0.4")
    controller = program(cluster, "controller", *flags, "--kubeconfig", str(own_kubeconfig))
    yield controller.start()
    assert controller.stop() == 0
    assert "Traceback" not in controller.text()
    forget(api)


class Commands:
    """The commands' output, with the rights of an administrator."""

    def __init__(self, cluster: Cluster) -> None:
        self._flags = ("--kubeconfig", str(cluster.kubeconfig), "--headroom-namespace", NAMESPACE)

    def first_line(self, *words: str) -> str:
        return self.output(*words).partition("\n")[0]

    def output(self, *words: str) -> str:
        return run(*words, *self._flags).stdout

    def check(self) -> tuple[int, str]:
        process = run("status", "--check", "controller", *self._flags)
        return process.returncode, process.stdout


@pytest.fixture
def commands(cluster: Cluster) -> Commands:
    return Commands(cluster)


async def waiting(tenant: MakeTenant) -> Tenant:
    """A namespace with a VM, which is not raised yet."""
    namespace = await tenant()
    await namespace.vm()
    return namespace


@pytest.mark.parametrize("case", OBSTACLES)
async def test_who_refuses_is_named_and_the_repair_is_noticed(
    case: str, headroom: Program, api: Api, tenant: MakeTenant, commands: Commands, tmp_path: Path
) -> None:
    obstacle, by, status, sentence = OBSTACLES[case]
    namespace = await waiting(tenant)
    with obstacle(api, namespace.name, tmp_path):
        await namespace.refused()
        eventually(lambda: f"{by} refuses" in commands.first_line("explain", f"{namespace.name}/vm1"), timeout=TOLD)
        for words in (("status",), ("status", "-n", namespace.name), ("explain", f"{namespace.name}/vm1")):
            first_line = commands.first_line(*words)
            assert first_line.startswith(f"headroom cannot do its work: {by} refuses headroom's requests ({status}): ")
            assert sentence in first_line
            assert f"ResourceQuota {namespace.name}/default-abc" in first_line
        assert "raises" not in commands.output("explain", f"{namespace.name}/vm1")
        code, text = commands.check()
        assert (code, by in text) == (1, True)
        await namespace.told("RequestRefused")
        events = await namespace.events("RequestRefused")
        assert [(event.involved_object.kind, event.involved_object.name) for event in events] == [
            ("ResourceQuota", "default-abc")
        ]
        assert sentence in events[0].message
        assert f'headroom_requests_refused{{by="{by}"}} 1.0' in headroom.get("/metrics")[1]
        assert sentence in headroom.get("/readyz")[1]
        patches = headroom.text().count(f"{namespace.name}/default-abc: conflict, retrying")
        assert patches == 0, "no refusal is taken for a conflict"
    began = time.monotonic()
    await namespace.until_hard(RAISED, seconds=REPAIRED)
    print(f"{case}: raised {time.monotonic() - began:.1f} s after the repair")
    eventually(lambda: commands.check() == (0, "headroom works\n"), timeout=TOLD)


async def test_an_answer_that_does_not_come_is_told_after_five_seconds(
    headroom: Program, api: Api, tenant: MakeTenant, commands: Commands, tmp_path: Path
) -> None:
    is_told, answers = threading.Event(), list[bool]()

    def hang(_: Mapping[str, Any]) -> dict[str, Any]:
        answers.append(is_told.wait(25))
        return {"allowed": True}

    namespace = await waiting(tenant)
    with denying_webhook(api, "slow.example.org", namespace.name, hang, tmp_path, timeoutSeconds=30):
        began = time.monotonic()
        await namespace.refused()
        event = await namespace.told("RequestUnanswered", "ResourceQuota")
        assert time.monotonic() - began >= 5.0
        assert answers == [], "it is told before the answer comes"
        assert "does not answer" in event.message
        assert f"waits for an answer: ResourceQuota {namespace.name}/default-abc" in headroom.text()
        eventually(lambda: "does not answer" in commands.first_line("explain", f"{namespace.name}/vm1"))
        assert commands.check()[0] == 1
        is_told.set()
    await namespace.until_hard(RAISED, seconds=REPAIRED)


async def test_a_webhook_that_does_not_answer_is_named(
    headroom: Program, api: Api, tenant: MakeTenant, commands: Commands, tmp_path: Path
) -> None:
    namespace = await waiting(tenant)
    nobody = {"clientConfig": {"url": "https://127.0.0.1:1/"}}
    with denying_webhook(api, "gone.example.org", namespace.name, lambda _: {"allowed": True}, tmp_path, **nobody):
        await namespace.refused()
        complaint = "webhook gone.example.org: it does not answer"
        eventually(lambda: complaint in commands.first_line("explain", f"{namespace.name}/vm1"), timeout=TOLD)
        assert commands.check()[0] == 1
    await namespace.until_hard(RAISED, seconds=REPAIRED)
    document = json.loads(commands.output("status", "-o", "json"))
    eventually(lambda: json.loads(commands.output("status", "-o", "json"))["headroom"]["refused"] == [])
    assert document["headroom"]["running"] is True


async def test_limits_that_are_not_copied_to_the_status_are_named(
    headroom: Program, cluster: Cluster, tenant: MakeTenant, commands: Commands
) -> None:
    namespace = await waiting(tenant)
    await namespace.until_counted()
    with frozen(cluster, "kube-controller-manager"):
        await namespace.refused()
        await namespace.until_hard(RAISED, seconds=REPAIRED)
        output = commands.output("status", "-n", namespace.name)
        assert "quota admission goes by status.hard, which is not spec.hard: limits.cpu 3 of 5" in output
        assert "kube-controller-manager has not copied it" in output
        assert "headroom_quotas_not_enforced 1.0" in headroom.get("/metrics")[1]
    eventually(lambda: "status.hard" not in commands.output("status", "-n", namespace.name), timeout=TOLD)


async def test_a_writer_that_reverts_again_and_again_is_named(
    headroom: Program, api: Api, tenant: MakeTenant, commands: Commands
) -> None:
    namespace = await waiting(tenant)
    quota = f"/api/v1/namespaces/{namespace.name}/resourcequotas/default-abc"
    await namespace.refused()
    await namespace.until_hard(RAISED, seconds=REPAIRED)

    def is_named() -> bool:
        """A write every tenth of a second, until it is named."""
        api.patch(quota + "?fieldManager=gitops", {"spec": {"hard": HARD}})
        time.sleep(0.1)
        return 'headroom_requests_refused{by="field manager gitops"} 1.0' in headroom.get("/metrics")[1]

    eventually(is_named, timeout=TOLD)
    assert "field manager gitops lowers spec.hard" in (await namespace.told("ResourceQuotaReverted")).message
    start = "headroom cannot do its work: field manager gitops: lowers spec.hard again and again"
    for words in (("status",), ("explain", f"{namespace.name}/vm1"), ("status", "--check", "controller")):
        eventually(partial(_starts, commands, words, start), timeout=TOLD)
    await namespace.until_hard(RAISED, seconds=REPAIRED)


def _starts(commands: Commands, words: Sequence[str], start: str) -> bool:
    return commands.first_line(*words).startswith(start)
