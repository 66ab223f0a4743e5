"""What an operator chooses for the controllers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pkg.util.kubevirt.profiles import Profile
from pkg.util.resourcequota.policy import EXACT, LOCK_LIMIT, Policy, RancherQuotas

BeforeRaise = Callable[[str], Awaitable[None]]
"""Called with a namespace's name before a quota of its is raised; may raise RetryAfter."""


@dataclass(frozen=True, slots=True)
class Options:
    """The choices behind `headroom controller`'s flags."""

    policy: Policy = EXACT
    profile: Profile | None = None
    """The KubeVirt release whose overhead constants count; None: as the KubeVirt CR says."""
    reserve: bool = False
    """Label the namespaces that hold added headroom, for the webhook that keeps other pods out of it."""
    rancher_quotas: RancherQuotas = RancherQuotas.AUTO
    """How quotas with Rancher's default label are raised."""
    dry_run: bool = False
    """Decide, log and count, write no ResourceQuota and nothing else."""
    lock_limit: float = LOCK_LIMIT
    """Seconds that a namespace with a migration budget is locked at most."""
    namespace: str = "default"
    """Headroom's own."""
    only_namespaces: Sequence[str] = ()
    """Shell patterns of the namespaces that are served; none: all are."""
    never_lock: Sequence[str] = ()
    """More namespaces (shell patterns) that are never locked."""
    controller_users: Sequence[str] = ()
    """Accounts beside our own whose writes a lock lets through: those of other installations of headroom."""
    kubevirt_users: Sequence[str] = ()
    """virt-controller's account, where it is not the usual one."""

    def selects(self, key: str) -> bool:
        """Whether anything is done about the object of a key: by its namespace, or the one that it is or locks."""
        namespace = key.partition("/")[0].removeprefix("lock.").removesuffix(".com")
        return not self.only_namespaces or any(fnmatchcase(namespace, each) for each in self.only_namespaces)
