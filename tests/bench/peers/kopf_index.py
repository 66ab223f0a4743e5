"""kopf's in-memory index. Events reach a handler once every object is indexed."""

import asyncio
import os
from typing import Any

from protocol import Measured, arguments

kubeconfig, _, _ = arguments()
os.environ["KUBECONFIG"] = kubeconfig

import kopf  # noqa: E402

measured: Measured


@kopf.on.login()
def login(**options: Any) -> Any:
    return kopf.login_with_kubeconfig(**options)


@kopf.on.startup()
def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    global measured
    settings.posting.enabled = False
    measured = Measured()


@kopf.index("kubevirt.io", "v1", "virtualmachineinstances")
def held(namespace: str, name: str, body: kopf.Body, **_: Any) -> dict[Any, Any]:
    return {(namespace, name): body}


@kopf.on.event("kubevirt.io", "v1", "virtualmachineinstances")
def count(type: str | None, held: kopf.Index[Any, Any], **_: Any) -> None:
    measured.synced(lambda: len(held))
    if type == "MODIFIED":
        measured.events += 1


asyncio.run(kopf.operator(clusterwide=True, standalone=True))
