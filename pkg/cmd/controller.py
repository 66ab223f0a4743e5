"""`headroom controller`: the controllers, until a signal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pkg.cmd import logs
from pkg.cmd.options import (
    ClusterOptions,
    ControllerOptions,
    ElectionOptions,
    LogOptions,
    PolicyOptions,
    ProcessOptions,
    WebhookOptions,
    WrongCall,
)

if TYPE_CHECKING:
    from pkg.cmd.admission import Admission
    from pkg.controller.options import Options


def controller(
    cluster: ClusterOptions,
    policy: PolicyOptions,
    controllers: ControllerOptions,
    webhooks: WebhookOptions,
    election: ElectionOptions,
    process: ProcessOptions,
    logging: LogOptions,
) -> int:
    """Raise quotas for live migrations and lower them again, until SIGTERM or SIGINT."""
    from kubeloop.client.loading import load_config
    from kubeloop.controllers.run import run_until_signal
    from pkg.cmd.replica import Replica

    logs.set_up(logging)
    if controllers.webhook and controllers.remove_webhooks:
        raise WrongCall("--webhook and --remove-webhooks exclude each other")
    options = _options(policy, controllers)
    admission = _admission(policy, controllers, webhooks, process)
    durations = election.config()
    config = load_config(cluster.kubeconfig)
    options = replace(options, namespace=process.namespace or config.namespace, dry_run=process.dry_run)
    # A dry run writes nothing, the Lease included.
    elected = not process.dry_run and (
        config.in_cluster if election.leader_elect is None else election.leader_elect
    )
    replica = Replica(
        config,
        options,
        controllers.workers,
        process,
        admission,
        durations if elected else None,
        remove_webhooks=controllers.remove_webhooks,
    )
    return run_until_signal(replica.serve)


def _admission(
    policy: PolicyOptions, controllers: ControllerOptions, webhooks: WebhookOptions, process: ProcessOptions
) -> Admission | None:
    """None without webhooks; what the command line says about them is checked all the same. Raises ConfigError."""
    if not (
        controllers.webhook or policy.kubevirt_user or policy.rancher_user or webhooks != WebhookOptions()
    ):
        return None
    from pkg.cmd.admission import Admission

    register = webhooks.register and not process.dry_run
    admission = Admission(policy, replace(webhooks, register=register), process.namespace)
    admission.check()
    return admission if controllers.webhook else None


def _options(policy: PolicyOptions, controllers: ControllerOptions) -> Options:
    """What the controllers are given. Raises WrongCall."""
    from pkg.controller.options import Options

    return Options(
        replace(
            policy.policy(),
            foreign_grace=controllers.foreign_grace,
            compensate=controllers.compensate,
            render=controllers.render_default_quota,
        ),
        profile=policy.profile(),
        reserve=policy.reserves(),
        lock_limit=controllers.lock_limit,
        controller_users=tuple(policy.controller_user or ()),
        kubevirt_users=tuple(policy.kubevirt_user or ()),
        only_namespaces=tuple(controllers.only_namespace or ()),
        never_lock=tuple(controllers.never_lock or ()),
    )
