"""Wiring of the webhooks: every path and its handler."""

from __future__ import annotations

from collections.abc import Mapping

from kubeloop.api.meta import Object
from pkg.config.probe import PROBE_MARK, PROBE_PATH
from pkg.util.constants import LOCK_PATH
from pkg.util.resourcequota.policy import Policy
from pkg.webhook import configurations as paths
from pkg.webhook.admission import AdmissionRequest, Decision
from pkg.webhook.options import Options
from pkg.webhook.resources.lock import validator as lock
from pkg.webhook.resources.namespace import validator as namespace
from pkg.webhook.resources.pod import validator as pod
from pkg.webhook.resources.resourcequota import validator as resourcequota
from pkg.webhook.resources.virtualmachine import validator as virtualmachine
from pkg.webhook.server import Hook
from pkg.webhook.view import View


def hooks(
    view: View,
    policy: Policy,
    options: Options,
    endpoint: paths.Endpoint,
    locks: lock.Locks,
    accounts: lock.Accounts,
    tell: resourcequota.Tell,
) -> Mapping[str, Hook]:
    """What is served by path. All paths are served whatever is registered: another replica may still be asked with
    the options of before."""
    guard = resourcequota.Guard(view, policy, options, tell)
    mark = paths.fingerprint(endpoint, options)
    return {
        PROBE_PATH: lambda request: answer_probe(request, mark),
        paths.VALIDATE_NAMESPACE: namespace.Validator(view).validate,
        paths.VALIDATE_RESOURCE_QUOTA: guard.validate,
        paths.MUTATE_RESOURCE_QUOTA: guard.mutate,
        paths.VALIDATE_POD: pod.Validator(view, policy, options, accounts.makes_targets).validate,
        LOCK_PATH: lock.Validator(locks, accounts).validate,
        paths.VALIDATE_VIRTUAL_MACHINE: virtualmachine.Validator(view).validate,
    }


async def answer_probe(request: AdmissionRequest, mark: str) -> Decision:
    """Puts the mark on; reads nothing."""
    key = PROBE_MARK.replace("~", "~0").replace("/", "~1")
    if request.new(Object).metadata.annotations:
        return Decision(patch=[{"op": "add", "path": f"/metadata/annotations/{key}", "value": mark}])
    return Decision(patch=[{"op": "add", "path": "/metadata/annotations", "value": {PROBE_MARK: mark}}])
