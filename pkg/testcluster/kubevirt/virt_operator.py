"""What virt-operator does, as far as anybody waits for it: a KubeVirt becomes Deployed."""

from __future__ import annotations

import logging

from pkg.api.kubevirt import KubeVirt
from pkg.client.errors import NotFound
from pkg.client.resource_client import ResourceClient
from pkg.testcluster.kubevirt.gate import Gate
from pkg.testcluster.kubevirt.options import Options
from pkg.testcluster.kubevirt.patches import guarded
from pkg.testcluster.kubevirt.rendering import observed_version
from pkg.util import constants

logger = logging.getLogger(__name__)


class OperatorHandler:
    """Marks a new KubeVirt as Deployed; a phase that somebody else has set stays. Other limits may let others in."""

    def __init__(self, kubevirts: ResourceClient[KubeVirt], gate: Gate, options: Options) -> None:
        self._kubevirts = kubevirts
        self._gate = gate
        self._options = options

    async def on_kubevirt_changed(self, key: str, kubevirt: KubeVirt | None) -> None:
        """Raises ApiError."""
        self._gate.wake()
        if kubevirt is None or kubevirt.status.phase or kubevirt.deleting:
            return
        version = observed_version(self._options.overhead_profile)
        status = {"phase": constants.KUBEVIRT_PHASE_DEPLOYED, "observedKubeVirtVersion": version}
        try:
            await self._kubevirts.merge_patch(
                kubevirt.name,
                guarded(kubevirt, {"status": status}),
                kubevirt.namespace,
                subresource="status",
            )
        except NotFound:
            return  # Deleted meanwhile.
        logger.info("%s: deployed %s", key, version)
