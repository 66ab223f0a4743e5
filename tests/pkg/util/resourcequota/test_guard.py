"""The lowest limits that a quota may have: its base and the entries of the request's own object."""

from dataclasses import dataclass, field

from kubeloop.api.core import ResourceQuota
from kubeloop.api.resource_list import format_resource_list
from pkg.util.constants import ANNOTATION_APPLIED as APPLIED
from pkg.util.constants import ANNOTATION_BASE as BASE
from pkg.util.constants import LABEL_MANAGED
from pkg.util.resourcequota.entries import migrating_key, names_by_key
from pkg.util.resourcequota.guard import lowered_too_far
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.decisions import EXACT, sentences
from tests.objects import BASE as LIMITS
from tests.objects import (
    COMPENSATION,
    ENTRY,
    HARD,
    LONG_NAME,
    MARKS,
    RAISED,
    SKIP,
    Resources,
    annotated_namespace,
    by_name,
    by_uid,
    quota,
    vmi,
    vmim,
)

TAKEOVER = Policy(Mode.TAKEOVER, EstimateKind.HARVESTER)
ASSIST = Policy(Mode.ASSIST)
ONE = {**MARKS, by_name(): ENTRY}
TWO = {**ONE, by_name("vm2"): ENTRY}
RAISED_TWICE = {"limits.cpu": "7", "limits.memory": "14717808626"}


@dataclass(frozen=True)
class Write:
    """A write of spec.hard: from what, to what, and what it may not go below."""

    to: Resources
    lowest: dict[str, str] = field(default_factory=dict)
    was: Resources = field(default_factory=lambda: dict(RAISED))
    annotations: dict[str, str] = field(default_factory=lambda: dict(ONE))
    removes: tuple[str, ...] = ()
    policy: Policy = TAKEOVER
    limits: str = LIMITS

    @property
    def old(self) -> ResourceQuota:
        return quota(self.was, self.annotations)

    @property
    def new(self) -> ResourceQuota:
        annotations = {key: text for key, text in self.annotations.items() if key not in self.removes}
        return quota(self.to, annotations)


WRITES = {
    "nothing changes": Write(dict(RAISED)),
    "another spelling of the same": Write({"limits.cpu": "5000m", "limits.memory": "9980344313000m"}),
    "it is raised": Write({"limits.cpu": "50", "limits.memory": "1Ti"}),
    "it is raised by another client to less than is needed": Write(
        {"limits.cpu": "4", "limits.memory": "9980344313"}, was={"limits.cpu": "3", "limits.memory": "9980344313"}
    ),
    "a limit is taken away": Write({"limits.cpu": "5"}),
    "lowered, but not below what is needed": Write(dict(RAISED), was={"limits.cpu": "9", "limits.memory": "1Ti"}),
    "outside migrations down to anything": Write({"limits.cpu": "1"}, annotations=dict(MARKS)),
    "a limit that is garbage": Write({**RAISED, "limits.cpu": "garbage"}),
    "an entry goes with its headroom": Write(dict(HARD), removes=(by_name(),)),
    "one of two is over": Write(dict(RAISED), was=RAISED_TWICE, annotations=TWO, removes=(by_name("vm2"),)),
    "a limit that headroom does not scale": Write({**RAISED, "secrets": "1"}, was={**RAISED, "secrets": "9"}),
    "the namespace has no base": Write(dict(HARD), limits=""),
    "the namespace's annotation is garbage": Write(dict(HARD), limits="{"),
    "an entry that is garbage has added nothing": Write(dict(HARD), annotations={**MARKS, by_name(): "{"}),
    "an entry goes with its headroom, beside Harvester": Write(
        dict(HARD), annotations={by_uid(): ENTRY}, removes=(by_uid(),), policy=ASSIST
    ),
    # Too low:
    "back to the base": Write(dict(HARD), dict(RAISED)),
    "one of the two limits": Write({**RAISED, "limits.cpu": "3"}, {"limits.cpu": "5"}),
    "a thousandth of a CPU": Write({**RAISED, "limits.cpu": "4999m"}, {"limits.cpu": "5"}),
    "a single byte": Write({**RAISED, "limits.memory": "9980344312"}, {"limits.memory": "9980344313"}),
    "to zero, which is not the same as no limit": Write({"limits.cpu": "0", "limits.memory": "0"}, dict(RAISED)),
    "below the base": Write({"limits.cpu": "1m", "limits.memory": "1"}, dict(RAISED)),
    "from far above to below": Write(dict(HARD), dict(RAISED), was={"limits.cpu": "99", "limits.memory": "1Ti"}),
    "a limit that was not there before": Write(
        dict(HARD), {"limits.memory": "9980344313"}, was={"limits.cpu": "3"}
    ),
    "the first limit of all": Write({"limits.cpu": "2"}, {"limits.cpu": "5"}, was={}),
    "two VMs migrate": Write(
        dict(RAISED), RAISED_TWICE, was=RAISED_TWICE, annotations=TWO,
    ),
    "by uid, beside Harvester": Write(dict(HARD), dict(RAISED), annotations={by_uid(): ENTRY}, policy=ASSIST),
    "an older form of the key": Write(dict(HARD), dict(RAISED), annotations={**MARKS, by_uid(): ENTRY}),
    "one of two entries goes": Write(dict(HARD), dict(RAISED), annotations=TWO, removes=(by_name("vm2"),)),
    "a larger base since": Write(
        dict(RAISED), {"limits.cpu": "6"}, was={"limits.cpu": "9", "limits.memory": "9980344313"},
        limits='{"limit":{"limitsCpu":"4","limitsMemory":"5000Mi"}}',
    ),
}  # fmt: skip


@sentences(WRITES)
def test_the_lowest_limits_of_a_write(case: Write) -> None:
    assert (
        format_resource_list(lowered_too_far(case.old, case.new, case.policy, annotated_namespace(case.limits)))
        == case.lowest
    )


def test_a_quota_that_a_person_has_switched_off_may_be_lowered() -> None:
    annotations = {SKIP: "true", by_name(): ENTRY}
    assert not lowered_too_far(quota(RAISED, annotations), quota(HARD, annotations), TAKEOVER, None)


def test_compensation_counts() -> None:
    """The compensation counts also where the last entry is gone."""
    annotations = {**ONE, COMPENSATION: '{"limits.memory":"512Mi"}'}
    was = quota({"limits.cpu": "5", "limits.memory": str(9980344313 + 2**29)}, annotations)
    lowest = lowered_too_far(was, quota(dict(RAISED), annotations), TAKEOVER, annotated_namespace(LIMITS))
    assert format_resource_list(lowest) == {"limits.memory": str(9980344313 + 2**29)}
    alone = quota(dict(HARD), {**MARKS, COMPENSATION: annotations[COMPENSATION]})
    assert format_resource_list(lowered_too_far(was, alone, TAKEOVER, annotated_namespace(LIMITS))) == {
        "limits.memory": "5512Mi"
    }


LABELLED = {LABEL_MANAGED: "true"}
RECORD = {BASE: '{"limits.cpu":"3"}', APPLIED: '{"limits.cpu":"5"}', by_name(): '{"limits.cpu":"2"}'}
WITHOUT_RANCHER = {
    "lowered to the record": ({"limits.cpu": "3"}, {}, {"limits.cpu": "5"}),
    "lowered together with its record": ({"limits.cpu": "3"}, {BASE: '{"limits.cpu":"1"}'}, {"limits.cpu": "5"}),
    "what we note as written does not make it an edit": ({"limits.cpu": "3"}, {APPLIED: "{}"}, {"limits.cpu": "5"}),
    "a limit that headroom does not scale": ({"limits.cpu": "5", "secrets": "1"}, {}, {}),
    "the entry is smaller, and so is the limit": ({"limits.cpu": "4"}, {by_name(): '{"limits.cpu":"1"}'}, {}),
}


@sentences(WITHOUT_RANCHER, "hard, annotations, lowest")
def test_a_quota_without_rancher(hard: dict[str, str], annotations: dict[str, str], lowest: dict[str, str]) -> None:
    was = quota({"limits.cpu": "5", "secrets": "9"}, RECORD, labels=LABELLED)
    new = quota(dict(hard), {**RECORD, **annotations}, labels=LABELLED)
    assert format_resource_list(lowered_too_far(was, new, EXACT, None)) == lowest


NAMES = {
    "by name": ({by_name("vm7"): ENTRY}, ("vm7",)),
    "by uid of a VMI that is known": ({by_uid("vm1"): ENTRY}, ("vm1",)),
    "by uid of one that is not": ({by_uid("other"): ENTRY}, ("uid-other",)),
    "in order, each once": ({by_name("b"): ENTRY, by_name("a"): ENTRY}, ("a", "b")),
    "no migration": ({COMPENSATION: "{}"}, ()),
}


@sentences(NAMES, "annotations, names")
def test_names_of_the_vms_that_stand_there(annotations: dict[str, str], names: tuple[str, ...]) -> None:
    found = names_by_key(annotations, [vmim("Running")], [vmi("vm1")])
    assert tuple(sorted(found.values())) == names


def test_a_long_name_is_known_by_its_migration() -> None:
    key = migrating_key(LONG_NAME)
    assert names_by_key([key], [vmim("Running", LONG_NAME)], []) == {key: LONG_NAME}
    assert names_by_key([key], [], [])[key].startswith("a-very-long-name")
