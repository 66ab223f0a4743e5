"""`headroom controller`: the controllers, until a signal."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kubeloop.client.loading import load_config
from kubeloop.controllers.run import run_until_signal
from pkg.cmd.leftovers import look_at_registered
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
from pkg.cmd.replica import Replica
from pkg.controller.options import Options

if TYPE_CHECKING:
    from pkg.webhook.register import Webhooks


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
    logging.set_up()
    if controllers.webhook and controllers.remove_webhooks:
        raise WrongCall("--webhook and --remove-webhooks exclude each other")
    options = _options(policy, controllers)
    served = _webhooks(policy, controllers, webhooks, process)
    durations = election.config()
    config = load_config(cluster.kubeconfig)
    options = replace(options, namespace=process.namespace or config.namespace, dry_run=process.dry_run)
    # A dry run writes nothing, the Lease included.
    elected = not process.dry_run and (config.in_cluster if election.leader_elect is None else election.leader_elect)

    others = partial(look_at_registered, namespace=options.namespace, remove=controllers.remove_webhooks)
    replica = Replica(
        config,
        options,
        controllers.workers,
        durations if elected else None,
        process.health_bind_address,
        process.metrics_bind_address,
        webhooks=served.server if served else None,
        webhook_address=webhooks.address(config.in_cluster),
        beside=None if process.dry_run or (served and served.options.register) else others,
    )
    return run_until_signal(replica.serve)


def _webhooks(
    policy: PolicyOptions, controllers: ControllerOptions, webhooks: WebhookOptions, process: ProcessOptions
) -> Webhooks | None:
    """None without webhooks; what the command line says about them is checked all the same. Raises ConfigError."""
    if not (controllers.webhook or policy.kubevirt_user or policy.rancher_user or webhooks != WebhookOptions()):
        return None
    from pkg.cmd.webhook import checked  # a controller without webhooks has no use for their libraries

    served = checked(policy, webhooks, process, controllers.only_namespace or ())
    return served if controllers.webhook else None


def _options(policy: PolicyOptions, controllers: ControllerOptions) -> Options:
    """What the controllers are given. Raises WrongCall."""
    return Options(
        replace(
            policy.policy(),
            foreign_grace=controllers.foreign_grace,
            compensate=controllers.compensate,
            render=controllers.render_default_quota,
        ),
        profile=policy.profile(),
        reserve=policy.reserves(),
        rancher_quotas=policy.rancher_quotas,
        lock_limit=controllers.lock_limit,
        controller_users=tuple(policy.controller_user or ()),
        kubevirt_users=tuple(policy.kubevirt_user or ()),
        only_namespaces=tuple(controllers.only_namespace or ()),
        never_lock=tuple(controllers.never_lock or ()),
    )
