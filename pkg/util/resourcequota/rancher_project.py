"""A Rancher project's room, where the project may be read: it is in the cluster of Rancher's server alone. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from kubeloop.api.core import Namespace
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, total
from pkg.api.rancher import Project
from pkg.util import constants
from pkg.util.amounts import format_amount
from pkg.util.resourcequota.rancher import annotation_of, limits_of_annotation, project_of


def project_room(project: Project, namespaces: Iterable[Namespace], name: str) -> ResourceList:
    """Returns what namespace `own` may request beyond what its person does, by the ResourceQuota's resource names.
    `namespaces` are all of the cluster: what those of the project request counts, granted or not
    (rancher pkg/resourcequota, quota_validate.go)."""
    quota = project.spec.resource_quota
    used = total(
        limits_of_annotation(annotation_of(item) if item.name == name else _annotation(item))
        for item in namespaces
        if project_of(item) == project.id
    )
    limits = limits_of_annotation(json.dumps({"limit": (quota.limit if quota else None) or {}}))
    return {name: max(ZERO, limit - used.get(name, ZERO)) for name, limit in limits.items()}


def _annotation(namespace: Namespace) -> str:
    return namespace.annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, "")


def project_shortage(project: Project, remainders: Mapping[str, Quantity], needs: Mapping[str, Quantity]) -> str:
    """Returns why the project cannot grant so much more, with what is needed and what is left; "" where it can."""
    missing = {
        name: amount for name, amount in sorted(needs.items()) if name in remainders and amount > remainders[name]
    }
    if not missing:
        return ""
    return f"Rancher's project {project.id} has no room for {_listed(missing)} more: {text_of(remainders, missing)}"


def text_of(remainders: Mapping[str, Quantity], names: Iterable[str]) -> str:
    """Returns what is left of these resources, as text."""
    return f"left {_listed({name: remainders[name] for name in sorted(names) if name in remainders})}"


def _listed(amounts: Mapping[str, Quantity]) -> str:
    return ", ".join(f"{format_amount(amount, name)} of {name}" for name, amount in amounts.items())
