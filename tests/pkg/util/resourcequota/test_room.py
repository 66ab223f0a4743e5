"""used − what the migrations take + the pod ≤ base; whether a VM can start, by the same sum."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kubeloop.api.core import Pod
from kubeloop.api.meta import from_rfc3339
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, format_resource_list, parse_resource_list
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstanceMigration
from pkg.util.kubevirt.expansion import vmi_of
from pkg.util.kubevirt.target import launcher_usage
from pkg.util.quotacount.releases import NEWEST
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.util.resourcequota.room import Candidate, Pods, QuotaRoom, shortage_of
from tests.decisions import named, observed, sentences
from tests.objects import BASE, ENTRY, by_name, by_uid, limits_text, plain_launcher, pod, quota, vm, vmi, vmim

POLICY = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
UID = "uid-migration-of-vm1"


def cpu(**amounts: str) -> ResourceList:
    return {name.replace("_", "."): Quantity.parse(value) for name, value in amounts.items()}


def room_of(base: str = "3", hard: str = "5", counted: str = "2", migrations: str = "0", used: str = "") -> QuotaRoom:
    lists = (cpu(limits_cpu=value) for value in (base, hard, used or counted, counted, migrations))
    by_base, by_hard, by_used, by_pods, by_migrations = lists
    return QuotaRoom(Facts(quota()), by_base, by_hard, by_used, by_pods, by_migrations)


FULL, LOWERED, BEHIND = (
    room_of(counted="5", migrations="2"),
    room_of(hard="3", counted="4", migrations="2"),
    room_of(used="3"),
)
LET_IN = [cpu(limits_cpu="400m"), cpu(limits_cpu="500m")]
JUST_ENDED = replace(BEHIND, ended=cpu(limits_cpu="1"))
BALANCES: dict[str, tuple[QuotaRoom, Sequence[ResourceList] | None, str, str]] = {
    "what is left of the base": (room_of(counted="2"), [], "1", ""),
    "a thousandth more": (room_of(counted="2"), [], "1001m", "1"),
    "the target is there and takes its room": (room_of(counted="4", migrations="2"), [], "1", ""),
    "nothing is left beside the target": (FULL, [], "1m", "0"),
    "a target larger than what was added takes of the base": (
        room_of(counted="5", hard="4", migrations="3"), [], "1m", "-1",
    ),
    "room that is not taken yet stays free": (room_of(counted="3"), [], "1m", "0"),
    "above the base already": (room_of(counted="4"), [], "1m", "-1"),
    "no room was added": (room_of(hard="3", counted="2", migrations="1"), [], "1", ""),
    "no room was added, and none is left": (
        room_of(hard="3", counted="3", migrations="1"), [],
        "1m",
        "0",
    ),
    "the limit is below the base for a moment": (room_of(hard="2", counted="2"), [], "1", ""),
    "a pod that wants nothing": (room_of(counted="9"), [], "0", ""),
    "beside what is there all that migrations take is theirs": (LOWERED, None, "1", ""),
    "and no more": (LOWERED, None, "1001m", "1"),
    "by what is added it is not": (LOWERED, [], "1", "-1"),
    "what was let through is taken": (room_of(), LET_IN, "101m", "100m"),
    "the rest is not": (room_of(), LET_IN, "100m", ""),
    "status.used counts where it is more than the pods": (BEHIND, [], "1", "0"),
    "it may still count what has just ended": (JUST_ENDED, [], "1", ""),
    "and nothing else": (JUST_ENDED, [], "1001m", "1"),
}  # fmt: skip


@sentences(BALANCES, "room, pending, need, expected")
def test_whether_a_pod_fits(room: QuotaRoom, pending: Sequence[ResourceList] | None, need: str, expected: str) -> None:
    missing = format_resource_list(room.lacking(cpu(limits_cpu=need), pending))
    assert missing == ({"limits.cpu": expected} if expected else {})


def test_a_resource_that_is_not_scaled_is_quotas_affair() -> None:
    assert not room_of(counted="9").lacking(cpu(limits_memory="1Gi"), [])


def test_what_migrations_take_is_the_target_beside_the_source() -> None:
    source, target = plain_launcher(node="node1"), plain_launcher(node="node2", target_of=UID)
    view = observed(quota(), [vmim("Running")], [vmi("vm1", nodeName="node1")])
    room = QuotaRoom.from_facts(view, POLICY, Pods([source, target, pod("500m")]))
    assert room is not None
    assert room.used_headroom["limits.cpu"] == Quantity.parse("2")


def test_a_source_that_is_left_over_is_taken_off_too() -> None:
    source, main = plain_launcher(node="node1"), plain_launcher(node="node2", target_of=UID)
    here = vmi("vm1", nodeName="node2")
    view = observed(quota(), [named(vmim("Succeeded"), [source, main], [here])], [here])
    room = QuotaRoom.from_facts(view, POLICY, Pods([source, main]))
    assert room is not None
    assert room.used_headroom["limits.cpu"] == Quantity.parse("2")
    room = QuotaRoom.from_facts(view, POLICY, Pods([plain_launcher(node="node1", phase="Succeeded"), main]))
    assert room is not None
    assert not room.used_headroom


def test_limited_resources_are_summed_over_counted_pods() -> None:
    pods = [pod("1"), pod("500m"), pod("2", phase="Succeeded"), pod("banana")]
    room = QuotaRoom.from_facts(
        observed(quota({"limits.cpu": "5", "secrets": "9"}, used={"limits.cpu": "7"})), POLICY, Pods(pods)
    )
    assert room is not None
    assert (room.counted, room.ended) == (cpu(limits_cpu="1500m"), {})
    assert room.used == cpu(limits_cpu="7")


def test_status_may_still_count_what_has_ended() -> None:
    stuck = pod("1", deletionTimestamp="2020-01-01T00:00:00Z", deletionGracePeriodSeconds=30)
    gone, finished = pod("250m"), pod("4", phase="Succeeded")
    pods = Pods([stuck, finished], {gone_pod.uid: gone_pod for gone_pod in (gone, finished)})
    for age, counted, ended_usage in ((30, "1", "250m"), (31, "0", "1250m")):
        now = from_rfc3339("2020-01-01T00:00:00Z") + age
        room = QuotaRoom.from_facts(observed(quota(), now=now), POLICY, pods)
        assert room is not None
        assert room.counted.get("limits.cpu", ZERO) == Quantity.parse(counted)
        assert room.ended["limits.cpu"] == Quantity.parse(ended_usage)


def test_without_a_readable_base_nothing_is_shared_out() -> None:
    assert QuotaRoom.from_facts(observed(quota(), limits="garbage"), POLICY, Pods()) is None
    unlimited = QuotaRoom.from_facts(observed(quota(), limits=""), POLICY, Pods())
    assert unlimited is not None
    assert not unlimited.lacking(parse_resource_list({"limits.cpu": "99"}), [])


def test_a_vm_that_is_not_there_is_left_nothing() -> None:
    source = plain_launcher(node="node1")
    view = observed(quota(), [vmim("Pending")], [vmi("vm1", nodeName="node1")])
    room = QuotaRoom.from_facts(view, POLICY, Pods([source]))
    assert room is not None
    need = cpu(limits_cpu="3")
    targets = [
        Candidate("ns1", Pod(), NEWEST, need, "uid", migration=uid) for uid in (room.facts.migrations[0].uid, "x")
    ]
    assert [room.need_of(target) for target in targets] == [cpu(limits_cpu="1"), need]


# ---- a VM's start --------------------------------------------------------------------------------------------

CPU = "cpu insufficient resources due to resource quota"
MEMORY = "memory insufficient resources due to resource quota"
NEED_MEMORY = 4797464313
"""4Gi, the overhead at ratio 1.5, and 60M for the console log."""


def need_of(machine: VirtualMachine, facts: Facts) -> ResourceList:
    return launcher_usage(vmi_of(machine), None, facts.rendering, facts.quota.spec)


def test_the_need_is_what_quota_will_count_of_the_whole_template() -> None:
    need = need_of(vm(), observed(quota()))
    assert need["limits.cpu"] == Quantity.parse("2015m")
    assert need["limits.memory"] == Quantity.of(NEED_MEMORY)
    gpu = vm(domain={"devices": {"gpus": [{"name": "g", "deviceName": "nvidia.com/GPU"}]}})
    difference = need_of(gpu, observed(quota()))["limits.memory"] - need["limits.memory"]
    # 1Gi for VFIO at ratio 1.5, which KubeVirt adds in whole kilobytes.
    assert abs(difference.value() - 1536 * 2**20) < 1000


OTHER = [vmi("other", nodeName="node1")]


@dataclass(frozen=True)
class StartCase:
    limits: str = BASE
    used: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    machine: VirtualMachine = field(default_factory=vm)
    pods: tuple[Pod, ...] = ()
    migrations: tuple[VirtualMachineInstanceMigration, ...] = ()

    @property
    def view(self) -> Facts:
        result = observed(
            quota({}, self.annotations, used=self.used),
            [named(migration, self.pods, OTHER) for migration in self.migrations],
            OTHER,
            limits=self.limits,
        )
        return replace(result, pods=self.pods)


BESIDE = (
    plain_launcher("other", node="node1"),
    plain_launcher("other", node="node2", target_of="uid-migration-of-other"),
)
FITS = {
    "into an empty namespace": StartCase(),
    "exactly": StartCase(limits_text("2015m", str(NEED_MEMORY))),
    "beside others": StartCase(limits_text("4", "10Gi"), {"limits.cpu": "1985m", "limits.memory": str(5 * 2**30)}),
    "only memory is limited": StartCase(limits_text(memory="10Gi"), {"limits.cpu": "99"}),
    "only storage is limited": StartCase(limits_text(requestsStorage="1Gi")),
    "nothing that counts is limited": StartCase(limits_text(pods="0")),
    "no annotation": StartCase(""),
    "an annotation that is garbage": StartCase("garbage"),
    "a limit that is garbage": StartCase(limits_text("many")),
    "an entry's room is not used": StartCase(
        limits_text("4", "20Gi"), {"limits.cpu": "3985m"}, {by_name("other"): ENTRY}
    ),
    "entries of every form": StartCase(
        limits_text("4", "20Gi"), {"limits.cpu": "5985m"}, {by_name("a"): ENTRY, by_uid("b"): ENTRY}
    ),
    "a target takes more than its entry says": StartCase(
        limits_text("6", "20Gi"), {"limits.cpu": "5985m"}, {by_name("other"): '{"limits.cpu":"1"}'}, pods=BESIDE,
        migrations=(vmim("Running", "other"),),
    ),
    "a source that is left over, its entry gone": StartCase(
        limits_text("6", "20Gi"), {"limits.cpu": "5985m"}, pods=BESIDE, migrations=(vmim("Succeeded", "other"),)
    ),
    "an entry that is garbage, its pods are there": StartCase(
        limits_text("6", "20Gi"), {"limits.cpu": "5985m"}, {by_name("other"): "x"}, pods=BESIDE,
        migrations=(vmim("Running", "other"),),
    ),
}  # fmt: skip

SHORT = {
    "a thousandth of a CPU": (StartCase(limits_text("2014m", "10Gi")), CPU),
    "a byte": (StartCase(limits_text("3", str(NEED_MEMORY - 1))), MEMORY),
    "both: the cpu is named": (StartCase(limits_text("1", "1")), CPU),
    "beside others": (StartCase(limits_text("4", "10Gi"), {"limits.cpu": "1986m"}), CPU),
    "more is used than there is": (StartCase(limits_text("4", "10Gi"), {"limits.cpu": "5"}), CPU),
    "by its requests": (StartCase(limits_text("9", "20Gi", requestsMemory="2Gi")), MEMORY),
    "its limits alone would fit": (StartCase(limits_text("2", "10Gi")), CPU),
    "beside an entry that is garbage": (
        StartCase(limits_text("4", "20Gi"), {"limits.cpu": "3"}, {by_name(): "x"}),
        CPU,
    ),
    "without the migration too": (
        StartCase(limits_text("4", "20Gi"), {"limits.cpu": "3986m"}, {by_name("other"): ENTRY}),
        CPU,
    ),
}


@sentences(FITS)
def test_it_can_start(case: StartCase) -> None:
    assert shortage_of(case.machine, case.view) is None


@sentences(SHORT, "start, reason")
def test_it_cannot_start(start: StartCase, reason: str) -> None:
    shortage = shortage_of(start.machine, start.view)
    assert str(shortage) == reason
