"""Takes the label of added room off every namespace: a run over all of them, without informers."""

from __future__ import annotations

from pkg.api.registry import NAMESPACES
from pkg.client.client import Client
from pkg.client.errors import NotFound
from pkg.util import constants


async def unlabel_all(client: Client) -> list[str]:
    """The names of the namespaces that were labelled. Raises ApiError."""
    namespaces = client.resource(NAMESPACES)
    labelled = await namespaces.list(label_selector=constants.LABEL_HOLDING)
    for namespace in labelled:
        try:
            await namespaces.merge_patch(
                {"metadata": {"labels": {constants.LABEL_HOLDING: None}}}, name=namespace.name
            )
        except NotFound:
            continue
    return [namespace.name for namespace in labelled]
