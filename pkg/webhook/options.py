"""What an operator chooses for the webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from pkg.webhook.admission import UserInfo

RANCHER_USERS: Final = (
    "system:serviceaccount:cattle-system:*",
    "system:serviceaccount:cattle-fleet-system:*",
    "cattle-cluster-agent",
)
"""Rancher's own accounts: its server and the cluster agent (service account `cattle` of cattle-system), fleet's agent,
and the agent's user where it comes with a client certificate. People who work through Rancher come under their own
names (it impersonates them) and are people here."""


KUBEVIRT_USERS: Final = ("system:serviceaccount:*:kubevirt-controller",)
"""virt-controller's account, in whichever namespace KubeVirt is installed."""
CLUSTER_ADMINS: Final = "system:masters"


class QuotaGuard(StrEnum):
    """What happens to a write that lowers a quota under running migrations."""

    CORRECT = "correct"
    """Rancher's writes are corrected, everybody else's denied."""
    DENY = "deny"
    """Everybody's are denied."""
    OFF = "off"


class FailurePolicy(StrEnum):
    """What the API server does when no webhook answers."""

    IGNORE = "Ignore"
    FAIL = "Fail"


@dataclass(frozen=True, slots=True)
class Options:
    """The choices behind the flags of `headroom webhook`. Patterns are shell globs of user names."""

    quota_guard: QuotaGuard = QuotaGuard.CORRECT
    reserve: bool = True
    failure_policy: FailurePolicy = FailurePolicy.IGNORE
    rancher_users: Sequence[str] = RANCHER_USERS
    kubevirt_users: Sequence[str] = KUBEVIRT_USERS
    own_user: str = ""
    """Who we are for the API server; "" when that could not be found out."""

    @property
    def passes(self) -> str:
        """The service account whose writes pass unseen: our own. A person's account never is: who runs headroom
        from a shell is guarded against themselves."""
        return self.own_user if self.own_user.startswith("system:serviceaccount:") else ""

    def is_rancher(self, user: str) -> bool:
        """Whether a user name is one of Rancher's accounts."""
        return any(fnmatchcase(user, pattern) for pattern in self.rancher_users)

    def is_kubevirt(self, user: UserInfo) -> bool:
        """Whether somebody makes pods for migrations: KubeVirt's controller, or who may do everything anyway."""
        if CLUSTER_ADMINS in (user.groups or ()):
            return True
        return any(fnmatchcase(user.username, pattern) for pattern in self.kubevirt_users)
