"""Admission in a locked namespace: target pods by virt-controller, quota changes by the lock's owner. A target of a
migration that the lock does not name may be as large as its source: more would take what is added for others.

Most of that the API server lets through by the lock's matchConditions; it is decided here too, for it may still ask by
the lock as it was before the last change."""

import math
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from kubeloop.api.core import Pod, ValidatingWebhookConfiguration
from kubeloop.api.meta import rfc3339
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision, UserInfo, deny
from pkg.util.constants import LABEL_MIGRATION_JOB_UID
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.managedtenantquota import lock as locks
from pkg.util.quotacount.usage import is_charged
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.room import is_within_window
from pkg.webhook.view import NoAnswer, View, read_in_time

_OBJECTS: Final = {
    "pods": "pods other than migration targets",
    "resourcequotas": "resource quotas",
    "virtualmachinemigrationresourcequotas": "migration resource quotas",
}
_VERBS: Final = {"CREATE": "created", "UPDATE": "changed", "DELETE": "deleted"}


@dataclass(frozen=True)
class Accounts:
    """The accounts that are let through. User names are exact; `lock_owners` may be an operator's shell patterns."""

    lock_owners: Collection[str]
    virt_controllers: Callable[[], Collection[str]]
    """Called each time: the KubeVirt CR may appear later."""

    def makes_targets(self, user: UserInfo) -> bool:
        """Reports whether a user makes target pods: virt-controller, or who may do everything anyway."""
        is_virt_controller = bool(user.username) and user.username in self.virt_controllers()
        return is_virt_controller or "system:masters" in (user.groups or ())


def is_exempt(request: AdmissionRequest, accounts: Accounts) -> bool:
    """Reports whether the lock exists for this request, or must not hinder it. Raises BadReview."""
    user = request.user_info
    if request.resource.resource != "pods":
        ends_namespace = request.operation == "DELETE" and user.username in locks.NAMESPACE_CONTROLLERS
        return ends_namespace or any(owner and fnmatchcase(user.username, owner) for owner in accounts.lock_owners)
    makes_target = request.operation == "CREATE" and accounts.makes_targets(user)
    return makes_target and bool(request.new(Pod).labels.get(LABEL_MIGRATION_JOB_UID))


async def is_granted(view: View, namespace: str, pod: Pod) -> bool:
    """Reports whether a target pod uses no more of any quota than a window adds for its VM. Raises NoAnswer."""
    job, releases = pod.labels.get(LABEL_MIGRATION_JOB_UID, ""), view.releases()
    for quota in view.quotas(namespace):
        facts: Facts | None = view.observe(quota) if is_charged(pod, quota.spec, releases=releases) else None
        if facts and all(migration.uid != job for migration in facts.migrations):
            facts = await view.observe_live(quota)
        if facts and not is_within_window(facts, pod, job, releases):
            return False
    return True


def refusal(request: AdmissionRequest, lock: locks.Lock | None, seconds_left: float = math.inf) -> Decision:
    """Returns the denial. `seconds_left`: how long the lock lasts at most, infinite when that is not known."""
    resource = request.resource.resource
    objects, verb = _OBJECTS.get(resource, resource), _VERBS.get(request.operation, "changed")
    since = ""
    if lock is not None:
        since = f" by {lock.owner or 'the managed quota controller'} since {rfc3339(lock.since)}"
        since += f" for the migration of {lock.reason}" if lock.reason else ""
    at_most = f" (at most {math.ceil(seconds_left)} s)" if math.isfinite(seconds_left) else ""
    return deny(
        f"namespace {request.namespace} is locked{since}: {objects} can't be {verb} until the target pods exist"
        f"{at_most}, please try again in a moment",
        reason="locked",
    )


@dataclass(eq=False)
class LockValidator:
    """A lock that is past its end denies nothing, whether its controller runs or not."""

    cache: CacheReader[ValidatingWebhookConfiguration]
    client: ResourceClient[ValidatingWebhookConfiguration]
    clock: Callable[[], float]
    accounts: Accounts
    is_granted: Callable[[str, Pod], Awaitable[bool]]
    """Of a namespace and a target's pod, see above; raises NoAnswer."""

    async def validate(self, request: AdmissionRequest) -> Decision:
        exempt = is_exempt(request, self.accounts)
        if exempt and request.resource.resource != "pods":
            return ALLOW
        name = locks.lock_name(request.namespace)
        try:
            # One in the cache may be gone already: who is refused for that one tries again, as all do.
            lock = locks.recognise(self.cache.get(name=name) or await read_in_time(self.client.get(name=name)))
        except NoAnswer:
            return ALLOW if exempt else refusal(request, None)  # it was locked when the API server asked
        seconds_left = lock.longest - lock.age(self.clock()) if lock and lock.longest else math.inf
        # One that has ended, or would have, did its controller run.
        if lock is None or seconds_left <= 0 or (exempt and await self._admits(lock, request)):
            return ALLOW
        refused = refusal(request, lock, seconds_left)
        # The words by which KubeVirt tries again when a quota changes.
        return replace(refused, message=f"exceeded quota: {refused.message}") if exempt else refused

    async def _admits(self, lock: locks.Lock, request: AdmissionRequest) -> bool:
        pod = request.new(Pod)
        key = f"{pod.labels.get(LABEL_MIGRATION_JOB_UID)}/{vm_of(pod)}"
        with suppress(NoAnswer):
            return key in locks.admitted_by(lock) or await self.is_granted(request.namespace, pod)
        return False
