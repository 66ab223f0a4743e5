"""What an operator chooses for the webhooks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from pkg.util.resourcequota.policy import EXACT, Policy

if TYPE_CHECKING:
    from pkg.util.kubevirt.profiles import Profile

RANCHER_USERS: Final = (
    "system:serviceaccount:cattle-system:*",
    "system:serviceaccount:cattle-fleet-system:*",
    "cattle-cluster-agent",
)
"""Rancher's own accounts: its server and the cluster agent (service account `cattle` of cattle-system), fleet's agent,
and the agent's user where it comes with a client certificate. People who work through Rancher come under their own
names (it impersonates them) and are people here."""
WEBHOOKS: Final = ("namespaces", "virtualmachines", "resourcequotas", "pods")
"""What a failure policy can be given to."""
CLUSTER_ADMINS: Final = "system:masters"


class QuotaGuard(StrEnum):
    """What happens to a write that lowers a quota under running migrations."""

    CORRECT = "correct"
    """Rancher's writes are corrected, all others denied."""
    DENY = "deny"
    """All such writes are denied."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Options:
    """What an operator chose for the webhooks of a process. Patterns are shell globs of user names."""

    policy: Policy = EXACT
    profile: Profile | None = None
    """The KubeVirt release whose overhead constants count; None: as the KubeVirt CR says."""
    quota_guard: QuotaGuard = QuotaGuard.CORRECT
    reserve: bool = True
    strict: Collection[str] = ()
    """Those of WEBHOOKS that fail a write which no webhook answers (failurePolicy Fail)."""
    rancher_users: Sequence[str] = RANCHER_USERS
    namespace: str = "default"
    """Our own: of the probe, the certificate's Secret and the Service; "": the client's."""
    secret_name: str = ""
    own_user: str = ""
    """Our user name; "" when the API server does not report it."""
    only_namespaces: Sequence[str] = ()
    """The API server asks about objects of these namespaces alone; none: of all."""
    register: bool = True
    """Write the configurations, and look after them."""
    controller_users: Sequence[str] = ()
    """The controller's accounts, where the webhooks have another one."""
    kubevirt_users: Sequence[str] = ()
    """virt-controller's account, where it is not the usual one."""
    client_names: Sequence[str] = ()
    """Whose client certificates are answered; none: every client is."""
    inject_ca_from: str | None = None
    """`namespace/name` of cert-manager's Certificate, for its CA injector."""

    @property
    def passes(self) -> tuple[str, ...]:
        """The service accounts whose writes are not reviewed: our own and the controller's. A person's account is
        reviewed, also that of a person who runs headroom from a shell."""
        users = (self.own_user, *self.controller_users)
        return tuple(user for user in users if user.startswith("system:serviceaccount:"))

    def is_rancher(self, user: str) -> bool:
        """Whether a user name is one of Rancher's accounts."""
        return any(fnmatchcase(user, pattern) for pattern in self.rancher_users)
