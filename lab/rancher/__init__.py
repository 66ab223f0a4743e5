"""A stand-in for Rancher, as far as it writes ResourceQuotas: the base, and nothing but the base.

Promises: the namespace annotation `field.cattle.io/resourceQuota` is rendered into the namespace's default quota when
it changes, and into every one when the "agent" (re)starts, no matter what has raised spec.hard since. Only spec.hard is
written.
Forbids: knowing anything of headroom or Harvester. It is the other side, and must not be kinder than the original.

`python -m lab.rancher --kubeconfig F`; its agent restarts with the process, and on SIGHUP.
Facts: Rancher's pkg/controllers/managementuser/resourcequota (resource_quota_sync.go).
"""
