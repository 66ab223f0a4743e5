"""A plan as a request to Rancher: the namespace's annotation instead of the quota. Pure.

    plan of the quota → annotation and record → Rancher's answer: granted, refused, or none yet

While something is added, the annotation says base + headroom and the record says the rest. At the end the annotation
says again what the person requested. Where that exceeds the grant, Rancher would leave the quota raised: the grant is
requested first, and the person's number when Rancher has written it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from msgspec.structs import replace as replace_struct

from kubeloop.api.core import Namespace
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, total
from pkg.api.rancher import Project
from pkg.util import constants
from pkg.util.amounts import format_amount
from pkg.util.problems import Problem
from pkg.util.resourcequota.base import quantity_of
from pkg.util.resourcequota.entries import is_entry, read
from pkg.util.resourcequota.errors import (
    EVENT_NO_ANSWER,
    EVENT_NOT_GRANTED,
    EVENT_PROJECT_FULL,
    EVENT_STUCK,
    InvalidNamespaceAnnotation,
)
from pkg.util.resourcequota.facts import Denial, Facts, Plan
from pkg.util.resourcequota.managed import is_served
from pkg.util.resourcequota.rancher import (
    SILENCE,
    Request,
    annotation_of,
    exceeding,
    format_request,
    is_granted,
    limits_of_annotation,
    project_of,
    removal_command,
    request_of,
    validation_of,
    with_limits,
)

FIRST_PAUSE = 30.0
"""Seconds after which a request that the project had no room for is made again, though nothing there changed."""
LONGEST_PAUSE = 600.0


def with_answer(facts: Facts) -> Facts:
    """Returns the facts with Rancher's denial in their timers: then nothing of the refused request is added yet."""
    request, denial, now = request_of(facts.rancher.namespace), facts.timers.denial, facts.now
    if not facts.rancher.asks:
        return facts
    state = Denial(facts.rancher.siblings, facts.limits)
    if denial is None or (denial.siblings, denial.limits) != (state.siblings, state.limits):
        denial = state if denial else None
    if request is None or is_granted(request, facts.quota) or not is_refused(request, facts.rancher.namespace, now):
        return replace(facts, timers=replace(facts.timers, denial=denial))
    denial = _denial(denial or state, request, now)
    annotations = {key: text for key, text in facts.quota.annotations.items() if not is_entry(key)}
    quota = replace_struct(facts.quota, metadata=replace_struct(facts.quota.metadata, annotations=annotations))
    return replace(facts, quota=quota, timers=replace(facts.timers, denial=denial))


def is_refused(request: Request, namespace: Namespace, now: float) -> bool:
    """Reports whether Rancher has found that the request does not fit into the project.

    A condition from before the request counts only after a time in which a Rancher that runs has answered: it writes
    the same text again where two requests of one second are refused alike.
    """
    validation = validation_of(namespace)
    if validation is None or validation.fits:
        return False
    return condition_text(namespace) != request.validation or now - request.at >= SILENCE


def condition_text(namespace: Namespace) -> str:
    """Returns Rancher's condition as the record keeps it."""
    validation = validation_of(namespace)
    return f"{validation.fits} {validation.updated} {validation.message}" if validation else ""


def _denial(present: Denial, request: Request, now: float) -> Denial:
    """Returns what is not requested again: the person's excess, if that was part of the request, else what was to be
    added by it."""
    lasting = now < present.until
    excess = any(limit > request.granted.get(name, limit) for name, limit in request.base.items())
    headroom = read(request.entries).total
    amounts = present.amounts if lasting else ()
    pause = max(FIRST_PAUSE, present.pause if lasting else min(LONGEST_PAUSE, 2 * present.pause))
    return replace(
        present,
        amounts=amounts if excess or not headroom else (*amounts, headroom),
        excess=excess or (lasting and present.excess),
        until=now + pause,
        pause=pause,
    )


def as_request(facts: Facts, plan: Plan) -> Plan:
    """Returns the plan for a quota that only Rancher may write; its `hard` is what Rancher is to make of it."""
    entries = {key: text for key, text in plan.annotations_of(facts.quota).items() if is_entry(key)}
    if entries and plan.raised is None:  # an entry or the base cannot be read
        return replace(plan, annotations={}, hard={}, asks=True)
    try:
        base = _base(facts, entries)
        limits = _raised(facts, plan.raised or {}, base) if entries else base
        text = with_limits(facts.limits, {name: str(limit) for name, limit in limits.items()})
    except InvalidNamespaceAnnotation as exc:
        return replace(plan, annotations={}, hard={}, asks=True, problems=[*plan.problems, exc.problem])
    is_recorded = limits or facts.rancher.stuck or (facts.rancher.is_left_raised and not entries)
    record = _record(facts, text, base, entries) if is_recorded else None
    return _with_look(facts, replace(plan, annotations={}, asks=True, namespace=_changes(facts, text, record)))


def without_request(facts: Facts, plan: Plan) -> Plan:
    """Returns the plan of a quota that headroom writes itself, and with it the end of a request from before."""
    if request_of(facts.rancher.namespace) is None:
        return plan
    return replace(plan, namespace=_changes(facts, facts.limits, None))


def _base(facts: Facts, entries: Mapping[str, str]) -> ResourceList:
    """Returns the limits of the annotation without headroom that are requested otherwise than the person does.

    What the person requests beyond the grant is requested too, until Rancher has refused it: then it would refuse all.
    At the end the grant is requested first, as long as the quota is still raised: Rancher leaves what does not fit.
    """
    beyond = exceeding(facts.limits, facts.rancher.granted)
    granted = {name: limit for name, (_, limit) in beyond.items()}
    request = request_of(facts.rancher.namespace)
    if entries:
        return granted if _is_excess_refused(facts, beyond, request) else {}
    limits, hard = limits_of_annotation(facts.limits) | granted, facts.quota.hard
    is_raised = request is not None and any(
        quantity_of(hard, name) > limit for name, limit in limits.items() if name in hard and name in request.asked
    )
    return granted if is_raised else {}


def _is_excess_refused(facts: Facts, beyond: Mapping[str, tuple[Quantity, Quantity]], request: Request | None) -> bool:
    """Reports whether Rancher has refused what the person requests beyond the grant: by the last denial, or after a
    restart by what was requested last."""
    denial, validation = facts.timers.denial, validation_of(facts.rancher.namespace)
    if denial is not None:
        return denial.excess and facts.now < denial.until
    if request is None:
        return validation is not None and not validation.fits
    return request.annotation == facts.limits and any(
        request.base.get(name, requested) < requested for name, (requested, _) in beyond.items()
    )


def _raised(facts: Facts, raised: Mapping[str, Quantity], base: ResourceList) -> ResourceList:
    """Returns the limits that are requested otherwise than the person does: base + headroom."""
    requested, granted = limits_of_annotation(facts.limits), facts.rancher.granted
    limits = dict(base)
    for name, limit in raised.items():
        if name in requested:
            base_limit = (
                min(requested[name], granted.get(name, requested[name])) if granted is not None else requested[name]
            )
            limits[name] = base.get(name, requested[name]) + limit - base_limit
    return {name: limit for name, limit in limits.items() if limit != requested[name]}


def _record(facts: Facts, text: str, base: ResourceList, entries: Mapping[str, str]) -> Request:
    """Returns the record of a request; the time and the condition of one that asks for the same stay."""
    namespace = facts.rancher.namespace
    present, limits = request_of(namespace), limits_of_annotation(text)
    requested = limits_of_annotation(facts.limits)
    granted = facts.rancher.granted or {}
    new = Request(
        facts.limits,
        limits,
        {**requested, **base},
        {name: min(limit, requested.get(name, limit)) for name, limit in granted.items()},
        dict(entries),
        round(facts.now, 3),
        condition_text(namespace),
    )
    if present and present.asked == limits:
        return replace_struct(new, at=present.at, validation=present.validation)
    return new


def _changes(facts: Facts, text: str, record: Request | None) -> dict[str, str | None]:
    """Returns the changes of the namespace's annotations; one that Rancher has spelled otherwise is no change."""
    annotations = facts.rancher.namespace.annotations
    current = annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, "")
    changes: dict[str, str | None] = {}
    if limits_of_annotation(current) != limits_of_annotation(text):
        changes[constants.ANNOTATION_RANCHER_RESOURCE_QUOTA] = text or None
    written = format_request(record) if record else None
    if annotations.get(constants.ANNOTATION_REQUEST) != written:
        changes[constants.ANNOTATION_REQUEST] = written
    return changes


def _with_look(facts: Facts, plan: Plan) -> Plan:
    """Returns the plan with the time of the next look at Rancher's answer, and with what people have to know of it."""
    request = request_of(facts.rancher.namespace)
    due, problems, denial = plan.recheck_after or math.inf, [*plan.problems], plan.timers.denial
    if facts.rancher.stuck:
        problems.append(_stuck(facts))
    if denial and denial.until > facts.now:
        due = min(due, denial.until - facts.now)
    if request and not plan.namespace and not is_granted(request, facts.quota):
        patience = request.at + SILENCE - facts.now
        due = min(due, patience if patience > 0 else SILENCE)
        if patience <= 0:
            problems.append(Problem(EVENT_NO_ANSWER, _silence(facts)))
    return replace(plan, problems=problems, recheck_after=due if due < math.inf else None)


def _stuck(facts: Facts) -> Problem:
    keys = ", ".join(facts.rancher.stuck)
    return Problem(
        EVENT_STUCK,
        f"resource quota {facts.quota.name} carries entries that only Rancher may remove, and they no longer count: "
        f"{keys}. As long as they are there, Harvester's webhook refuses every change of the namespace's quota "
        f"annotation. An administrator removes them: {removal_command(facts.quota, facts.rancher.stuck)}",
    )


def _silence(facts: Facts) -> str:
    project = project_of(facts.rancher.namespace)
    reason = (
        f"its server has to run, and reach this cluster (project {project})"
        if project
        else "it writes none in a namespace without a project (annotation field.cattle.io/projectId)"
    )
    return (
        f"Rancher has not written resource quota {facts.quota.name} within {SILENCE:.0f} s of headroom's request in "
        f"annotation {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA} of namespace {facts.quota.namespace}: {reason}"
    )


def denied(facts: Facts, subject: str, headroom: Mapping[str, Quantity]) -> Problem | None:
    """Returns why `headroom` altogether, with `subject` in it, is not requested of Rancher; None if it may be."""
    denial = facts.timers.denial
    if denial is None or not facts.rancher.asks or facts.now >= denial.until:
        return None
    for amounts in denial.amounts:
        if all(headroom.get(name, ZERO) >= amount for name, amount in amounts.items()):
            return project_full(facts, subject, headroom)
    return None


def project_full(facts: Facts, subject: str, headroom: Mapping[str, Quantity]) -> Problem:
    """Returns the problem of a request that Rancher's project has no room for."""
    needed = _listed({name: amount for name, amount in sorted(headroom.items()) if amount > ZERO})
    validation = validation_of(facts.rancher.namespace)
    says = f"; Rancher says: {validation.message}" if validation and validation.message else ""
    project = project_of(facts.rancher.namespace) or "of the namespace"
    return Problem(EVENT_PROJECT_FULL, f"{subject} waits: {_NO_ROOM.format(project=project, needed=needed)}{says}")


def with_grant(facts: Facts, plan: Plan) -> Plan:
    """Returns the plan with what people have to know of a request that Rancher has not granted, once Rancher has
    refused it or had the time to answer."""
    beyond = exceeding(facts.limits, facts.rancher.granted) if is_served(facts.quota) else {}
    if not beyond:
        return plan
    since = facts.now if facts.timers.exceeds_since is None else facts.timers.exceeds_since
    plan = replace(plan, timers=replace(plan.timers, exceeds_since=since))
    validation, patience = validation_of(facts.rancher.namespace), since + SILENCE - facts.now
    if (validation is None or validation.fits) and patience > 0:
        return replace(plan, recheck_after=min(patience, plan.recheck_after or patience))
    return replace(plan, problems=[not_granted(facts, beyond), *plan.problems])


def not_granted(facts: Facts, beyond: Mapping[str, tuple[Quantity, Quantity]]) -> Problem:
    """Returns the problem of a namespace whose annotation exceeds Rancher's grant."""
    validation = validation_of(facts.rancher.namespace)
    amounts = ", ".join(
        f"{n} {format_amount(requested, n)} of which {format_amount(granted, n)} are granted"
        for n, (requested, granted) in beyond.items()
    )
    says = f"; Rancher says: {validation.message}" if validation and not validation.fits else ""
    text = f"namespace {facts.quota.namespace} requests more than Rancher has granted: {amounts}{says}"
    return Problem(EVENT_NOT_GRANTED, text)


# ---- a project's room, where the project may be read: in the cluster of Rancher's server alone -----------------

_NO_ROOM = "Rancher's project {project} has no room for {needed} more"


def project_room(project: Project, namespaces: Iterable[Namespace], name: str) -> ResourceList:
    """Returns what the namespace of that name may request beyond what its person does, by the ResourceQuota's resource
    names. `namespaces` are all of the cluster: what those of the project request counts, granted or not (rancher
    pkg/resourcequota, quota_validate.go)."""
    quota = project.spec.resource_quota
    of_project = [item for item in namespaces if project_of(item) == project.id]
    requests = {item.name: item.annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, "") for item in of_project}
    requests |= {item.name: annotation_of(item) for item in of_project if item.name == name}
    used = total(map(limits_of_annotation, requests.values()))
    limits = limits_of_annotation(json.dumps({"limit": (quota.limit if quota else None) or {}}))
    return {name: max(ZERO, limit - used.get(name, ZERO)) for name, limit in limits.items()}


def project_shortage(project: Project, remainders: Mapping[str, Quantity], needs: Mapping[str, Quantity]) -> str:
    """Returns why the project cannot grant so much more, with what is needed and what is left; "" where it can."""
    missing = {
        name: amount for name, amount in sorted(needs.items()) if name in remainders and amount > remainders[name]
    }
    if not missing:
        return ""
    return f"{_NO_ROOM.format(project=project.id, needed=_listed(missing))}: {text_of(remainders, missing)}"


def text_of(remainders: Mapping[str, Quantity], names: Iterable[str]) -> str:
    """Returns what is left of these resources, as text."""
    return f"left {_listed({name: remainders[name] for name in sorted(names) if name in remainders})}"


def _listed(amounts: Mapping[str, Quantity]) -> str:
    return ", ".join(f"{format_amount(amount, name)} of {name}" for name, amount in amounts.items())
