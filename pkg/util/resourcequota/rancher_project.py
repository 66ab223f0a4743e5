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


def left_in(project: Project, namespaces: Iterable[Namespace], own: str) -> ResourceList:
    """Returns what namespace `own` may request beyond what its person does, by the ResourceQuota's resource names.
    `namespaces` are all of the cluster: what those of the project request counts, granted or not
    (rancher pkg/resourcequota, quota_validate.go)."""
    quota = project.spec.resource_quota
    used = total(
        limits_of_annotation(annotation_of(each) if each.name == own else _annotation(each))
        for each in namespaces
        if project_of(each) == project.id
    )
    limits = limits_of_annotation(json.dumps({"limit": (quota.limit if quota else None) or {}}))
    return {name: max(ZERO, limit - used.get(name, ZERO)) for name, limit in limits.items()}


def _annotation(namespace: Namespace) -> str:
    return namespace.annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, "")


def no_room(project: Project, left: Mapping[str, Quantity], more: Mapping[str, Quantity]) -> str:
    """Returns why the project cannot grant so much more, with what is needed and what is left; "" where it can."""
    short = {name: amount for name, amount in sorted(more.items()) if name in left and amount > left[name]}
    if not short:
        return ""
    return f"Rancher's project {project.id} has no room for {_listed(short)} more: {text_of(left, short)}"


def text_of(left: Mapping[str, Quantity], names: Iterable[str]) -> str:
    """Returns what is left of these resources, as text."""
    return f"left {_listed({name: left[name] for name in sorted(names) if name in left})}"


def _listed(amounts: Mapping[str, Quantity]) -> str:
    return ", ".join(f"{format_amount(amount, name)} of {name}" for name, amount in amounts.items())
