"""The lowest limits that a quota may have, by the controller's own plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import RawResourceList
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.names import migrating_key
from pkg.util.resource_list import format_resource_list
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.webhook.resources.resourcequota.guard import (
    FINE,
    at_most,
    judge,
    judge_by_journal,
    lowered,
    migrating,
    names_of_entries,
)
from tests.decisions import observed, sentences
from tests.objects import (
    AT_4_5,
    COMPENSATION,
    ENTRY,
    HARD,
    LONG_NAME,
    MARKS,
    RAISED,
    SKIP,
    by_name,
    by_uid,
    launcher,
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

    to: RawResourceList
    lowest: dict[str, str] = field(default_factory=dict)
    was: RawResourceList = field(default_factory=lambda: dict(RAISED))
    annotations: dict[str, str] = field(default_factory=lambda: dict(ONE))
    removes: tuple[str, ...] = ()
    migrations: tuple[VirtualMachineInstanceMigration, ...] = (vmim("Running"),)
    policy: Policy = TAKEOVER
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def old(self) -> ResourceQuota:
        return quota(self.was, self.annotations)

    @property
    def new(self) -> ResourceQuota:
        left = {key: text for key, text in self.annotations.items() if key not in self.removes}
        return quota(self.to, left)


FINE_WRITES = {
    "nothing changes": Write(dict(RAISED)),
    "another spelling of the same": Write({"limits.cpu": "5000m", "limits.memory": "9980344313000m"}),
    "it is raised": Write({"limits.cpu": "50", "limits.memory": "1Ti"}),
    "it is raised by another client to less than is needed": Write(
        {"limits.cpu": "4", "limits.memory": "9980344313"},
        was={"limits.cpu": "3", "limits.memory": "9980344313"},
    ),
    "a limit is taken away": Write({"limits.cpu": "5"}),
    "lowered, but not below what is needed": Write(
        dict(RAISED), was={"limits.cpu": "9", "limits.memory": "1Ti"}
    ),
    "outside migrations down to anything": Write({"limits.cpu": "1"}, annotations=dict(MARKS), migrations=()),
    "outside migrations to zero": Write(
        {"limits.cpu": "0", "limits.memory": "0"}, annotations=dict(MARKS), migrations=()
    ),
    "a finished migration's entry goes with its room": Write(
        dict(HARD), removes=(by_name(),), migrations=(vmim("Succeeded"),)
    ),
    "a deleted migration's entry goes with its room": Write(dict(HARD), removes=(by_name(),), migrations=()),
    "one of two is over": Write(
        dict(RAISED),
        was=RAISED_TWICE,
        annotations=TWO,
        removes=(by_name("vm2"),),
        migrations=(vmim("Running"), vmim("Failed", "vm2")),
    ),
    "a limit that headroom does not scale": Write({**RAISED, "secrets": "1"}, was={**RAISED, "secrets": "9"}),
    "a person has switched headroom off": Write(dict(HARD), annotations={SKIP: "true", by_name(): ENTRY}),
    "the namespace has no base": Write(dict(HARD), more={"limits": ""}),
    "a finished one without its entry, beside Harvester": Write(
        dict(HARD),
        annotations={by_uid(): ENTRY},
        removes=(by_uid(),),
        migrations=(vmim("Succeeded"),),
        policy=ASSIST,
    ),
}

TOO_LOW = {
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
    "the entry goes although its VM migrates": Write(dict(HARD), dict(RAISED), removes=(by_name(),)),
    "two VMs migrate": Write(
        dict(RAISED), RAISED_TWICE, was=RAISED_TWICE, annotations=TWO,
        migrations=(vmim("Running"), vmim("Running", "vm2")),
    ),
    "the entry of an unknown migration": Write(dict(HARD), dict(RAISED), migrations=()),
    "by uid, beside Harvester": Write(dict(HARD), dict(RAISED), annotations={by_uid(): ENTRY}, policy=ASSIST),
    "an older form of the key": Write(dict(HARD), dict(RAISED), annotations={**MARKS, by_uid(): ENTRY}),
    "an unknown phase": Write(dict(HARD), dict(RAISED), migrations=(vmim("WaitingForSync"),)),
    "an abort that was asked for": Write(dict(HARD), dict(RAISED), migrations=(vmim("Running", abort=True),)),
    "a larger base since": Write(
        dict(RAISED), {"limits.cpu": "6"}, was={"limits.cpu": "9", "limits.memory": "9980344313"},
        more={"limits": '{"limit":{"limitsCpu":"4","limitsMemory":"5000Mi"}}'},
    ),
}  # fmt: skip


@sentences(FINE_WRITES)
def test_nothing_is_said_about(case: Write) -> None:
    assert not judge(case.old, observed(case.new, case.migrations, **case.more), case.policy)


@sentences(TOO_LOW)
def test_too_low(case: Write) -> None:
    verdict = judge(case.old, observed(case.new, case.migrations, **case.more), case.policy)
    assert format_resource_list(verdict.lowest) == case.lowest
    assert verdict.migrating


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ({"limits.cpu": "2"}, {"limits.cpu": "1999m"}, {"limits.cpu"}),
        ({"limits.cpu": "2"}, {"limits.cpu": "2000m"}, set()),
        ({"limits.cpu": "2"}, {}, set()),
        ({}, {"limits.cpu": "2"}, {"limits.cpu"}),
        ({"limits.cpu": "2", "pods": "5"}, {"limits.cpu": "3", "pods": "4"}, {"pods"}),
        ({"limits.cpu": "2"}, {"limits.cpu": "garbage"}, set()),
    ],
)
def test_which_limits_fall(old: RawResourceList, new: RawResourceList, names: set[str]) -> None:
    assert lowered(quota(old), quota(new)) == names


def test_the_journal_knows_what_a_cache_does_not_know_yet() -> None:
    """The entry was written for a migration that is newer than the finished one in the cache."""
    write = Write(dict(HARD), migrations=(vmim("Succeeded"),))
    view = observed(write.new, write.migrations)
    assert not judge(write.old, view, TAKEOVER)
    assert format_resource_list(judge_by_journal(write.old, view, TAKEOVER).lowest) == RAISED


def test_the_journal_asks_for_nothing_where_nothing_stands() -> None:
    write = Write(dict(HARD), removes=(by_name(),))
    assert judge_by_journal(write.old, observed(write.new, write.migrations), TAKEOVER) == FINE


def test_who_estimates_more_does_not_stop_who_estimates_less() -> None:
    """The controller runs with Harvester's numbers and lowers as it should; here the need is what quota counts."""
    exact = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
    was = quota(RAISED_TWICE, TWO)
    left = {key: text for key, text in TWO.items() if key != by_name("vm2")}
    view = observed(quota(dict(RAISED), left), [vmim("Running"), vmim("Succeeded", "vm2")])
    assert not judge(was, view, exact)


def test_a_migration_that_is_wanted_and_has_no_entry_yet_is_a_need() -> None:
    view = observed(quota(dict(HARD), MARKS), [vmim("Pending")])
    verdict = judge(quota(dict(RAISED), MARKS), view, TAKEOVER)
    assert format_resource_list(verdict.lowest) == RAISED
    assert verdict.migrating == ("vm1",)


def test_compensation_counts_as_long_as_its_migration_is_refused() -> None:
    """The VM lives at ratio 4.5, where its base was made for 1.5."""
    annotations = {**ONE, COMPENSATION: '{"limits.memory":"512Mi"}'}
    used = {"limits.cpu": "3", "limits.memory": str(9980344313 - 4737464313 + 2**29)}
    was = {"limits.cpu": "5", "limits.memory": str(9980344313 + 2**30)}
    here = vmi(nodeName="node-1")
    view = observed(
        quota(dict(RAISED), annotations, used=used), [vmim("Pending", refused=True)], [here], ratio="4.5"
    )
    view = replace(view, pods=[launcher(here, rendering=AT_4_5)], rendering=AT_4_5)
    verdict = judge(quota(was, annotations, used=used), view, TAKEOVER)
    assert set(verdict.lowest) == {"limits.memory"}
    assert verdict.lowest["limits.memory"].value() > int(RAISED["limits.memory"])


NAMES = {
    "by name": ({by_name("vm7"): ENTRY}, ("vm7",)),
    "by uid of a VMI that is known": ({by_uid("vm1"): ENTRY}, ("vm1",)),
    "by uid of one that is not": ({by_uid("other"): ENTRY}, ("uid-other",)),
    "in order, each once": ({by_name("b"): ENTRY, by_name("a"): ENTRY}, ("a", "b")),
    "no migration": ({COMPENSATION: "{}"}, ()),
}


@sentences(NAMES)
def test_names_of_the_vms_that_stand_there(case: tuple[dict[str, str], tuple[str, ...]]) -> None:
    annotations, names = case
    assert names_of_entries(observed(quota(annotations=annotations), [vmim("Running")])) == names


def test_a_long_name_is_known_by_its_migration() -> None:
    view = observed(
        quota(annotations={migrating_key(LONG_NAME): ENTRY}), [vmim("Running", LONG_NAME)], [vmi(LONG_NAME)]
    )
    assert names_of_entries(view) == (LONG_NAME,)
    assert names_of_entries(observed(view.quota))[0].startswith("a-very-long-name")


MIGRATING = {
    "an entry stands": (quota(annotations=ONE), (vmim("Running"),), ("vm1",)),
    "one is due": (quota(annotations=MARKS), (vmim("Pending"),), ("vm1",)),
    "it is over": (quota(annotations=ONE), (vmim("Succeeded"),), ()),
    "nothing migrates": (quota(annotations=MARKS), (), ()),
    "it is switched off": (quota(annotations={SKIP: "true", by_name(): ENTRY}), (vmim("Running"),), ()),
    "it is not one of ours": (quota(annotations=ONE, labels={}), (vmim("Running"),), ()),
}


@sentences(MIGRATING)
def test_who_migrates(
    case: tuple[ResourceQuota, tuple[VirtualMachineInstanceMigration, ...], tuple[str, ...]],
) -> None:
    found, migrations, names = case
    assert migrating(observed(found, migrations), TAKEOVER) == names


def test_one_verdict_asks_for_nothing_that_another_does_not() -> None:
    low = judge(Write(dict(HARD)).old, observed(Write(dict(HARD)).new, [vmim("Running")]), TAKEOVER)
    assert at_most(FINE, low)
    assert at_most(low, low)
    assert not at_most(low, FINE)
