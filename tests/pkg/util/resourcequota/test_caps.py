"""How much may be added: max-extra, and the room for annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pkg.util.resourcequota.scaling import MAX_ANNOTATION_BYTES, idle, refuse
from tests.decisions import by_value, sentences


@dataclass(frozen=True)
class Capped:
    """The caps, what is added altogether, and a part of the refusal ("" for none)."""

    caps: Sequence[str]
    added: Mapping[str, str]
    refusal: str = ""


ONE_GI = '{"limits.memory":"1Gi"}'
CAPPED = {
    "no cap, no refusal": Capped([], {"limits.memory": "100Ti"}),
    "an empty text is no cap": Capped(["", ""], {"limits.memory": "100Ti"}),
    "an empty list caps nothing": Capped(["{}"], {"limits.memory": "100Ti"}),
    "below the cap": Capped([ONE_GI], {"limits.memory": "1023Mi"}),
    "just the cap": Capped([ONE_GI], {"limits.memory": "1024Mi"}),
    "bytes are shown in units": Capped(
        ['{"limits.memory":"3221225472"}'], {"limits.memory": "4Gi"}, "raised by 4.0Gi, max-extra is 3.0Gi"
    ),
    "one byte above": Capped([ONE_GI], {"limits.memory": "1073741825"}, "max-extra is 1Gi"),
    "what the cap does not name is free": Capped([ONE_GI], {"limits.cpu": "100"}),
    "a cap of zero forbids": Capped(['{"pods":"0"}'], {"pods": "1"}, "pods would be raised by 1, max-extra is 0"),
    "the namespace's cap and the quota's: the smaller counts": Capped(
        ['{"limits.memory":"9Gi"}', ONE_GI], {"limits.memory": "2Gi"}, "max-extra is 1Gi"
    ),
    "each names another resource": Capped(
        ['{"limits.cpu":"1"}', ONE_GI], {"limits.cpu": "2", "limits.memory": "1Gi"}, "limits.cpu"
    ),
    "a cap that is garbage allows nothing": Capped(["{nope"], {"limits.cpu": "1"}, "nothing is added"),
    "nor does it beside one that is not": Capped([ONE_GI, "[]"], {"limits.cpu": "1"}, "nothing is added"),
}


@sentences(CAPPED)
def test_caps(case: Capped) -> None:
    refusal = refuse(case.caps, "migration of VM vm1", by_value(dict(case.added)))
    if not case.refusal:
        assert refusal is None
        return
    assert refusal is not None
    assert refusal.reason == "MaxExtraReached"
    assert case.refusal in str(refusal)


def test_a_refusal_says_what_waits() -> None:
    refusal = refuse([ONE_GI], "migration of VM vm1", by_value({"limits.memory": "2Gi"}))
    assert str(refusal).startswith("migration of VM vm1 waits: ")


def test_annotations_may_take_200_kib_by_bytes() -> None:
    key = "k" * 10
    full = {key: "ü" * ((MAX_ANNOTATION_BYTES - 13) // 2), "k": "{}"}
    assert refuse([], "x", {}, full) is None
    refusal = refuse([], "migration of VM vm1", {}, full | {"ll": ""})
    assert refusal is not None
    assert refusal.reason == "TooManyMigrations"
    assert "204801 of 204800 bytes" in str(refusal)


HARD_HAS = {"limits.memory", "requests.nvidia.com/gpu"}
IDLE = {
    "no cap": ("", "", []),
    "names that spec.hard has": ('{"limits.memory":"1Gi","requests.nvidia.com/gpu":"1"}', "", []),
    "a misspelled name": ('{"limit.memory":"1Gi"}', "", ["limit.memory caps nothing: spec.hard does not have it"]),
    "a name of another quota": ('{"pods":"1"}', "", ["pods caps nothing: spec.hard does not have it"]),
    "on the namespace, a name of another quota": ("", '{"pods":"1","requests.a.b/c":"1","hugepages-2Mi":"2Mi"}', []),
    "on the namespace, names that no quota has": (
        "",
        '{"limit.memory":"1Gi","limits.memry":"1Gi","services":"1"}',
        [
            f"{name} caps nothing: quotas do not count it of pods or claims"
            for name in ("limit.memory", "limits.memry", "services")
        ],
    ),
    "garbage is said elsewhere": ("lots", "[]", []),
}


@sentences(IDLE)
def test_names_that_cap_nothing_are_told(case: tuple[str, str, Sequence[str]]) -> None:
    on_quota, on_namespace, said = case
    found = idle(on_quota, on_namespace, HARD_HAS)
    assert [str(problem) for problem in found] == [f"max-extra of {text}" for text in said]
    assert {problem.reason for problem in found} <= {"MaxExtraCapsNothing"}
    assert len({problem.state for problem in found}) == len(found)
