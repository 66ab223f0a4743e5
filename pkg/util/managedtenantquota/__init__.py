"""The second strategy: a namespace's quotas are lifted only for the moment in which target pods are created.

Promises: every decision is a pure function of what is observed, and the next write follows from that alone, so that
the process may end after any of them. What a target pod counts comes from `pkg.util.resourcequota`.
Forbids: a quota that is raised without a lock and a saved original, and a second copy of quota's arithmetic.
Source: KubeVirt managed-tenant-quota's behaviour and wire format."""
