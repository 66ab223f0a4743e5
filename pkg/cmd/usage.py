"""`headroom usage`: what quota counts of pods and claims from a file or a pipe, in a Kubernetes release."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kubeloop.api.core import PersistentVolumeClaim, Pod, ResourceClaim
from kubeloop.api.meta import from_rfc3339
from kubeloop.api.resource_list import format_resource_list
from pkg.cmd.flags import option, optional
from pkg.cmd.manifests import Foreign, describe_each, group_of
from pkg.cmd.options import WrongCall
from pkg.util.quotacount.releases import UNKNOWN, releases_of
from pkg.util.quotacount.usage import device_usage, pod_usage, storage_usage


@dataclass(frozen=True)
class UsageOptions:
    file: str = option(..., "YAML or JSON file; - is stdin.", "--file", "-f", metavar="FILE")
    kubernetes: str = option("1.37", "Kubernetes release, 1.30 to 1.37.", metavar="VERSION")
    now: str | None = optional(
        "Time at which a pod that is being deleted is past its grace period or not. Default: the present.",
        metavar="RFC3339",
    )


def usage(options: UsageOptions) -> int:
    """Print what quota counts of each Pod, PersistentVolumeClaim and ResourceClaim, a JSON line each.

    Offline: reads nothing but the input. An object counts as it stands: defaults of the API server and of LimitRanges
    are not added, and of a ResourceClaim its pod is not looked at."""
    releases = releases_of([options.kubernetes])
    if releases is UNKNOWN:
        raise WrongCall(f"--kubernetes must be a release from 1.30 to 1.37, not {options.kubernetes!r}")
    try:
        now = time.time() if options.now is None else from_rfc3339(options.now)
    except ValueError as error:
        raise WrongCall(f"--now: {error}") from error

    def describe(document: Mapping[str, Any]) -> dict[str, Any]:
        match (group_of(document), document.get("kind")):
            case ("" | None, "Pod"):
                counted = pod_usage(msgspec.convert(document, Pod), now, releases)
            case ("" | None, "PersistentVolumeClaim"):
                counted = storage_usage(msgspec.convert(document, PersistentVolumeClaim), releases)
            case ("resource.k8s.io" | None, "ResourceClaim"):
                counted = device_usage(msgspec.convert(document, ResourceClaim), releases[0])
            case _:
                raise Foreign
        metadata = document.get("metadata") or {}
        names = {"namespace": metadata.get("namespace") or "", "name": metadata.get("name") or ""}
        return {"kind": document["kind"], **names, "usage": format_resource_list(counted)}

    return describe_each(options.file, ("Pod", "PersistentVolumeClaim", "ResourceClaim"), describe)
