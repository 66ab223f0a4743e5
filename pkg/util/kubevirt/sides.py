"""Which pods are sides of a VM. Pure: evidence in, sides out.

The base of a quota pays for one side of every VM; what is added is for the other one. `evidence` says what is believed.
KubeVirt itself takes the newest pod with the right controller reference for the source: it can be fooled, so where
several pods qualify the smallest counts, resource by resource.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kubeloop.api.core import Pod
from kubeloop.api.objects import by_creation
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceStatus
from pkg.util import constants
from pkg.util.kubevirt.evidence import POD, VMI, controller_of, is_running, trusted_status, vm_of
from pkg.util.kubevirt.migration import MigrationPods, pods_of, pods_of_migrations
from pkg.util.kubevirt.target import Side
from pkg.util.quotacount.usage import is_live


@dataclass(frozen=True, slots=True)
class Sides:
    """A VM's pods by side.

    `home` is where the VM lives, `target` where a migration under way takes it: each has more than one element only
    where several pods qualify, and is then worth the smallest of them. `old` are the sides that earlier migrations, or
    one whose VM has `arrived`, left behind and that still count.
    """

    home: tuple[Side, ...] = ()
    target: tuple[Side, ...] = ()
    old: tuple[Side, ...] = ()
    arrived: bool = False


class ControlledPods:
    """A namespace's launcher pods by the uid of the VMI that they name as their controller, with their attachment
    pods; only what Kubernetes still charges at `now` (seconds since the epoch). That a pod names a VMI proves
    nothing."""

    def __init__(self, pods: Iterable[Pod], now: float | None = None) -> None:
        self.sides: dict[str, list[Side]] = defaultdict(list)
        """Oldest first."""
        self.live: dict[str, list[Side]] = defaultdict(list)
        """Those whose launcher itself counts; attachment pods may outlive it for a moment."""
        self.ended: dict[str, list[Pod]] = defaultdict(list)
        """The launcher pods that are over: only count/pods still counts them."""
        self.named: dict[str, Side] = {}
        """The sides of all VMIs by the name of the launcher pod."""
        launchers: list[Pod] = []
        attached: dict[str, list[Pod]] = defaultdict(list)
        for pod in sorted(pods, key=by_creation):
            kind = pod.labels.get(constants.LABEL_APP)
            if kind == constants.APP_VIRT_LAUNCHER:
                launchers.append(pod)
            elif kind == constants.APP_HOTPLUG_DISK and is_live(pod, now):
                attached[controller_of(pod, POD).uid].append(pod)
        for pod in launchers:
            uid, live = controller_of(pod, VMI).uid, is_live(pod, now)
            if pod.terminal:
                self.ended[uid].append(pod)
            if uid and (live or pod.uid in attached):
                # One attachment pod a side: KubeVirt replaces it when another volume is plugged in.
                side = self.named[pod.name] = Side(pod, tuple(attached.get(pod.uid, ())[:1]))
                self.sides[uid].append(side)
                self.live[uid] += [side] if live else []

    def concerning(
        self, vmi: VirtualMachineInstance | None, migrations: Iterable[VirtualMachineInstanceMigration]
    ) -> list[Pod]:
        """Every pod that may make a difference to a VM's sides: those that name its VMI, and those that the VMI's or
        its migrations' status names."""
        uid = vmi.uid if vmi else ""
        statuses = [*(each.status for each in migrations), *([trusted_status(vmi)] if vmi else ())]
        states = [each.migration_state for each in statuses]
        names = [name for state in states if state for name in (state.source_pod, state.target_pod)]
        sides = (*self.sides.get(uid, ()), *(self.named[name] for name in names if name in self.named))
        return [pod for side in sides for pod in (side.launcher, *side.attachments)] + self.ended.get(uid, [])


def sides_of(
    vmi: VirtualMachineInstance | None, migrations: Sequence[VirtualMachineInstanceMigration], pods: ControlledPods
) -> Sides:
    """The sides of a VM that KubeVirt vouches for; `migrations` are all of the VM's, finished or not."""
    status = trusted_status(vmi) if vmi else VirtualMachineInstanceStatus()
    told = pods_of_migrations(status.migration_state, migrations, pods.named)
    if vmi is None or not is_running(vmi):
        return _pair(told, pods)
    node = status.node_name
    live, every = pods.live.get(vmi.uid, []), pods.sides.get(vmi.uid, [])
    active = [each for each in told if each.active]
    target = _targets(live, active)
    if target and _has_arrived(node, live, target, active):
        home = tuple(side for side in target if side.launcher.spec.node_name == node)
        return Sides(home, (), _left_over(every, home, told), arrived=True)
    home = _home(node, live, target, active)
    if not home:
        return _pair(told, pods)
    others = [side for side in every if side not in target]
    return Sides(home, target, _left_over(others, home, [each for each in told if not each.active]))


def ended_launchers(
    vmi: VirtualMachineInstance, migrations: Sequence[VirtualMachineInstanceMigration], pods: ControlledPods
) -> list[Pod]:
    """The launcher pods that migrations of this VM have left behind and that are over: those that KubeVirt names as a
    source or a target. It leaves them for a while, and count/pods counts them."""
    ended = pods.ended.get(vmi.uid, [])
    state = trusted_status(vmi).migration_state
    told = pods_of_migrations(state, migrations, {pod.name for pod in ended}) if ended else []
    return [
        p for p in ended if any((each.source == p.name and each.fits_source(p)) or each.is_target(p) for each in told)
    ]


def target_launchers(
    migration: VirtualMachineInstanceMigration, vmi: VirtualMachineInstance, pods: Iterable[Pod]
) -> list[Pod]:
    """Returns the migration's target launcher, if it was created, whatever became of it."""
    launchers = [Side(pod) for pod in pods if vm_of(pod) and controller_of(pod, VMI).uid == vmi.uid]
    told = pods_of(migration, trusted_status(vmi).migration_state)
    return [side.launcher for side in _targets(launchers, [told])]


# ---- which side is which -------------------------------------------------------------------------------------


def _targets(live: Sequence[Side], active: Sequence[MigrationPods]) -> tuple[Side, ...]:
    """Those that are named once the migration has been handed over; before, those that virt-controller itself would
    take for the target."""
    named = tuple(side for side in live if any(each.is_target(side.launcher) for each in active))
    sources = {each.source for each in active}
    unnamed = [each for each in active if not each.target]
    return named or tuple(
        side
        for side in live
        if side.launcher.name not in sources and any(each.is_labelled(side.launcher) for each in unnamed)
    )


def _has_arrived(
    node: str | None, live: Sequence[Side], target: Sequence[Side], active: Sequence[MigrationPods]
) -> bool:
    """Whether the VM lives in its target already: KubeVirt moves its VMI's nodeName first."""
    here = [side for side in target if node and side.launcher.spec.node_name == node]
    if not here:
        return False
    if any(n.is_target(side.launcher) and n.source_node != node for side in here for n in active):
        return True
    sources = [side for side in live if side not in target and side.launcher.spec.node_name == node]
    return not any(n.fits_source(side.launcher) for side in sources for n in active)


def _home(
    node: str | None, live: Sequence[Side], target: Sequence[Side], active: Sequence[MigrationPods]
) -> tuple[Side, ...]:
    """The source that an active migration names, and what runs on the VMI's node and is not younger."""
    found = list[Side]()
    for side in live:
        fitting = [each for each in active if each.fits_source(side.launcher)]
        named = any(each.source == side.launcher.name for each in fitting)
        here = bool(node) and side.launcher.spec.node_name == node and (bool(fitting) or not active)
        if side not in target and (named or here):
            found.append(side)
    return tuple(found)


def _left_over(sides: Sequence[Side], home: Sequence[Side], told: Sequence[MigrationPods]) -> tuple[Side, ...]:
    """The sides that these migrations name and in which the VM does not live."""
    lives_in = {side.launcher.name for side in home}

    def is_left_over(pod: Pod, each: MigrationPods) -> bool:
        if each.is_source(pod):
            return each.known or each.target in lives_in
        return each.is_target(pod) and (each.known or each.source in lives_in)

    return tuple(side for side in sides if side not in home and any(is_left_over(side.launcher, each) for each in told))


def _pair(told: Sequence[MigrationPods], pods: ControlledPods) -> Sides:
    """Nothing says where the VM lives: only of a migration that names both of its pods one is beyond the base."""
    for each in told:
        source, target = pods.named.get(each.source), pods.named.get(each.target)
        if source is None or target is None or source is target:
            continue
        same_vm = controller_of(source.launcher, VMI).uid == controller_of(target.launcher, VMI).uid
        if same_vm and each.known and each.is_source(source.launcher) and each.is_target(target.launcher):
            return Sides((target,), (), (source,))
    return Sides()
