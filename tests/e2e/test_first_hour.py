"""docs/first-hour.md: its commands, in their order, on the embedded cluster. kubectl's are sent as it sends them."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually
from tests.e2e.accounts import collection, documents
from tests.e2e.api import CORE, KUBEVIRT, Api
from tests.program import ROOT, headroom, run

pytestmark = pytest.mark.cluster

PAGE = (ROOT / "docs" / "first-hour.md").read_text("utf-8")
PLURALS = {"vmi": "virtualmachineinstances", "vmim": "virtualmachineinstancemigrations"}
WAIT = re.compile(r"kubectl -n (\S+) wait (\w+)/(\S+) --for=jsonpath=\{\.status\.phase\}=(\w+) --timeout=5m")


@pytest.fixture
def terminal(cluster: Cluster, api: Api, tmp_path: Path) -> "Iterator[UserTerminal]":
    with ExitStack() as started:
        yield UserTerminal(cluster, api, started, tmp_path)
    api.delete(f"{CORE}/namespaces/headroom-try")


class UserTerminal:
    """Runs a line of the page; what it printed."""

    def __init__(self, cluster: Cluster, api: Api, started: ExitStack, folder: Path) -> None:
        self._cluster = cluster
        self._api = api
        self._started = started
        self._folder = folder

    def __call__(self, line: str) -> str:
        if line.startswith("headroom controller "):
            # Its account is an administrator's, as on the page; the addresses are free ones.
            self._started.enter_context(headroom(self._cluster, *line.split()[1:]))
            return ""
        if line.startswith("headroom "):
            words = [str(self._folder / word) if word.endswith(".html") else word for word in line.split()[1:]]
            if words[0] == "release":
                self._started.close()
            process = run(*words, "--kubeconfig", str(self._cluster.kubeconfig), COLUMNS="160")
            # VMs of other tests may be those that would stay.
            assert process.returncode in ((0, 1) if line == "headroom plan --evacuate all" else (0,)), process.stderr
            return process.stdout
        if waits := WAIT.fullmatch(line):
            self._wait(*waits.groups())
            return ""
        verb, file = line.removeprefix("kubectl ").split(" -f ")
        getattr(self, verb)(file)
        return ""

    def _wait(self, namespace: str, kind: str, name: str, phase: str) -> None:
        path = f"{KUBEVIRT}/namespaces/{namespace}/{PLURALS[kind]}/{name}"
        eventually(lambda: (self._api.find(path) or {}).get("status", {}).get("phase") == phase)

    def apply(self, file: str) -> None:
        for document in documents(ROOT / file):
            self._api.create(collection(self._api, document), document)

    def delete(self, file: str) -> None:
        names = [document["metadata"]["name"] for document in documents(ROOT / file) if document["kind"] == "Namespace"]
        for name in names:
            self._api.delete(f"{CORE}/namespaces/{name}")


def test_every_command_of_the_page_does_what_the_page_says(terminal: UserTerminal) -> None:
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).splitlines()
    lines = [line.partition("  # ")[0].rstrip() for line in blocks]
    printed = {line: terminal(line) for line in lines if line}
    assert (
        "headroom-try/vm1 waits for quota: move-vm1 does not fit: try lacks 50m of limits.cpu"
        in (printed["headroom explain headroom-try/vm1"])
    )
    assert re.search(r"limits.cpu +2 +1025m +3025m", printed["headroom status -n headroom-try"])
    assert "headroom-try/vm1" in printed["headroom plan -n headroom-try"]
    assert "headroom adds at once" in printed["headroom plan --evacuate all"]
    assert "large enough: all VMs run" in printed["headroom plan --size -n headroom-try"]
    assert "nodes offer" in printed["headroom status --cluster"]
