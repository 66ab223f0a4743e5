"""Kubernetes' count of a pod for ResourceQuota: usage, scopes, limit ranges, defaulting. Pure; no KubeVirt."""
