"""Management: what `register(management)` functions get, this product's controllers by kind."""

from collections.abc import Callable
from typing import Generic, TypeVar

from kubeloop.api import registry
from kubeloop.api.meta import Object
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.workqueue.rate_limiters import BucketRateLimiter, ItemExponentialFailureRateLimiter, MaxOfRateLimiter
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.config.causes import Reverts
from pkg.config.rancher_quotas import RancherWrites
from pkg.config.slim import CacheTransforms
from pkg.util import constants
from pkg.util.kubevirt.profiles import Profile
from pkg.util.quotacount.releases import UNKNOWN, Releases
from pkg.util.resourcequota.observe import Listed, Source

T = TypeVar("T", bound=Object)


class _CachedKind(Generic[T]):
    """A property of Management: a kind's controller. `transform` names the method of CacheTransforms that it uses."""

    def __init__(self, resource: Resource[T], transform: str = "", *, name: str = "", labels: str = "") -> None:
        self._resource, self._transform, self._name, self._labels = resource, transform, name, labels

    def __get__(self, management: "Management", owner: "type[Management]") -> Controller[T]:
        transform = getattr(management.slim, self._transform) if self._transform and not management.whole else None
        return management.controller(self._resource, name=self._name, label_selector=self._labels, transform=transform)


class Management(ControllerFactory):
    """The controllers of this product's kinds. `whole`: for those who read what no decision here reads."""

    resource_quotas = _CachedKind(registry.RESOURCE_QUOTAS)
    limit_ranges = _CachedKind(registry.LIMIT_RANGES, "plain")
    namespaces = _CachedKind(registry.NAMESPACES)
    pods = _CachedKind(registry.PODS, "pod", labels=constants.KUBEVIRT_PODS)
    """KubeVirt's only, launchers and attachments: a cluster has many others."""
    persistent_volume_claims = _CachedKind(registry.PERSISTENT_VOLUME_CLAIMS, "claim")
    virtual_machines = _CachedKind(VIRTUAL_MACHINES, "machine")
    virtual_machine_instances = _CachedKind(VIRTUAL_MACHINE_INSTANCES, "instance")
    virtual_machine_instance_migrations = _CachedKind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, "plain")
    kubevirts = _CachedKind(KUBEVIRTS)
    settings = _CachedKind(SETTINGS, name=constants.SETTING_OVERHEAD_RATIO)
    """The one setting that is read: the account may read no other."""
    virtual_machine_migration_resource_quotas = _CachedKind(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS)
    locks = _CachedKind(registry.VALIDATING_WEBHOOK_CONFIGURATIONS)
    """All webhook configurations: a lock that has lost its label has to end as well."""
    own_webhooks = _CachedKind(registry.VALIDATING_WEBHOOK_CONFIGURATIONS, name=constants.WEBHOOK_CONFIGURATION_NAME)

    def __init__(
        self,
        client: Client,
        releases: Callable[[], Releases] = lambda: UNKNOWN,
        *,
        workers: int = 10,
        whole: bool = False,
        selects: Callable[[str], bool] = lambda _: True,
        rancher: RancherWrites | None = None,
    ) -> None:
        """`releases`: of Kubernetes, by which the API servers count. `rancher`: by default nobody is impersonated."""
        super().__init__(
            client,
            workers=workers,
            selects=selects,
            # 25 s: no event tells that a right was granted or a webhook is gone.
            rate_limiter=lambda: MaxOfRateLimiter(
                ItemExponentialFailureRateLimiter(max=25.0), BucketRateLimiter(qps=50.0, burst=100)
            ),
        )
        self.clock, self._releases = client.transport.server_clock, releases
        self.rancher, self.reverts = rancher or RancherWrites(client), Reverts(client)
        self.policy_in_force = False
        """True while deploy/policy.yaml is in force and tenants can forge no pod, as `Upkeep` has found out."""
        self.slim, self.whole = CacheTransforms(), whole

    def source(self, profile: Profile | None = None, *, claims: bool = True) -> Source:
        """Returns the caches of this process, in which decisions read. Call before `start`, which waits for them.
        Without `claims` those about storage are wrong; what is decided about pods alone does not read them."""
        return Source(
            namespaces=self.namespaces.cache(),
            migrations=self.virtual_machine_instance_migrations.cache(),
            instances=self.virtual_machine_instances.cache(),
            pods=self.pods.cache(),
            claims=self.persistent_volume_claims.cache() if claims else Listed(),
            machines=self.virtual_machines.cache() if claims else Listed(),
            limit_ranges=self.limit_ranges.cache(),
            kubevirts=self.kubevirts.cache(),
            settings=self.settings.cache(),
            quotas=self.resource_quotas.cache(),
            budgets=self.virtual_machine_migration_resource_quotas.cache(),
            kubernetes=self._releases,
            policy_in_force=lambda: self.policy_in_force,
            profile=profile,
        )
