"""Whether the headroom that is installed runs, and whether the API server reaches its webhooks: read, and probed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kubeloop.api import registry
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME

if TYPE_CHECKING:
    from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
    from kubeloop.client.client import Client
    from pkg.report.installation import Held, Installed

LEASE = "headroom"
"""Name of the Lease that replicas compete for."""


async def installed(
    client: Client, namespaces: Sequence[str], configurations: Sequence[ValidatingWebhookConfiguration]
) -> Installed:
    """What the rights that there are let find out; `configurations` are all of the cluster. Raises ApiError."""
    from pkg.report.installation import Installed

    _where, lease = await find_lease(client, namespaces)
    ours = [each for each in configurations if each.name == WEBHOOK_CONFIGURATION_NAME]
    webhooks = {hook["name"]: hook.get("failurePolicy", "") for each in ours for hook in each.webhooks or ()}
    return Installed(lease, webhooks, await _unreachable(client) if webhooks else None)


async def find_lease(client: Client, namespaces: Sequence[str]) -> tuple[str, Held | None]:
    """The Lease in the first of these namespaces that has one, and which that is; None where there is none, or it may
    not be read. Raises ApiError."""
    from kubeloop.client.errors import Forbidden, NotFound
    from pkg.report.installation import held

    for namespace in namespaces:
        with contextlib.suppress(NotFound, Forbidden):
            lease = await client.resource(registry.LEASES).get(name=LEASE, namespace=namespace)
            return namespace, held(lease.spec, time.time())
    return "", None


def own_namespaces(client: Client, chosen: str | None) -> list[str]:
    """Where headroom is looked for."""
    from pkg.util.installation import USUAL_NAMESPACES

    if chosen:
        return [chosen]
    return list(dict.fromkeys(filter(None, (client.transport.config.namespace, *USUAL_NAMESPACES))))


async def _unreachable(client: Client) -> str | None:
    """What the API server says of a webhook that it does not reach, "" where it does; None where it can't be asked."""
    from kubeloop.client.errors import ApiError, NotFound
    from pkg.config.probe import PROBE_CONFIGURATION, PROBE_WEBHOOK, NotReached, probe
    from pkg.util.managedtenantquota.constants import NAMESPACE_NAME_LABEL

    try:
        probing = await client.resource(registry.MUTATING_WEBHOOK_CONFIGURATIONS).get(
            name=PROBE_CONFIGURATION
        )
        (webhook,) = probing.webhooks or []
        namespace = webhook["namespaceSelector"]["matchLabels"][NAMESPACE_NAME_LABEL]
    except (ApiError, ValueError, KeyError):
        return None
    try:
        await probe(client, namespace)
    except NotReached as exc:
        # Without a cause the API server has not asked: it has not learned of the configuration yet.
        return str(exc).partition(f'"{PROBE_WEBHOOK}": ')[2] or str(exc) if exc.__cause__ else None
    except NotFound:
        return f"namespace {namespace} does not exist any more"
    except ApiError:
        return None
    return ""
