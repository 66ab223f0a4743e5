"""Takeover: the marks, adoption of what Harvester wrote, and a person's off switch."""

from __future__ import annotations

from functools import partial

from pkg.util.resourcequota.entries import migrating_key
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import Case, observed, sentences
from tests.objects import ENTRY, HARD, LONG_NAME, OWNER, RAISED, SKIP, by_name, by_uid, quota, vmi, vmim

TAKEOVER = Policy(Mode.TAKEOVER)


def test_our_skip_is_put_back_when_it_alone_is_removed() -> None:
    made = plan(observed(quota(annotations={OWNER: "headroom"})), TAKEOVER)
    assert made.annotations == {SKIP: "true"}


LARGER = '{"limits.cpu":"2","limits.memory":"5622461313"}'
SMALLER = '{"limits.cpu":"1","limits.memory":"1Gi"}'
SMALLER_CPU = '{"limits.cpu":"1","limits.memory":"4737464313"}'
RAISED_SMALLER = {"limits.cpu": "4", "limits.memory": "6024Mi"}
MIXED = '{"limits.cpu":"3","limits.memory":"1Gi"}'
adopted = partial(Case, raised=HARD)
LONG, ABORTED = [vmim("Running", vm=LONG_NAME)], [vmim("Running", abort=True)]
ADOPTED = {
    "an entry by uid goes under the name": adopted({by_uid(): ENTRY}, {by_name(): ENTRY}, RAISED),
    "an entry by name stays where it is": adopted({by_name(): ENTRY}, {by_name(): ENTRY}, RAISED),
    "a VM under both forms counts once": adopted({by_name(): ENTRY, by_uid(): ENTRY}, {by_name(): ENTRY}, RAISED),
    "an entry that is too large follows what the VM needs": adopted({by_uid(): LARGER}, {by_name(): ENTRY}, RAISED),
    "an entry that is too small follows what the VM needs": adopted({by_uid(): SMALLER}, {by_name(): ENTRY}, RAISED),
    "a long name's entry by uid goes under its hashed key": adopted(
        {by_uid(LONG_NAME): ENTRY}, {migrating_key(LONG_NAME): ENTRY}, RAISED, migrations=LONG
    ),
    "a long name's unhashed key cannot be": adopted(
        {migrating_key(LONG_NAME): ENTRY, by_uid(LONG_NAME): ENTRY},
        {migrating_key(LONG_NAME): ENTRY},
        RAISED,
        migrations=LONG,
    ),
    "garbage beside a readable entry is left out": adopted(
        {by_name(): "{nope", by_uid(): LARGER}, {by_name(): ENTRY}, RAISED
    ),
    "while it is aborted, no more stays than it would be granted": adopted(
        {by_name(): ENTRY, by_uid(): LARGER}, {by_name(): ENTRY}, RAISED, migrations=ABORTED
    ),
    "while it is aborted, nothing is added to what stands": adopted(
        {by_uid(): SMALLER}, {by_name(): SMALLER}, RAISED_SMALLER, migrations=ABORTED
    ),
    "while it is aborted, the greater is taken of each resource by itself": adopted(
        {by_name(): MIXED, by_uid(): SMALLER_CPU},
        {by_name(): '{"limits.cpu":"2","limits.memory":"4737464313"}'},
        RAISED,
        migrations=ABORTED,
    ),
    "once its VM is over nothing stays": adopted(
        {by_name(): ENTRY}, {}, HARD, instances=[vmi(phase="Succeeded")], migrations=[vmim()]
    ),
    "once its VM is gone nothing stays": adopted({by_name(): ENTRY}, {}, HARD, instances=[], migrations=ABORTED),
}


@sentences(ADOPTED)
def test_adoption(case: Case) -> None:
    case.settles(Mode.TAKEOVER)
