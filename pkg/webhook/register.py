"""Wiring of the webhooks: every path, what answers it and what that looks at."""

from __future__ import annotations

from collections.abc import Mapping

from pkg.util.resourcequota.planner import Policy
from pkg.util.webhook_names import LOCK_PATH
from pkg.webhook import configurations as paths
from pkg.webhook.options import Options
from pkg.webhook.resources.lock import validator as lock
from pkg.webhook.resources.namespace import validator as namespace
from pkg.webhook.resources.pod import validator as pod
from pkg.webhook.resources.resourcequota import validator as resourcequota
from pkg.webhook.resources.virtualmachine import validator as virtualmachine
from pkg.webhook.server import Hook
from pkg.webhook.view import View


def hooks(
    view: View, policy: Policy, options: Options, locks: lock.Locks, accounts: lock.Accounts
) -> Mapping[str, Hook]:
    """What is served by path. All paths are served whatever is registered: another replica may still be asked with
    the options of before."""
    guard = resourcequota.Guard(view, policy, options)
    return {
        paths.VALIDATE_NAMESPACE: namespace.Validator(view).validate,
        paths.VALIDATE_RESOURCE_QUOTA: guard.validate,
        paths.MUTATE_RESOURCE_QUOTA: guard.mutate,
        paths.VALIDATE_POD: pod.Validator(view, policy, options).validate,
        LOCK_PATH: lock.Validator(locks, accounts).validate,
        paths.VALIDATE_VIRTUAL_MACHINE: virtualmachine.Validator(view).validate,
    }
