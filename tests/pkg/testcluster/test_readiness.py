from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pkg.testcluster import processes, readiness
from pkg.testcluster.errors import StartError
from pkg.testcluster.rest import RestError
from tests.polling import eventually

CRD = "virtualmachines.kubevirt.io"
CRD_PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}"
LIST_PATH = "/apis/kubevirt.io/v1/virtualmachines?limit=1"


class FakeRest:
    """Objects by path; an int is the status of a refusal."""

    def __init__(self, objects: dict[str, Any] | None = None, refuse: dict[str, int] | None = None) -> None:
        self.objects = objects or {}
        self.refuse = refuse or {}
        self.created: list[tuple[str, str]] = []

    def get(self, path: str) -> dict[str, Any]:
        found = self.objects.get(path, 404)
        if isinstance(found, int):
            raise RestError(found, f"HTTP {found}")
        answer: dict[str, Any] = found
        return answer

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        name = body["metadata"]["name"]
        if name in self.refuse:
            raise RestError(self.refuse[name], "refused")
        self.created.append((path, name))
        return body


def _crd(established: str = "True") -> dict[str, Any]:
    spec = {"group": "kubevirt.io", "names": {"plural": "virtualmachines"}, "versions": [{"name": "v1"}]}
    return {"spec": spec, "status": {"conditions": [{"type": "Established", "status": established}]}}


def _served(objects: dict[str, Any]) -> bool:
    return readiness.crds_served(FakeRest(objects), [CRD])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("objects", "served"),
    [
        pytest.param({CRD_PATH: _crd(), LIST_PATH: {}}, True, id="established and listed"),
        pytest.param({CRD_PATH: _crd("False"), LIST_PATH: {}}, False, id="not established"),
        pytest.param({CRD_PATH: {"spec": {}}, LIST_PATH: {}}, False, id="without a status"),
        pytest.param({CRD_PATH: _crd()}, False, id="established but not yet listed"),
    ],
)
def test_a_crd_is_served_when_established_and_listable(objects: dict[str, Any], served: bool) -> None:
    assert _served(objects) is served


def test_an_error_that_waiting_does_not_cure_is_not_waited_for() -> None:
    with pytest.raises(RestError):
        _served({CRD_PATH: _crd(), LIST_PATH: 403})


def test_all_crds_are_created_and_named() -> None:
    rest = FakeRest()
    names = readiness.create_crds(rest)  # type: ignore[arg-type]
    assert [name for _, name in rest.created] == names
    assert CRD in names
    assert {path for path, _ in rest.created} == {"/apis/apiextensions.k8s.io/v1/customresourcedefinitions"}


def test_what_is_there_already_is_no_error() -> None:
    rest = FakeRest(refuse={"node-1": 409})
    readiness.create_nodes(rest, ["node-1", "node-2"])  # type: ignore[arg-type]
    assert rest.created == [("/api/v1/nodes", "node-2")]


def test_any_other_refusal_is_an_error() -> None:
    with pytest.raises(RestError):
        readiness.create_nodes(FakeRest(refuse={"node-1": 403}), ["node-1"])  # type: ignore[arg-type]


def _node(name: str, status: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": status}]}}


@pytest.mark.parametrize(
    ("nodes", "ready"),
    [
        pytest.param([_node("node-1", "True"), _node("node-2", "True")], True, id="both are"),
        pytest.param([_node("node-1", "True"), _node("node-2", "False")], False, id="one is not"),
        pytest.param([_node("node-1", "True")], False, id="one is not there yet"),
        pytest.param(
            [_node("node-1", "True"), _node("node-2", "True"), _node("x", "False")],
            True,
            id="both are of three",
        ),
    ],
)
def test_two_nodes_are_ready_when(nodes: list[dict[str, Any]], ready: bool) -> None:
    rest = FakeRest({"/api/v1/nodes": {"items": nodes}})
    assert readiness.nodes_ready(rest, ["node-1", "node-2"]) is ready  # type: ignore[arg-type]


def test_controllers_work_once_the_default_service_account_is_there() -> None:
    path = "/api/v1/namespaces/default/serviceaccounts/default"
    assert not readiness.controllers_work(FakeRest())  # type: ignore[arg-type]
    assert readiness.controllers_work(FakeRest({path: {}}))  # type: ignore[arg-type]


def _after(calls: int) -> Callable[[], bool]:
    """False `calls` times, then True."""
    remaining = iter([False] * calls)
    return lambda: next(remaining, True)


def test_patience_waits_until_it_is_done() -> None:
    readiness.Patience().until("never", _after(3))


def test_patience_ends_and_says_what_did_not_happen() -> None:
    with pytest.raises(StartError, match="the moon is not full after 0 s"):
        readiness.Patience(timeout=0.1).until("the moon is not full", lambda: False)


def test_the_end_of_a_watched_process_ends_the_wait_with_its_last_word(tmp_path: Path) -> None:
    process = processes.spawn("etcd", ["/bin/sh", "-c", "echo first; echo disk full"], tmp_path)
    assert eventually(lambda: not process.alive())
    patience = readiness.Patience()
    patience.watch(process)
    with pytest.raises(
        StartError, match=r"etcd ended while starting: disk full \(whole log: .*/logs/etcd.log\)"
    ):
        patience.until("never", lambda: False)


def test_what_is_done_counts_although_a_process_ended(tmp_path: Path) -> None:
    process = processes.spawn("etcd", ["/bin/true"], tmp_path)
    assert eventually(lambda: not process.alive())
    patience = readiness.Patience()
    patience.watch(process)
    patience.until("already", lambda: True)
    with pytest.raises(StartError, match="no message"):
        patience.check()
