"""The settings of a process, from its flags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kubeloop.client.errors import ConfigError
from pkg.cmd.options import ControllerOptions, PolicyOptions, ProcessOptions, WebhookOptions
from pkg.config.settings import RANCHER_USERS, WEBHOOKS, Settings
from pkg.util.resourcequota.policy import Policy

_POLICIES: Final = ("Ignore", "Fail")


def settings_of(
    policy: PolicyOptions,
    process: ProcessOptions,
    webhooks: WebhookOptions,
    controllers: ControllerOptions | None = None,
) -> Settings:
    """The choices of an operator; the namespace is "" where no flag names it. Raises ConfigError and WrongCall for what
    cannot work."""
    controllers = controllers or ControllerOptions()
    return Settings(
        policy=Policy(
            policy.mode,
            policy.estimate,
            hold_limit=policy.hold_limit,
            foreign_grace=controllers.foreign_grace,
            compensate=controllers.compensate,
            render=controllers.render_default_quota,
        ),
        profile=policy.profile(),
        namespace=process.namespace or "",
        reserve=policy.reserves(),
        rancher_quotas=policy.rancher_quotas,
        dry_run=process.dry_run,
        only_namespaces=tuple(controllers.only_namespace or ()),
        controller_users=tuple(policy.controller_user or ()),
        kubevirt_users=tuple(exact_user(user) for user in policy.kubevirt_user or ()),
        lock_limit=controllers.lock_limit,
        never_lock=tuple(controllers.never_lock or ()),
        quota_guard=webhooks.quota_guard,
        strict=strict_webhooks(webhooks.failure_policy or ()),
        rancher_users=tuple(policy.rancher_user or RANCHER_USERS),
        secret_name=webhooks.secret_name,
        register=webhooks.register and not process.dry_run,
        client_names=tuple(webhooks.client_name or ()),
        inject_ca_from=webhooks.inject_ca_from,
    )


def exact_user(user: str) -> str:
    """The user name. Raises ConfigError for an empty one and for a pattern: it would match tenants' accounts too."""
    if not user or not set("*?[").isdisjoint(user):
        raise ConfigError(f"--kubevirt-user: {user!r} is not an exact user name")
    return user


def strict_webhooks(texts: Iterable[str]) -> list[str]:
    """Returns those of WEBHOOKS that are given Fail: by `POLICY` for all, by `WEBHOOK=POLICY` for one; the last of each
    holds. Raises ConfigError."""
    policies: dict[str, str] = {}
    for text in texts:
        webhook, is_single, policy = text.rpartition("=")
        if policy not in _POLICIES:
            raise ConfigError(f"--failure-policy: {text!r} does not end in one of {', '.join(_POLICIES)}")
        if is_single and webhook not in WEBHOOKS:
            raise ConfigError(f"--failure-policy: {webhook!r} is not one of the webhooks {', '.join(WEBHOOKS)}")
        policies[webhook] = policy
    return [name for name in WEBHOOKS if policies.get(name, policies.get("")) == "Fail"]
