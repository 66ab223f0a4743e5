"""Flags of the webhooks: `headroom webhook` and `headroom controller --webhook` take the same."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class QuotaGuardChoice(StrEnum):
    """See pkg.webhook.options.QuotaGuard; here so that a command line costs no import of the webhooks."""

    CORRECT = "correct"
    DENY = "deny"
    OFF = "off"


class FailurePolicyChoice(StrEnum):
    """See pkg.webhook.options.FailurePolicy."""

    IGNORE = "Ignore"
    FAIL = "Fail"


class Switch(StrEnum):
    """A choice whose default depends on another one."""

    ON = "on"
    OFF = "off"


BindAddress = Annotated[
    str, typer.Option("--bind-address", envvar="HEADROOM_BIND_ADDRESS", help="Where the webhooks listen.")
]
WebhookURL = Annotated[
    str | None,
    typer.Option(
        "--webhook-url",
        envvar="HEADROOM_WEBHOOK_URL",
        help="https://host:port to register, where the API server cannot reach a Service.",
        show_default=False,
    ),
]
QuotaGuardOption = Annotated[
    QuotaGuardChoice,
    typer.Option(
        "--quota-guard",
        envvar="HEADROOM_QUOTA_GUARD",
        help="Writes that lower a quota under migrations: correct Rancher's and deny others', deny all, or off.",
    ),
]
Reserve = Annotated[
    Switch | None,
    typer.Option(
        "--reserve",
        envvar="HEADROOM_RESERVE",
        help="Keep added room for migrations: no other pod may take it. Default: on in takeover mode.",
        show_default=False,
    ),
]
FailurePolicyOption = Annotated[
    FailurePolicyChoice,
    typer.Option(
        "--failure-policy", envvar="HEADROOM_FAILURE_POLICY", help="What holds while no webhook answers."
    ),
]
RancherUsers = Annotated[
    list[str] | None,
    typer.Option(
        "--rancher-user",
        envvar="HEADROOM_RANCHER_USER",
        help="Pattern of user names whose writes are corrected; may be repeated. Default: Rancher's accounts.",
        show_default=False,
    ),
]
KubeVirtUsers = Annotated[
    list[str] | None,
    typer.Option(
        "--kubevirt-user",
        envvar="HEADROOM_KUBEVIRT_USER",
        help="Pattern of user names that create migrations' pods; may be repeated. Default: virt-controller's.",
        show_default=False,
    ),
]
ControllerUsers = Annotated[
    list[str] | None,
    typer.Option(
        "--controller-user",
        envvar="HEADROOM_CONTROLLER_USER",
        help="User name whose writes pass a namespace's lock; may be repeated. The own account always does.",
        show_default=False,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        envvar="HEADROOM_NAMESPACE",
        help="Of the certificate's Secret and the Service. Default: the pod's or the kubeconfig's own.",
        show_default=False,
    ),
]
ServiceName = Annotated[str, typer.Option("--service-name", envvar="HEADROOM_SERVICE_NAME")]
SecretName = Annotated[str, typer.Option("--secret-name", envvar="HEADROOM_SECRET_NAME")]
TLSCertFile = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert-file",
        envvar="HEADROOM_TLS_CERT_FILE",
        help="Serve this certificate (cert-manager's) instead of a self-issued one; reloaded on change.",
        show_default=False,
    ),
]
TLSKeyFile = Annotated[
    Path | None, typer.Option("--tls-key-file", envvar="HEADROOM_TLS_KEY_FILE", show_default=False)
]
TLSCAFile = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca-file",
        envvar="HEADROOM_TLS_CA_FILE",
        help="CA to register. Default: ca.crt beside the certificate, else caBundle is left to an injector.",
        show_default=False,
    ),
]
Register = Annotated[
    bool,
    typer.Option(
        "--register/--no-register",
        envvar="HEADROOM_REGISTER",
        help="Write the webhook configurations; without, they are somebody else's (a chart's).",
    ),
]
