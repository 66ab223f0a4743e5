"""Creating pods: placed, refused, and never asked for twice."""

import contextlib
from typing import Any

import pytest

from kubeloop.api.core import Node
from kubeloop.api.registry import NODES, PODS
from kubeloop.client.errors import ApiError, Conflict, Forbidden, Invalid, Unreachable
from lab.kubevirt.creation import Creator, Placement, Refusals, Refused, pick_node
from lab.kubevirt.lookup import Pods
from tests.kinds import Events, Kind
from tests.lab.kubevirt.samples import launcher, node, vmi
from tests.objects import build

THREE = [node("node-3"), node("node-2"), node("node-1")]
DELETED = build(Node, "node-0", deleting=True)

PICKS: dict[str, tuple[list[Node], dict[str, Any], str | None]] = {
    "none where there is none": ([], {"load": {}}, None),
    "the first by name": (THREE, {"load": {}}, "node-1"),
    "the least loaded": (THREE, {"load": {"node-1": 2, "node-2": 1, "node-3": 1}}, "node-2"),
    "not the source": (THREE, {"load": {}, "avoid": {"node-1"}}, "node-2"),
    "none beside the only one": ([node("node-1")], {"load": {}, "avoid": {"node-1"}}, None),
    "not a cordoned one": ([node("node-1", unschedulable=True), node("node-2")], {"load": {}}, "node-2"),
    "not one that is not ready": ([node("node-1", ready="False"), node("node-2")], {"load": {}}, "node-2"),
    "one whose readiness is unknown": ([node("node-1", ready=None)], {"load": {}}, "node-1"),
    "not one that is being deleted": ([DELETED, node("node-2")], {"load": {}}, "node-2"),
    "one with the labels": ([node("a"), node("b", zone="x")], {"load": {}, "selector": {"zone": "x"}}, "b"),
    "none without the labels": (THREE, {"load": {}, "selector": {"zone": "x"}}, None),
}


@pytest.mark.parametrize(("nodes", "choice", "name"), PICKS.values(), ids=PICKS.keys())
def test_pick_node(nodes: list[Node], choice: dict[str, Any], name: str | None) -> None:
    assert pick_node(nodes, **choice) == name


BODY: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": []}}
QUOTA = Forbidden('pods "p" is forbidden: exceeded quota: default', status=403)


@pytest.mark.parametrize(
    ("error", "exists", "verbs"),
    [
        pytest.param(None, False, ["create"], id="one that the cache does not show yet"),
        pytest.param(Unreachable("reset"), False, ["create", "get", "create"], id="one whose answer was lost"),
        pytest.param(Unreachable("reset"), True, ["create", "get"], id="one that is there all the same"),
    ],
)
async def test_a_pod_is_not_asked_for_twice(error: ApiError | None, exists: bool, verbs: list[str]) -> None:
    """Quota would be charged once more, for a name that is taken."""
    pods, nodes = Kind(PODS), Kind(NODES)
    pods.lagging, pods.errors["create"] = not exists, [error]
    placement = Placement(nodes.cache, Pods(pods.cache))
    unused: Any = None
    creator = Creator(pods.client, placement, Refusals(), Events().recorder, unused, unused)
    with contextlib.suppress(Unreachable):
        await creator.create(BODY, vmi(), None, "launcher pod")
    if exists:
        pods.given(launcher("p"))
    await creator.create(BODY, vmi(), None, "launcher pod")
    assert [(verb, body["metadata"]["name"] if verb == "create" else key) for verb, key, body in pods.calls] == [
        (verb, "p" if verb == "create" else "t1/p") for verb in verbs
    ]


# -- when a refused pod is asked for again

OTHER = Forbidden("no service account", status=403)
CHANGED = "the quota changes"
WAITS: dict[str, tuple[Refusals, list[ApiError | str], list[float]]] = {
    "quota's from five seconds to five minutes": (Refusals(), [QUOTA] * 9, [5, 10, 20, 40, 80, 160, 300, 300, 300]),
    "others from a tenth of a second to half a minute": (
        Refusals(),
        [OTHER] * 10,
        [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30],
    ),
    "what only has quota's words is another's": (
        Refusals(),
        [Invalid("exceeded quota", status=422), Conflict("exceeded quota", status=409)],
        [0.1, 0.2],
    ),
    "quickly after a change of the quota, once": (
        Refusals(),
        [QUOTA, CHANGED, *[QUOTA] * 5, CHANGED, QUOTA],
        [5, 0, 0.05, 0.2, 0.8, 10, 20, 0, 0.05],
    ),
    "a change of the quota hurries no other refusal": (Refusals(), [OTHER, CHANGED], [0.1, 0.1]),
    "from a drained bucket nothing is quick": (
        Refusals(300.0, 300.0, quick=()),
        [QUOTA, CHANGED, QUOTA, QUOTA],
        [300, 0, 300, 300],
    ),
}


def wait(refusals: Refusals, key: str, now: float) -> float:
    """Seconds."""
    try:
        refusals.check(key, now)
    except Refused as refused:
        return refused.seconds
    return 0.0


@pytest.mark.parametrize(("refusals", "events", "waits"), WAITS.values(), ids=WAITS.keys())
def test_how_long_a_refused_pod_waits(refusals: Refusals, events: list[ApiError | str], waits: list[float]) -> None:
    """Delays of "ns/a" after each event, at second 100."""
    delays = []
    for event in events:
        if isinstance(event, str):
            assert refusals.quota_changed("ns") == ["ns/a"]
        else:
            refusals.record_refusal("ns/a", event, generation=refusals.generation("ns"), now=100.0)
        delays.append(round(wait(refusals, "ns/a", 100.0), 6))
    assert delays == waits
    assert wait(refusals, "ns/a", 1000.0) == 0.0


def test_what_a_refusal_is_about() -> None:
    refusals = Refusals()
    generation = refusals.generation("ns")
    refusals.quota_changed("ns")
    refusal = refusals.record_refusal("ns/a", QUOTA, generation=generation, now=0.0)
    assert (str(refusal), refusal.by_quota) == (QUOTA.message, True)
    assert wait(refusals, "ns/a", 0.0) == 0.0, "the quota changed while the request was under way"
    refusals.record_refusal("other/b", QUOTA, generation=0, now=0.0)
    refusals.quota_changed("ns")
    assert wait(refusals, "other/b", 0.0) == 5.0, "another namespace's quota changed"
    refusals.forget("other/b")
    assert wait(refusals, "other/b", 0.0) == 0.0
