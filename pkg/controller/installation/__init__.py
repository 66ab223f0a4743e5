"""A controller's own installation: the ConfigMap `headroom`, and whether deploy/policy.yaml is in force.

Promises: checked when the controller starts and hourly; what cannot be read or written is logged and never stops it.
Forbids: creating or changing a policy: that is the administrator's.
"""
