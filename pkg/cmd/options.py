"""Flags that several commands share. Every flag is an environment variable HEADROOM_<FLAG> too."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pkg.util.memory_overhead import OverheadProfile


class WrongCall(Exception):
    """A flag's value that cannot be: one line, exit code 2."""


class Absent(Exception):
    """What a command was asked about is not there: one line, exit code 1."""


class LogFormat(StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class Estimate(StrEnum):
    """How much a migration needs."""

    HARVESTER = "harvester"
    EXACT = "exact"


class ModeChoice(StrEnum):
    """See pkg.util.resourcequota.planner.Mode; here so that a command line costs no import of the planner."""

    TAKEOVER = "takeover"
    ASSIST = "assist"


Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        envvar="HEADROOM_KUBECONFIG",
        help="Kubeconfig file; else $KUBECONFIG, in-cluster, ~/.kube/config.",
        show_default=False,
    ),
]
LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", envvar="HEADROOM_LOG_FORMAT")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", envvar="HEADROOM_VERBOSE", help="Log at debug level.")
]
HealthBindAddress = Annotated[
    str,
    typer.Option(
        "--health-bind-address", envvar="HEADROOM_HEALTH_BIND_ADDRESS", help="/healthz and /readyz; 0 is off."
    ),
]
MetricsBindAddress = Annotated[
    str | None,
    typer.Option(
        "--metrics-bind-address",
        envvar="HEADROOM_METRICS_BIND_ADDRESS",
        help="/metrics; beside the health checks if not given, 0 is off.",
        show_default=False,
    ),
]


def overhead_profile(name: str) -> OverheadProfile:
    """The overhead constants of a profile's name or of any KubeVirt version. Raises WrongCall."""
    from pkg.util.memory_overhead import PROFILES, is_version, profile_for_version

    if name in PROFILES:
        return PROFILES[name]
    if not is_version(name):
        raise WrongCall(f"--kubevirt-profile must be a KubeVirt version or main, not {name!r}")
    return profile_for_version(name)


def chosen_profile(name: str | None) -> OverheadProfile | None:
    """The profile that --kubevirt-profile names; None: as the KubeVirt CR says. Raises WrongCall."""
    return None if name is None else overhead_profile(name)
