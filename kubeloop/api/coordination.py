"""coordination.k8s.io: leases."""

from __future__ import annotations

from kubeloop.api.meta import Object, Struct


class LeaseSpec(Struct):
    """Times are the holder's own, for people to read: they are never compared with another clock."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object):
    spec: LeaseSpec = LeaseSpec()
