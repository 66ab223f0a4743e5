"""What a decision about a namespace with a budget looks at, and what comes out. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util.managedtenantquota.lock import Lock, Webhook
from pkg.util.resourcequota.facts import Facts


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operator chose, and how long things take. Seconds."""

    lock_limit: float = 120.0
    """A window that is open for longer is closed, whatever it waits for."""
    grace: float = 10.0
    """Beyond that limit the quotas get so long to be restored under the lock; then the lock ends in any case."""
    settle: float = 0.1
    """From the lock to what it protects: every API server knows by then, and what it let through has been counted."""
    open_to_others: float = 10.0
    """Migrations that come while a window is younger than this share it; later ones wait for the next."""
    longest_pause: float = 600.0
    """A migration whose target pod did not come within the lock's limit is left alone for this long."""
    first_pause: float = 0.5
    """A migration for which the API server refused to lock, save or raise is left alone for this long, and twice as
    long after each further time, up to `sweep`. Where the lock stood for longer than this, it is left alone for that
    long at first, and up to as many times longer or `longest_pause`."""
    shortage: float = 0.5
    """A budget that does not suffice is believed after this long: status.used may count a target pod already that
    the cache does not show yet."""
    sweep: float = 30.0
    """A namespace that something is still to be done in is re-checked after this long (upstream's)."""
    recheck: float = 2.0
    """A migration that KubeVirt's parallel limits hold up is re-checked after this long (upstream: 5 s, too
    long for a place that other namespaces compete for); so is one whose namespace cannot be locked: a webhook that
    restarts is back in seconds."""

    @property
    def longest(self) -> float:
        """A lock ends after this long, whatever else stands in the way."""
        return self.lock_limit + self.grace


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is reported by an event; `about` are the objects that it concerns."""

    reason: str
    message: str
    about: Sequence[Object]
    key: str
    """What makes it the same problem although the numbers in its text differ."""


@dataclass(frozen=True, slots=True)
class Timers:
    """What one decision passes to the next: waiting times only, which a restart may lose."""

    short_since: Mapping[str, float] = field(default_factory=dict)
    """Migration uid to the time when the budget was first seen not to suffice for it."""
    paused: Mapping[str, float] = field(default_factory=dict)
    """Migration uid to the time until which it is left alone."""
    refusals: int = 0
    """How many writes that were to open a window were refused since everything was last raised."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything a decision looks at; `now` in seconds since the epoch by the API server's clock."""

    namespace: str
    exists: bool
    """The namespace is there and not being deleted."""
    budgets: Sequence[VirtualMachineMigrationResourceQuota]
    quotas: Sequence[ResourceQuota]
    now: float
    lock: Lock | None = None
    facts: Facts = field(default_factory=lambda: Facts(ResourceQuota()))
    """What decides about its migrations, with no quota yet. From caches."""
    why_not: str = ""
    """Why it cannot be locked."""
    wanted_lock: Callable[[Collection[str]], Webhook] | None = None
    """The webhook that a lock shall hold, by the entries of those that it admits; None: it cannot be served, or is not
    looked at."""
    holder: str = ""
    """What a lock says of who made it."""
    upstream: str = ""
    """Who holds the Lease of KubeVirt's own managed-tenant-quota controller; "" while it does not run."""
    refused: Collection[str] = ()
    """The keys of quotas whose restore, and of the lock whose deletion was refused in this pass."""
    timers: Timers = field(default_factory=Timers)

    def problem(self, reason: str, message: str, key: str, *also: Object) -> Problem:
        """About its budgets, and about `also`. With the same `key` it is the same although the text differs."""
        return Problem(reason, message, [*also, *self.budgets], f"{reason}/{key}")
