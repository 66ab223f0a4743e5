"""What the sequence writes: three kinds."""

from __future__ import annotations

from dataclasses import dataclass

from pkg.api.admissionregistration import ValidatingWebhookConfiguration
from pkg.api.core import ResourceQuota
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.api.registry import (
    RESOURCE_QUOTAS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS,
)
from pkg.client.client import Client
from pkg.client.resource_client import ResourceClient


@dataclass(frozen=True, slots=True)
class Clients:
    """Live access to budgets, quotas and locks."""

    budgets: ResourceClient[VirtualMachineMigrationResourceQuota]
    quotas: ResourceClient[ResourceQuota]
    locks: ResourceClient[ValidatingWebhookConfiguration]

    @classmethod
    def of(cls, client: Client) -> Clients:
        return cls(
            budgets=client.resource(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS),
            quotas=client.resource(RESOURCE_QUOTAS),
            locks=client.resource(VALIDATING_WEBHOOK_CONFIGURATIONS),
        )
