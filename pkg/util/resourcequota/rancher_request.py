"""A plan as a request to Rancher: the namespace's annotation instead of the quota. Pure.

    plan of the quota → annotation and record → Rancher's answer: granted, refused, or none yet

While something is added, the annotation says base + headroom and the record says the rest. At the end the annotation
says again what the person requested. Where that exceeds the grant, Rancher would leave the quota raised: the grant is
requested first, and the person's number when Rancher has written it."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.api.objects import edit
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, total
from pkg.api.harvesterhci import Project
from pkg.util import constants
from pkg.util.amounts import format_amount
from pkg.util.problems import EVENT_NO_ANSWER, EVENT_NOT_GRANTED, EVENT_PROJECT_FULL, Problem, ResourceQuotaError
from pkg.util.resourcequota import rancher
from pkg.util.resourcequota.base import quantity_of, with_limits
from pkg.util.resourcequota.entries import is_entry, read
from pkg.util.resourcequota.facts import Denial, Facts, Plan
from pkg.util.resourcequota.managed import is_served

PAUSE = 30.0
"""Seconds after which what the project had no room for is requested again."""


def with_answer(facts: Facts) -> Facts:
    """Returns the facts with Rancher's denial in their timers: then nothing of what it refused is added yet."""
    request, denial, now = rancher.request_of(facts.rancher.namespace), facts.timers.denial, facts.now
    if not facts.rancher.asks:
        return facts
    requests = (facts.limits, *facts.rancher.siblings)
    if denial and (denial.requests != requests or abs(now - denial.at) >= PAUSE):
        denial = None
    quota = facts.quota
    if request and not rancher.is_granted(request, quota) and _is_refused(request, facts):
        denied = denial.amounts if denial else ()
        if not _has_excess(request):  # else the person's excess is requested no more, and the entries may fit
            headroom = read(request.entries).total
            denied = (*denied, *([headroom] if headroom and headroom not in denied else []))
            annotations = {key: text for key, text in quota.annotations.items() if not is_entry(key)}
            quota = edit(quota, metadata={"annotations": annotations})
        denial = Denial(requests, denied, now)
    return replace(facts, quota=quota, timers=replace(facts.timers, denial=denial))


def _is_refused(request: rancher.Request, facts: Facts) -> bool:
    """Reports whether Rancher has found that the request does not fit into the project.

    A condition from before the request counts only after a time in which a Rancher that runs has answered: it writes
    the same text again where two requests of one second are refused alike."""
    validation = rancher.validation_of(facts.rancher.namespace)
    if validation is None or validation.fits:
        return False
    return validation.text != request.validation or facts.now - request.at >= rancher.SILENCE


def _has_excess(request: rancher.Request) -> bool:
    return any(limit > request.granted.get(name, limit) for name, limit in request.base.items())


def _clipped_for(request: rancher.Request, now: float) -> float:
    """Returns how many seconds a request for the grant alone still keeps out what the person requests beyond it."""
    requested = rancher.limits_of_annotation(request.annotation)
    is_clipped = any(limit < requested.get(name, limit) for name, limit in request.base.items())
    seconds_left = request.at + PAUSE - now  # more than that: the clock was set back since
    return seconds_left if is_clipped and 0.0 < seconds_left < 2 * PAUSE else 0.0


def beside_rancher(facts: Facts, plan: Plan) -> Plan:
    """Returns the plan as a request where only Rancher may write the quota, elsewhere with the end of a request from
    before, and with what people have to know of a request that Rancher has refused."""
    validation = rancher.validation_of(facts.rancher.namespace)
    if facts.rancher.asks:
        plan = _as_request(facts, plan)
    elif rancher.request_of(facts.rancher.namespace):
        plan = replace(plan, namespace=_changes(facts, facts.limits, None))
    is_refused = validation is not None and not validation.fits and is_served(facts.quota)
    problem = not_granted(facts) if is_refused else None
    return replace(plan, problems=[problem, *plan.problems]) if problem else plan


def _as_request(facts: Facts, plan: Plan) -> Plan:
    """Returns the plan's `hard` as what Rancher is to make of the quota."""
    entries = {key: text for key, text in plan.annotations_of(facts.quota).items() if is_entry(key)}
    if entries and plan.raised is None:  # an entry or the base cannot be read
        return replace(plan, annotations={}, hard={}, asks=True)
    requested, headroom = rancher.limits_of_annotation(facts.limits), read(entries).total
    base, raised = _base(facts, requested, has_entries=bool(entries)), plan.raised or {}
    asked = {name: limit + headroom.get(name, ZERO) if name in raised else limit for name, limit in base.items()}
    changed = {name: str(limit) for name, limit in asked.items() if limit != requested[name]}
    try:
        text = with_limits(facts.limits, changed)
    except ResourceQuotaError as exc:
        return replace(plan, annotations={}, hard={}, asks=True, problems=[*plan.problems, exc.problem])
    record = None
    if changed or facts.rancher.stuck:
        asked, granted = rancher.limits_of_annotation(text), facts.rancher.granted or {}
        before = {name: min(limit, requested.get(name, limit)) for name, limit in granted.items()}
        namespace = facts.rancher.namespace
        present, validation = rancher.request_of(namespace), rancher.validation_of(namespace)
        at, answer = round(facts.now, 3), validation.text if validation else ""
        if present and present.asked == asked:
            at, answer = present.at, present.validation
        record = rancher.Request(facts.limits, asked, base, before, entries, at, answer)
    return _with_look(facts, replace(plan, annotations={}, asks=True, namespace=_changes(facts, text, record)))


def _base(facts: Facts, requested: ResourceList, *, has_entries: bool) -> ResourceList:
    """Returns the limits of the annotation without headroom: the person's, or the grant where they are beyond that.

    What the person requests beyond the grant is requested too, unless Rancher has refused it within PAUSE: it would
    refuse all. At the end the grant is requested first, as long as the quota is still raised: Rancher leaves what does
    not fit."""
    granted = {name: limit for name, (_, limit) in rancher.exceeding(facts.limits, facts.rancher.granted).items()}
    request, validation = rancher.request_of(facts.rancher.namespace), rancher.validation_of(facts.rancher.namespace)
    base, hard = {**requested, **granted}, facts.quota.hard
    if not has_entries:
        asked = request.asked if request else {}
        takes_grant = any(quantity_of(hard, name) > base[name] for name in base if name in hard and name in asked)
    elif request is None:
        takes_grant = validation is not None and not validation.fits
    else:
        is_refused = _has_excess(request) and _is_refused(request, facts)
        takes_grant = request.annotation == facts.limits and (is_refused or _clipped_for(request, facts.now) > 0)
    return base if takes_grant else requested


def _changes(facts: Facts, text: str, record: rancher.Request | None) -> dict[str, str | None]:
    """Returns the changes of the namespace's annotations; one that Rancher has spelled otherwise is no change."""
    annotations = facts.rancher.namespace.annotations
    current = annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, "")
    changes: dict[str, str | None] = {}
    if rancher.limits_of_annotation(current) != rancher.limits_of_annotation(text):
        changes[constants.ANNOTATION_RANCHER_RESOURCE_QUOTA] = text or None
    written = rancher.format_request(record) if record else None
    if annotations.get(constants.ANNOTATION_REQUEST) != written:
        changes[constants.ANNOTATION_REQUEST] = written
    return changes


def _with_look(facts: Facts, plan: Plan) -> Plan:
    """Returns the plan with the time of the next look at Rancher's answer, and with what people have to know of it."""
    request, denial, now = rancher.request_of(facts.rancher.namespace), plan.timers.denial, facts.now
    due, problems = plan.recheck_after or math.inf, [*plan.problems]
    if facts.rancher.stuck:
        problems.append(rancher.stuck_problem(facts.quota, facts.rancher.stuck))
    if denial:
        due = min(due, denial.at + PAUSE - now)
    if plan.namespace.get(constants.ANNOTATION_REQUEST):
        due = min(due, rancher.SILENCE)
    elif request and not plan.namespace and not rancher.is_granted(request, facts.quota):
        patience = request.at + rancher.SILENCE - now
        due = min(due, patience if patience > 0 else rancher.SILENCE)
        if patience <= 0:
            problems.append(_silence(facts))
    elif request and not plan.namespace and request.entries and (seconds_left := _clipped_for(request, now)):
        due = min(due, seconds_left)
    return replace(plan, problems=problems, recheck_after=due if due < math.inf else None)


def _silence(facts: Facts) -> Problem:
    quota, project = facts.quota, rancher.project_of(facts.rancher.namespace)
    reason = "it writes none in a namespace without a project (annotation field.cattle.io/projectId)"
    if project:
        reason = f"its server has to run, and reach this cluster (project {project})"
    text = (
        f"Rancher has not written resource quota {quota.name} within {rancher.SILENCE:.0f} s of headroom's request in "
        f"annotation {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA} of namespace {quota.namespace}: {reason}"
    )
    return Problem(EVENT_NO_ANSWER, text)


def denied(facts: Facts, subject: str, headroom: Mapping[str, Quantity]) -> Problem | None:
    """Returns why `headroom` altogether, with `subject` in it, is not requested of Rancher; None if it may be."""
    denial = facts.timers.denial
    if denial is None or not facts.rancher.asks:
        return None
    if all(any(headroom.get(name, ZERO) < amount for name, amount in amounts.items()) for amounts in denial.amounts):
        return None
    validation = rancher.validation_of(facts.rancher.namespace)
    needed = _listed({name: headroom[name] for name in sorted(headroom) if headroom[name] > ZERO})
    says = f"; Rancher says: {validation.message}" if validation and validation.message else ""
    project = rancher.project_of(facts.rancher.namespace) or "of the namespace"
    text = f"{subject} waits: Rancher's project {project} has no room for {needed} more{says}"
    return Problem(EVENT_PROJECT_FULL, text)


def not_granted(facts: Facts) -> Problem | None:
    """Returns the problem of a namespace whose annotation exceeds Rancher's grant, or None."""
    validation = rancher.validation_of(facts.rancher.namespace)
    amounts = ", ".join(
        f"{n} {format_amount(requested, n)} of which {format_amount(granted, n)} are granted"
        for n, (requested, granted) in rancher.exceeding(facts.limits, facts.rancher.granted).items()
    )
    if not amounts:
        return None
    says = f"; Rancher says: {validation.message}" if validation and not validation.fits else ""
    text = f"namespace {facts.quota.namespace} requests more than Rancher has granted: {amounts}{says}"
    return Problem(EVENT_NOT_GRANTED, text)


def project_room(project: Project, namespaces: Iterable[Namespace], quota: ResourceQuota) -> str:
    """Returns what the quota's namespace may request beyond what its person does, as text. `namespaces` are all of the
    cluster: what those of the project request counts, granted or not (rancher pkg/resourcequota, quota_validate.go)."""
    limit = project.spec.resource_quota and project.spec.resource_quota.limit
    requests = [
        rancher.annotation_of(item)
        if item.name == quota.namespace
        else item.annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, "")
        for item in namespaces
        if rancher.project_of(item) == f"{project.namespace}:{project.name}"
    ]
    used = total(map(rancher.limits_of_annotation, requests))
    limits = rancher.limits_of_annotation(json.dumps({"limit": limit or {}}))
    remainders = {name: max(ZERO, limits[name] - used.get(name, ZERO)) for name in sorted(limits) if name in quota.hard}
    return f"; left {_listed(remainders)}"


def _listed(amounts: Mapping[str, Quantity]) -> str:
    return ", ".join(f"{format_amount(amount, name)} of {name}" for name, amount in amounts.items())
