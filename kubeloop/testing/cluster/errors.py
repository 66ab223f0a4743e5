"""Errors of the embedded cluster. Each message is one line and says what to do next."""

from __future__ import annotations

from kubeloop.errors import ReportedError


class ClusterError(ReportedError):
    """The embedded cluster cannot be built, started or stopped."""


class UnknownRelease(ClusterError):
    """A Kubernetes release was asked for that the cluster does not have."""

    exit_code = 2


class DownloadError(ClusterError):
    """An official release could not be had: not reachable, not complete, or not what its checksum says."""


class StartError(ClusterError):
    """A process of the cluster ended or did not become ready in time."""
