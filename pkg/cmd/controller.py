"""`headroom controller`: the controllers, until a signal."""

from dataclasses import replace

from kubeloop.client.loading import load_config
from kubeloop.controllers.run import run_until_signal
from pkg.cmd import options
from pkg.process.replica import Replica


def controller(
    cluster: options.ClusterOptions,
    policy: options.PolicyOptions,
    controllers: options.ControllerOptions,
    webhooks: options.WebhookOptions,
    election: options.ElectionOptions,
    process: options.ProcessOptions,
    logging: options.LogOptions,
) -> int:
    """Raise quotas for live migrations and lower them again, until SIGTERM or SIGINT."""
    logging.set_up()
    if controllers.webhook and controllers.remove_webhooks:
        raise options.WrongCall("--webhook and --remove-webhooks exclude each other")
    settings = options.settings_of(policy, process, webhooks, controllers)
    served = None
    if controllers.webhook or webhooks != options.WebhookOptions():  # flags without effect are checked as well
        from pkg.cmd.webhook import webhooks_of  # a controller without webhooks has no use for their libraries

        served = webhooks_of(settings, webhooks)
    durations = election.config()
    config = load_config(cluster.kubeconfig)
    settings = replace(settings, namespace=settings.namespace or config.namespace)
    # A dry run writes nothing, the Lease included.
    elected = not settings.dry_run and (config.in_cluster if election.leader_elect is None else election.leader_elect)
    replica = Replica(
        config=config,
        settings=settings,
        health_bind_address=process.health_bind_address or "127.0.0.1:8081",
        metrics_bind_address=process.metrics_bind_address,
        workers=controllers.workers,
        election=durations if elected else None,
        webhooks=served if controllers.webhook else None,
        webhook_address=webhooks.address(config.in_cluster),
        remove_webhooks=controllers.remove_webhooks,
    )
    return run_until_signal(replica.serve)
