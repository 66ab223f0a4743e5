"""What the sequence writes: three kinds; and the Leases that it reads."""

from __future__ import annotations

from dataclasses import dataclass

from pkg.api.admissionregistration import ValidatingWebhookConfiguration
from pkg.api.coordination import Lease
from pkg.api.core import ResourceQuota
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, VirtualMachineMigrationResourceQuota
from pkg.api.registry import LEASES, RESOURCE_QUOTAS, VALIDATING_WEBHOOK_CONFIGURATIONS
from pkg.client.client import Client
from pkg.client.resource_client import ResourceClient


@dataclass(frozen=True, slots=True)
class Clients:
    """Live access to budgets, quotas and locks."""

    budgets: ResourceClient[VirtualMachineMigrationResourceQuota]
    quotas: ResourceClient[ResourceQuota]
    locks: ResourceClient[ValidatingWebhookConfiguration]
    leases: ResourceClient[Lease]

    @classmethod
    def of(cls, client: Client) -> Clients:
        return cls(
            budgets=client.resource(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS),
            quotas=client.resource(RESOURCE_QUOTAS),
            locks=client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS),
            leases=client.resource(LEASES),
        )
