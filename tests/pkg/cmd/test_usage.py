"""`headroom usage`: what releases count of objects from a pipe, and one clear line for whatever is wrong."""

import json
from typing import Any

import pytest

from pkg.cmd.usage import UsageOptions, usage
from tests.decisions import sentences
from tests.pkg.cmd.delta_rig import Call

NOW = "2026-03-01T12:00:00Z"
CONTAINER = {"name": "c", "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1.0"}}}
POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"namespace": "ns", "name": "p"},
    "spec": {"containers": [CONTAINER], "resources": {"requests": {"cpu": "2"}}},
}
CLAIM = {
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "v"},
    "spec": {"resources": {"requests": {"storage": "1.1Ki"}}, "storageClassName": "gold"},
    "status": None,
}
DEVICES = {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}
DEVICE_CLAIM = {"kind": "ResourceClaim", "metadata": {"name": "d"}, "spec": {"devices": DEVICES}}


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(monkeypatch, capsys, usage, UsageOptions)


OF_CLAIM = {"persistentvolumeclaims": "1", "requests.storage": "1127"}
OF_CLASS = {f"gold.storageclass.storage.k8s.io/{name}": amount for name, amount in OF_CLAIM.items()}
OF_DEVICE = {"gpu.deviceclass.resource.k8s.io/devices": "1"}


@sentences(
    {
        "a pod in 1.32": (POD, "1.32", {"cpu": "500m", "limits.cpu": "1", "pods": "1", "requests.cpu": "500m"}),
        "a pod in 1.37": (POD, "1.37", {"cpu": "2", "limits.cpu": "1", "pods": "1", "requests.cpu": "2"}),
        "a PVC": (CLAIM, "v1.36.3", OF_CLASS | OF_CLAIM),
        "a device in 1.32": (DEVICE_CLAIM, "1.32", OF_DEVICE),
        "a device in 1.37": (
            DEVICE_CLAIM, "1.37", OF_DEVICE | {"requests.deviceclass.resource.kubernetes.io/gpu": "1"},
        ),
    }
)  # fmt: skip
def test_an_object_is_a_line(call: Call, case: tuple[Any, str, dict[str, str]]) -> None:
    document, release, counted = case
    (line,) = call(json.dumps(document), kubernetes=release)
    objects = [name for name in line["usage"] if name.startswith("count/")]
    assert len(objects) == 1
    metadata = {"namespace": "", **document["metadata"]}
    assert line == {"kind": document["kind"], **metadata, "usage": {objects[0]: "1", **counted}}


def test_a_pod_past_its_grace_period_counts_as_an_object(call: Call) -> None:
    deleted = {"deletionTimestamp": NOW, "deletionGracePeriodSeconds": 30}
    stuck = json.dumps(POD | {"metadata": {"name": "p", **deleted}})
    assert call(stuck)[0]["usage"] == {"count/pods": "1"}
    assert "pods" in call(stuck, now=NOW)[0]["usage"]


SOON = {"name": "p", "deletionTimestamp": "soon", "deletionGracePeriodSeconds": 30}


@sentences(
    {
        "another kind": ({"kind": "Secret"}, {}, "document 1: not Pod, PersistentVolumeClaim or ResourceClaim"),
        "a quantity": (POD | {"spec": {"overhead": {"cpu": "x"}}}, {}, "Pod ns/p: cpu: 'x' is not a quantity"),
        "a field": (POD | {"spec": []}, {}, "Pod ns/p: Expected `object`, got `array`"),
        "a time": (POD | {"metadata": SOON}, {}, "Pod p: 'soon' is not a time such as 2026-11-21T16:30:14Z"),
        "--kubernetes": (POD, {"kubernetes": "1.38"}, "--kubernetes must be a release from 1.30 to 1.37, not '1.38'"),
        "--now": (POD, {"now": "2026-03-01"}, "--now: '2026-03-01' is not a time such as 2026-11-21T16:30:14Z"),
        "--file": (POD, {"file": "/no/such"}, "/no/such: No such file or directory"),
    }
)
def test_what_is_wrong_is_one_line(call: Call, case: tuple[Any, dict[str, Any], str]) -> None:
    document, flags, expected = case
    assert call(json.dumps(document), **flags) == []
    assert call.code
    assert expected in call.stderr
    assert call.stderr.count("\n") == 1
