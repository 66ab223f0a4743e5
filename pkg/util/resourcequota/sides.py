"""A VM's pods by side: the one that the VM lives in, and those that a migration put beside it.

Quota counts every pod that is not terminal, whatever the migration says (domain: a source pod counts until it
completes). A side is a launcher pod and the attachment pods that it owns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pkg.api.core import Pod
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util import constants


@dataclass(frozen=True, slots=True)
class Side:
    """One launcher pod with its attachment pods, some of them at least counted by quota."""

    launcher: Pod
    attachments: tuple[Pod, ...] = ()

    @property
    def pods(self) -> tuple[Pod, ...]:
        return (self.launcher, *self.attachments)


@dataclass(frozen=True, slots=True)
class Sides:
    """`main` is where the VM lives, `target` where a migration under way takes it, `old` all that is left over."""

    main: Side | None = None
    target: Side | None = None
    old: tuple[Side, ...] = ()


def launcher_owner(pod: Pod) -> str:
    """The name of the VMI that a launcher pod belongs to: its owner, else KubeVirt's annotation or label."""
    for owner in pod.metadata.owner_references or ():
        if owner.kind == "VirtualMachineInstance":
            return owner.name
    return pod.annotations.get(constants.ANNOTATION_DOMAIN) or pod.labels.get(constants.LABEL_VM_NAME, "")


def sides_by_vm(pods: Iterable[Pod]) -> Mapping[str, Sequence[Side]]:
    """Every launcher pod that counts, or whose attachment pods do, with those; by VMI name, oldest first."""
    launchers: list[Pod] = []
    attached: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        kind = pod.labels.get(constants.LABEL_APP)
        if kind == constants.APP_VIRT_LAUNCHER:
            launchers.append(pod)
        elif kind == constants.APP_HOTPLUG_DISK and not pod.terminal:
            for owner in pod.metadata.owner_references or ():
                attached[owner.uid].append(pod)
    by_vm: dict[str, list[Side]] = defaultdict(list)
    for pod in sorted(launchers, key=age):
        attachments = tuple(attached.get(pod.uid, ()))
        if attachments or not pod.terminal:
            by_vm[launcher_owner(pod)].append(Side(pod, attachments))
    return by_vm


def assign(
    sides: Sequence[Side], vmi: VirtualMachineInstance | None, migration_uids: Collection[str]
) -> Sides:
    """Which side is which. `migration_uids` are the VM's migrations under way.

    The VM lives on its VMI's node (KubeVirt moves status.nodeName when the migration succeeds); where that does
    not tell, in its newest pod that is no target.
    """
    # A launcher that is over leaves attachment pods behind for a moment: the VM does not live there any more.
    over = [side for side in sides if side.launcher.terminal]
    live = [side for side in sides if not side.launcher.terminal]
    if not live:
        return Sides(main=over[-1], old=tuple(over[:-1])) if over else Sides()
    placed = _assign(live, vmi, migration_uids)
    return replace(placed, old=(*over, *placed.old))


def _assign(
    sides: Sequence[Side], vmi: VirtualMachineInstance | None, migration_uids: Collection[str]
) -> Sides:
    targets = [s for s in sides if s.launcher.labels.get(constants.LABEL_MIGRATION_JOB_UID) in migration_uids]
    target = targets[-1] if targets else None
    rest = [side for side in sides if side is not target]
    if not rest:
        return Sides(main=target)
    node = vmi.status.node_name if vmi else None
    on_node = [side for side in rest if node and side.launcher.spec.node_name == node and _belongs(side, vmi)]
    if target and node and target.launcher.spec.node_name == node and not on_node:
        # The VM has moved already, only its migration does not say so yet.
        return Sides(main=target, old=tuple(rest))
    main = (on_node or rest)[-1]
    return Sides(main, target, tuple(side for side in rest if side is not main))


def _belongs(side: Side, vmi: VirtualMachineInstance | None) -> bool:
    """A pod of an earlier VMI of the same name is left over, wherever it runs."""
    return vmi is None or side.launcher.labels.get(constants.LABEL_CREATED_BY) == vmi.uid


def age(pod: Pod) -> tuple[str, str]:
    """Oldest first; among pods of one second the name decides, so that the order is always the same."""
    return (pod.metadata.creation_timestamp or "", pod.name)
