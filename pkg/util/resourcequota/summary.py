"""The summary of a raised quota's headroom, for people who look at it in a UI: one annotation, gone at rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from msgspec.structs import replace as replace_struct

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import RawResourceList
from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import parse_resource_list
from pkg.util.amounts import format_distinctly
from pkg.util.constants import ANNOTATION_SUMMARY
from pkg.util.resourcequota.entries import entry_keys, read
from pkg.util.resourcequota.facts import Plan
from pkg.util.resourcequota.managed import is_ours

_MOST_NAMES: Final = 5


def summarized(decided: Plan, quota: ResourceQuota, names: Mapping[str, str]) -> Plan:
    """Returns the plan with the summary of what it leaves on the quota; unchanged where it writes nothing there.
    `names`: VMs by the keys of their entries. On a quota that is not ours alone, a summary would outlive entries that
    Harvester ends."""
    if not decided.annotations and not decided.hard:
        return decided
    annotations = decided.annotations_of(quota)
    planned = replace_struct(quota, metadata=replace_struct(quota.metadata, annotations=annotations))
    text = _summary(annotations, {**quota.hard, **decided.hard}, names) if is_ours(planned) else ""
    if text == quota.annotations.get(ANNOTATION_SUMMARY, ""):
        return decided
    return replace(decided, annotations={**decided.annotations, ANNOTATION_SUMMARY: text or None})


def _summary(annotations: Mapping[str, str], limits: RawResourceList, by_key: Mapping[str, str]) -> str:
    """Returns the summary, such as "limits.cpu 6500m + 1025m for web-2 until its old pod ends"."""
    headroom = read(annotations).total
    hard = parse_resource_list(limits)
    amounts = [
        "{} {} + {}".format(name, *format_distinctly(name, hard[name] - amount, amount))
        for name, amount in sorted(headroom.items())
        if name in hard and amount > ZERO
    ]
    names = sorted(by_key[key] for key in entry_keys(annotations))
    if not amounts or not names:
        return ""
    listed = ", ".join(names[:_MOST_NAMES])
    omitted = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    ends = "its old pod ends" if len(names) == 1 else "their old pods end"
    return f"{', '.join(amounts)} for {listed}{omitted} until {ends}"
