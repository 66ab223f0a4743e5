"""The pods that are sides of a VM, as far as they can be trusted (`evidence`). Pure.

The base of a quota pays for one side of every VM; headroom is for the other one. KubeVirt itself takes the newest pod
with the right controller reference for the source: it can be fooled, so where several pods qualify the smallest counts,
resource by resource."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kubeloop.api.core import Pod
from kubeloop.api.objects import by_creation
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceStatus
from pkg.util import constants
from pkg.util.kubevirt.evidence import POD, VMI, controller_of, is_running, trusted_status
from pkg.util.kubevirt.migration import MigrationPods, Migrations, pods_of_migrations
from pkg.util.kubevirt.target import Side
from pkg.util.quotacount.usage import is_live


@dataclass(frozen=True, slots=True)
class Sides:
    """A VM's pods by side: `source` is where it lives, `target` where a migration under way takes it, several where
    several pods qualify; `leftovers` still count after earlier migrations, or one that `has_arrived`."""

    source: tuple[Side, ...] = ()
    target: tuple[Side, ...] = ()
    leftovers: tuple[Side, ...] = ()
    has_arrived: bool = False


class ControlledPods:
    """A namespace's launcher pods by the uid of the VMI that they name as their controller, which proves nothing, with
    their attachment pods; only pods that Kubernetes still charges at `now` (seconds since the epoch)."""

    def __init__(self, pods: Iterable[Pod], now: float | None = None) -> None:
        self.sides: dict[str, list[Side]] = defaultdict(list)
        """Oldest first."""
        self.live_sides: dict[str, list[Side]] = defaultdict(list)
        """The sides whose launcher itself counts; attachment pods may outlive it for a moment."""
        self.ended_launchers: dict[str, list[Pod]] = defaultdict(list)
        """The terminated launcher pods: only count/pods still counts them."""
        self.side_by_launcher: dict[str, Side] = {}
        """By the name of the launcher pod."""
        launchers, attachments = list[Pod](), dict[str, tuple[Pod, ...]]()
        for pod in sorted(pods, key=by_creation):
            kind = pod.labels.get(constants.LABEL_APP)
            if kind == constants.APP_VIRT_LAUNCHER:
                launchers.append(pod)
            elif kind == constants.APP_HOTPLUG_DISK and is_live(pod, now):
                # One a side, the oldest: KubeVirt replaces it when another volume is plugged in.
                attachments.setdefault(controller_of(pod, POD).uid, (pod,))
        for pod in launchers:
            uid, live = controller_of(pod, VMI).uid, is_live(pod, now)
            if pod.terminal:
                self.ended_launchers[uid].append(pod)
            if uid and (live or pod.uid in attachments):
                side = self.side_by_launcher[pod.name] = Side(pod, attachments.get(pod.uid, ()))
                self.sides[uid].append(side)
                self.live_sides[uid] += [side] if live else []

    def pods_concerning(self, vmi: VirtualMachineInstance | None, migrations: Migrations) -> list[Pod]:
        """Returns the pods that name the VMI, and those that its status or its migrations' names."""
        uid, states = vmi.uid if vmi else "", [migration.status.migration_state for migration in migrations]
        states += [trusted_status(vmi).migration_state] if vmi else []
        names = [name for state in states if state for name in (state.source_pod, state.target_pod)]
        named = [self.side_by_launcher[name] for name in names if name in self.side_by_launcher]
        sides = [*self.sides.get(uid, ()), *named]
        return [p for s in sides for p in (s.launcher, *s.attachments)] + self.ended_launchers.get(uid, [])


def sides_of(vmi: VirtualMachineInstance | None, migrations: Migrations, pods: ControlledPods) -> Sides:
    """Returns the sides of a VM that KubeVirt vouches for; `migrations` are all of the VM's, finished or not."""
    status = trusted_status(vmi) if vmi else VirtualMachineInstanceStatus()
    migration_pods = pods_of_migrations(status.migration_state, migrations, pods.side_by_launcher)
    if vmi is None or not is_running(vmi):
        return _named_pair(migration_pods, pods)
    node = status.node_name
    live, all_sides = pods.live_sides.get(vmi.uid, []), pods.sides.get(vmi.uid, [])
    active = [migration for migration in migration_pods if migration.is_active]
    target = _target_sides(live, active)
    if target and _has_arrived(node, live, target, active):
        source = tuple(side for side in target if side.launcher.spec.node_name == node)
        return Sides(source, (), _leftover_sides(all_sides, source, migration_pods), has_arrived=True)
    source = _source_sides(node, live, target, active)
    if not source:
        return _named_pair(migration_pods, pods)
    other_sides = [side for side in all_sides if side not in target]
    ended = [migration for migration in migration_pods if not migration.is_active]
    return Sides(source, target, _leftover_sides(other_sides, source, ended))


def ended_launchers(vmi: VirtualMachineInstance, migrations: Migrations, pods: ControlledPods) -> list[Pod]:
    """Returns the terminated launcher pods of this VM that KubeVirt names as a migration's source or target. KubeVirt
    leaves them for a while, and count/pods counts them."""
    ended_pods = pods.ended_launchers.get(vmi.uid, [])
    state = trusted_status(vmi).migration_state
    named = pods_of_migrations(state, migrations, {pod.name for pod in ended_pods}) if ended_pods else []
    return [pod for pod in ended_pods if any((m.source and m.is_source(pod)) or m.is_target(pod) for m in named)]


def _target_sides(live: Sequence[Side], active: Sequence[MigrationPods]) -> tuple[Side, ...]:
    """Returns the sides that KubeVirt names as a target once the migration has been handed over; before, those that
    virt-controller itself would take for the target."""
    if named_sides := tuple(side for side in live if any(m.is_target(side.launcher) for m in active)):
        return named_sides
    sources, without_target = {m.source for m in active}, [m for m in active if not m.target]
    others = (side for side in live if side.launcher.name not in sources)
    return tuple(side for side in others if any(m.is_labelled(side.launcher) for m in without_target))


def _has_arrived(
    node: str | None, live: Sequence[Side], target: Sequence[Side], active: Sequence[MigrationPods]
) -> bool:
    """Reports whether the VM lives in its target already: KubeVirt moves its VMI's nodeName first."""
    here = [side for side in live if node and side.launcher.spec.node_name == node]
    targets_here = [side.launcher for side in here if side in target]
    if not targets_here or any(m.is_target(pod) and m.source_node != node for pod in targets_here for m in active):
        return bool(targets_here)
    return not any(m.fits_source(side.launcher) for side in here if side not in target for m in active)


def _source_sides(
    node: str | None, live: Sequence[Side], target: Sequence[Side], active: Sequence[MigrationPods]
) -> tuple[Side, ...]:
    """Returns the source that an active migration names, and the sides on the VMI's node that are not younger."""

    def is_source(pod: Pod) -> bool:
        fitting = [migration for migration in active if migration.fits_source(pod)]
        is_here = bool(node) and pod.spec.node_name == node and (bool(fitting) or not active)
        return is_here or any(migration.source == pod.name for migration in fitting)

    return tuple(side for side in live if side not in target and is_source(side.launcher))


def _leftover_sides(
    sides: Sequence[Side], source: Sequence[Side], migration_pods: Sequence[MigrationPods]
) -> tuple[Side, ...]:
    """Returns the sides that these migrations name and in which the VM does not live."""
    source_names = {side.launcher.name for side in source}

    def is_leftover(pod: Pod, migration: MigrationPods) -> bool:
        if migration.is_source(pod):
            return migration.is_known or migration.target in source_names
        return migration.is_target(pod) and (migration.is_known or migration.source in source_names)

    others = (side for side in sides if side not in source)
    return tuple(side for side in others if any(is_leftover(side.launcher, m) for m in migration_pods))


def _named_pair(migration_pods: Sequence[MigrationPods], pods: ControlledPods) -> Sides:
    """Returns the sides of a VM whose node is unknown: a leftover side exists only if one migration names both pods."""
    for migration in migration_pods:
        source, target = pods.side_by_launcher.get(migration.source), pods.side_by_launcher.get(migration.target)
        if source is None or target is None or source is target or not migration.is_known:
            continue
        uids = {controller_of(side.launcher, VMI).uid for side in (source, target)}
        if len(uids) == 1 and migration.is_source(source.launcher) and migration.is_target(target.launcher):
            return Sides((target,), (), (source,))
    return Sides()
