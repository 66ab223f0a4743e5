"""The settings of a process. Imports nothing heavy: the command line starts with it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from pkg.util.resourcequota.policy import EXACT, LOCK_LIMIT, Policy, RancherQuotas

if TYPE_CHECKING:
    from pkg.util.kubevirt.profiles import Profile

RANCHER_USERS: Final = (
    "system:serviceaccount:cattle-system:*",
    "system:serviceaccount:cattle-fleet-system:*",
    "cattle-cluster-agent",
)
"""Rancher's own accounts: its server and the cluster agent (`cattle` of cattle-system), fleet's agent, and the agent's
user where it comes with a client certificate. People who work through Rancher come under their own names."""
WEBHOOKS: Final = ("namespaces", "virtualmachines", "resourcequotas", "pods")
"""What a failure policy can be given to."""


class QuotaGuard(StrEnum):
    """Answers to a write that lowers a quota under running migrations."""

    CORRECT = "correct"
    """Rancher's writes are corrected, all others denied."""
    DENY = "deny"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices behind the flags of the two processes, whose help describes them. Patterns are shell globs."""

    policy: Policy = EXACT
    profile: "Profile | None" = None
    """The KubeVirt release whose overhead constants count; None: as the KubeVirt object says."""
    namespace: str = "default"
    """Headroom's own: of the Lease, the probe, the certificate's Secret and the Service."""
    reserve: bool = True
    """The controllers label the namespaces that hold added headroom, the webhook answers for the pods there."""
    rancher_quotas: RancherQuotas = RancherQuotas.AUTO
    dry_run: bool = False
    only_namespaces: Sequence[str] = ()
    controller_users: Sequence[str] = ()
    """Accounts of other installations of headroom: locks let their writes through, webhooks do not review them."""
    kubevirt_users: Sequence[str] = ()

    # The controllers alone.
    lock_limit: float = LOCK_LIMIT
    never_lock: Sequence[str] = ()

    # The webhooks alone.
    quota_guard: QuotaGuard = QuotaGuard.CORRECT
    strict: Collection[str] = ()
    """Those of WEBHOOKS that fail a write which no webhook answers (failurePolicy Fail)."""
    rancher_users: Sequence[str] = RANCHER_USERS
    secret_name: str = ""
    own_user: str = ""
    """Headroom's user name; "" when the API server does not report it."""
    register: bool = True
    client_names: Sequence[str] = ()
    """Whose client certificates are answered; none: every client is."""
    inject_ca_from: str | None = None
    """`namespace/name` of cert-manager's Certificate, for its CA injector."""

    @property
    def passes(self) -> tuple[str, ...]:
        """The service accounts whose writes are not reviewed: ours. A person's are, who runs headroom from a shell."""
        users = (self.own_user, *self.controller_users)
        return tuple(user for user in users if user.startswith("system:serviceaccount:"))

    def is_rancher(self, user: str) -> bool:
        return any(fnmatchcase(user, pattern) for pattern in self.rancher_users)

    def selects(self, key: str) -> bool:
        """Reports whether the object of a key is served: by its namespace, or the one that it is or locks."""
        namespace = key.partition("/")[0].removeprefix("lock.").removesuffix(".com")
        return not self.only_namespaces or any(fnmatchcase(namespace, pattern) for pattern in self.only_namespaces)
