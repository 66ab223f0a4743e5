"""The promises of docs/security.md, held against the objects themselves at every write."""

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.quantity import ZERO
from kubeloop.api.registry import NAMESPACES, PODS, RESOURCE_QUOTAS, VALIDATING_WEBHOOK_CONFIGURATIONS, Resource
from kubeloop.api.resource_list import ResourceList, add, maximum, parse_resource_list, total
from kubeloop.testing.fake.patches import Raw
from kubeloop.webhook.admission import Decision
from lab.rancher.limits import render
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.util.constants import (
    ANNOTATION_MIGRATING_NAME_PREFIX,
    ANNOTATION_OWNER,
    ANNOTATION_RANCHER_RESOURCE_QUOTA,
    ANNOTATION_SKIP_AUTO_SCALING,
    LABEL_MANAGED,
)
from pkg.util.quotacount.usage import pod_usage
from tests.simulation.admission import ADMIN, HEADROOM, KUBEVIRT
from tests.simulation.cluster import StoryCluster
from tests.simulation.programs import LOCK_LIMIT
from tests.simulation.repeatable import monotonic
from tests.simulation.server import ApiWrite

FOREIGN = 90.0
"""Seconds that an entry without a VM may stand: sixty by --foreign-grace, and the time of a decision."""
GRACE = 15.0
"""Seconds beyond its limit that a lock may stand: ten of its own, and the time of a request."""


@dataclass(frozen=True)
class BrokenPromise:
    """A promise that was not kept."""

    at: float
    promise: str
    how: str

    def __str__(self) -> str:
        return f"{self.at:8.2f} s  BROKEN: {self.promise}: {self.how}"


class Promises:
    """`broken` is the first promise that was not kept."""

    def __init__(self, cluster: StoryCluster) -> None:
        self.broken: BrokenPromise | None = None
        self.followers: list[Callable[[ApiWrite], None]] = []
        """Called with every write that nothing refuses."""
        self._cluster = cluster
        self._tolerated: dict[str, ResourceList] = {}
        """By namespace: by how much it is above its base because that was lowered."""
        self._lowered: dict[str, ResourceList] = {}
        """By namespace: a base of before, until quota admission has heard of a lower one."""
        self._excesses: defaultdict[str, deque[tuple[float, ResourceList]]] = defaultdict(lambda: deque(maxlen=200))
        self._sides: dict[str, tuple[str, str]] = {}
        """Uid of a pod that KubeVirt itself created → its VM instance, its launcher."""
        self._edited: dict[str, ResourceList] = {}
        """spec.hard as an administrator wrote it last, by the quota's key."""
        self._gone_since: dict[str, float] = {}
        """By quota: since when an entry of a VM that is gone stands there, in a cluster without trouble."""
        self._usage: dict[tuple[str, str], ResourceList] = {}
        cluster.observers.append(self._see)

    def at_rest(self) -> None:
        """Nothing migrates any more, and everything has had its time."""
        for key, raw in self._cluster.raw(RESOURCE_QUOTAS).items():
            quota, base = msgspec.convert(raw, ResourceQuota), self.base(key.partition("/")[0])
            hard = parse_resource_list(quota.hard)
            if _is_harvesters(quota) or quota.name != "quota":
                continue
            if hard != base and hard != self._edited.get(key):
                self._break("at rest a quota is at its base", f"{key} has {_text(hard)}, its base is {_text(base)}")
        for raw in self._locks():
            self._break("at rest nothing is locked", raw["metadata"]["name"])

    def reviewed(self, write: ApiWrite, path: str, decision: Decision | None) -> None:
        """Headroom's answer on one of its webhooks' paths; None: there was none."""
        if path == "/lock" and decision is not None and write.resource is PODS:
            age = self._age_of_lock(write.namespace)
            strange = write.user not in (KUBEVIRT, HEADROOM)  # only KubeVirt creates targets
            if decision.allowed and strange and 0.25 < age < LOCK_LIMIT - 1 and write.operation == "CREATE":
                self._break("a lock holds until its end", f"{write.user} created {write.name} after {age:.0f} s")
            if not decision.allowed and age > LOCK_LIMIT + GRACE:
                self._break("no lock refuses past its end", f"{write.namespace} after {age:.0f} s")

    def admitted(self, write: ApiWrite) -> None:
        """A write that nothing refuses."""
        for see in self.followers:
            see(write)
        if write.user.endswith("dry-run"):
            self._break("--dry-run writes nothing", f"{write.operation} {write.plural} {write.name}")
        if write.resource is RESOURCE_QUOTAS and write.user == ADMIN and write.new is not None:
            hard = parse_resource_list(write.new["spec"]["hard"])
            if write.old is None or hard != parse_resource_list(write.old["spec"]["hard"]):
                self._edited[f"{write.namespace}/{write.name}"] = hard
        if write.resource is PODS and write.operation == "CREATE" and write.new is not None:
            self._came(write)

    def base(self, namespace: str) -> ResourceList:
        return _limits_of(self._cluster.raw(NAMESPACES).get(namespace) or {})

    def excess(self, namespace: str) -> ResourceList:
        """Returns what is used beyond the base, the migrations' own share taken off: of every VM its largest
        side counts."""
        sides: defaultdict[str, defaultdict[str, ResourceList]] = defaultdict(lambda: defaultdict(dict))
        ordinary = []
        for raw, side in self._counted(namespace):
            usage = self._usage_of(raw)
            if side is None:
                ordinary.append(usage)
            else:
                vm, launcher = side
                sides[vm][launcher] = add(sides[vm][launcher], usage)
        used = total([*ordinary, *(largest(of_vm.values()) for of_vm in sides.values())])
        return {name: used.get(name, ZERO) - amount for name, amount in self.base(namespace).items()}

    def most_excess(self, namespace: str, since: float) -> ResourceList:
        """The most of every resource at any time since then; below zero where there was room."""
        since_then = [excess for time, excess in self._excesses[namespace] if time >= since]
        previous = [excess for time, excess in self._excesses[namespace] if time < since][-1:]
        amounts = [*previous, *since_then, self.excess(namespace)]
        return {name: max(excess.get(name, ZERO) for excess in amounts) for name in self.base(namespace)}

    def refused(self, namespace: str, cpu: str, since: float) -> None:
        """An honest pod that had room all the time."""
        detail = f"one of {cpu} in {namespace}, since {since:.2f} s"
        self._break("no honest pod with room waits for 2.5 s and is refused", detail)

    # What happens.

    def _came(self, write: ApiWrite) -> None:
        assert write.new is not None
        metadata = write.new["metadata"]
        labels = metadata.get("labels") or {}
        owner = next(iter(metadata.get("ownerReferences") or ()), {"uid": ""})["uid"]
        if write.user == KUBEVIRT and labels.get("kubevirt.io") == "virt-launcher":
            self._sides[metadata["uid"]] = (labels["kubevirt.io/created-by"], metadata["uid"])
        elif write.user == KUBEVIRT and owner in self._sides:
            self._sides[metadata["uid"]] = self._sides[owner]

    def _see(self, resource: Resource[Any], key: str, old: Raw | None, new: Raw | None) -> None:
        if resource is NAMESPACES and old is not None and _base_of(old) != _base_of(new or {}):
            self._tolerate(key)
            self._lowered[key] = maximum(self._lowered.get(key, {}), _limits_of(old))
        elif resource is RESOURCE_QUOTAS and new is not None:
            self._enforced(key, new)
        elif resource is PODS:
            self._check_used(key.partition("/")[0])
        if self._cluster.steps % 20 == 0:
            self._check_locks()
            self._check_entries()

    def _quotas(self, namespace: str) -> list[ResourceQuota]:
        return [quota for quota in self._cluster.all(RESOURCE_QUOTAS) if quota.namespace == namespace]

    def _enforced(self, key: str, raw: Raw) -> None:
        """Kubernetes itself goes by a limit of before until its quota controller has looked."""
        namespace, _, name = key.partition("/")
        hard = parse_resource_list((raw.get("status") or {}).get("hard") or {})
        if name == "quota" and all(
            hard.get(resource, ZERO) <= limit for resource, limit in self.base(namespace).items()
        ):
            self._lowered.pop(namespace, None)

    def _tolerate(self, namespace: str) -> None:
        """The base has changed: what is above it by now is no migration's doing."""
        self._tolerated[namespace] = {name: max(ZERO, amount) for name, amount in self.excess(namespace).items()}

    def _check_used(self, namespace: str) -> None:
        if any(map(_is_harvesters, self._quotas(namespace))):
            self._tolerate(namespace)
        excess, tolerated = self.excess(namespace), self._tolerated.setdefault(namespace, {})
        self._excesses[namespace].append((monotonic(), excess))
        slack, granted = self._slack(namespace), self._granted(namespace)
        overshoot = {
            name: amount
            for name, amount in excess.items()
            if amount > tolerated.get(name, ZERO) + slack.get(name, ZERO) + granted.get(name, ZERO)
        }
        if overshoot:
            base = self.base(namespace)
            detail = ", ".join(
                f"{name} {base[name] + amount} of {base[name]}" for name, amount in sorted(overshoot.items())
            )
            self._break(
                "used is never above the base and what was granted", f"{namespace}, migrations left out: {detail}"
            )
        for name, most in tolerated.items():
            tolerated[name] = min(most, max(ZERO, excess.get(name, ZERO)))

    def _granted(self, namespace: str) -> ResourceList:
        """What an administrator has written beyond the base; what was the base before; and, where only windows are
        guarded and none is open, what quota admission goes by while the quota controller is away."""
        edited, base = self._edited.get(f"{namespace}/quota", {}), self.base(namespace)
        edited = maximum(edited, self._lowered.get(namespace, {}))
        if self.has_budget(namespace) and not self._age_of_lock(namespace):
            (quota,) = (candidate for candidate in self._quotas(namespace) if candidate.name == "quota")
            edited = maximum(edited, parse_resource_list(quota.status.hard or {}))
        return {name: max(ZERO, amount - base.get(name, amount)) for name, amount in edited.items()}

    def _slack(self, namespace: str) -> ResourceList:
        """Two replicas may let in two last pods at a time, the larger of which is too much."""
        if self._cluster.traits.replicas == 1:
            return {}
        return largest(self._usage_of(raw) for raw, side in self._counted(namespace) if side is None)

    def _check_locks(self) -> None:
        for raw in self._locks():
            name = raw["metadata"]["name"].removeprefix("lock.").removesuffix(".com")
            if self._age_of_lock(name) > LOCK_LIMIT + GRACE and not self._cluster.is_troubled:
                self._break("no lock stands past its end", name)

    def _check_entries(self) -> None:
        """Checks entries of a VM that never was: nothing can explain one."""
        keys = {
            key
            for key, raw in self._cluster.raw(RESOURCE_QUOTAS).items()
            if f"{ANNOTATION_MIGRATING_NAME_PREFIX}gone" in (raw["metadata"].get("annotations") or {})
            and not _is_harvesters(msgspec.convert(raw, ResourceQuota))
            and not self.has_budget(key.partition("/")[0])
        }
        since = monotonic() if self._cluster.is_troubled else None
        self._gone_since = {key: since or self._gone_since.get(key, monotonic()) for key in keys}
        for key, gone_at in self._gone_since.items():
            if monotonic() - gone_at > FOREIGN:
                self._break("an entry of a VM that is gone goes", f"{key} had it for {FOREIGN:.0f} s")

    def has_budget(self, namespace: str) -> bool:
        """Its quotas are raised by windows: entries there mean nothing, and quota counts what sources leave behind."""
        budgets = self._cluster.all(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS)
        return any(budget.namespace == namespace for budget in budgets)

    def _locks(self) -> Iterator[Raw]:
        for key, raw in self._cluster.raw(VALIDATING_WEBHOOK_CONFIGURATIONS).items():
            if key.startswith("lock."):
                yield raw

    def _age_of_lock(self, namespace: str) -> float:
        """Returns its age by the API server's clock; 0 without a lock."""
        raw = self._cluster.raw(VALIDATING_WEBHOOK_CONFIGURATIONS).get(f"lock.{namespace}.com")
        return self._cluster.age(raw) if raw else 0.0

    def _counted(self, namespace: str) -> Iterator[tuple[Raw, tuple[str, str] | None]]:
        """The pods that quota counts; of KubeVirt's own with their VM instance and launcher."""
        for key, raw in self._cluster.raw(PODS).items():
            if key.startswith(f"{namespace}/") and raw["status"].get("phase") not in ("Succeeded", "Failed"):
                yield raw, self._sides.get(raw["metadata"]["uid"])

    def _usage_of(self, raw: Raw) -> ResourceList:
        version = (raw["metadata"]["uid"], raw["metadata"]["resourceVersion"])
        if version not in self._usage:
            self._usage[version] = pod_usage(msgspec.convert(raw, Pod))
        return self._usage[version]

    def _break(self, promise: str, detail: str) -> None:
        if self.broken is None:
            self.broken = BrokenPromise(monotonic(), promise, detail)


def _base_of(namespace: Raw) -> str:
    """Rancher's annotation, "" where there is none."""
    annotations = (namespace.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(ANNOTATION_RANCHER_RESOURCE_QUOTA, ""))


def _limits_of(namespace: Raw) -> ResourceList:
    annotation = _base_of(namespace)
    return parse_resource_list(render(annotation)) if annotation else {}


def _is_harvesters(quota: ResourceQuota) -> bool:
    """A person has switched headroom off for it."""
    skipped = quota.annotations.get(ANNOTATION_SKIP_AUTO_SCALING) == "true"
    return quota.labels.get(LABEL_MANAGED) == "false" or (skipped and ANNOTATION_OWNER not in quota.annotations)


def largest(usages: Iterable[ResourceList]) -> ResourceList:
    """Returns the most of each resource."""
    return functools.reduce(maximum, usages, {})


def _text(amounts: ResourceList) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items()))
