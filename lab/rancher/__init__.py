"""A stand-in for Rancher, as far as it has to do with ResourceQuotas: projects, what namespaces request of them, and
the webhook by which only Rancher writes the quotas.

Promises: on every event of a namespace and at each start of its agent, what the namespace requests
(`field.cattle.io/resourceQuota`, completed by the project's default) is compared with its default quota; a difference
is validated against the project, and then Rancher's number is written, whoever has raised spec.hard since. What does
not fit leaves the quota as it is, or is created as zero; the condition ResourceQuotaValidated says so. A quota that
equals the request is not validated. Release 2.15.2 has the webhook `rancher.cattle.io` as well, 2.13 has not.
Forbids: knowing anything of headroom or Harvester. It is the other side, and must not be kinder than the original,
with one exception: `SyncController._sync_without_project`.

`python -m lab.rancher --kubeconfig F --rancher 2.13|2.15.2`; its agent restarts with the process, and on SIGHUP.
Read in rancher/rancher 2.8.0 to main of August 2026, and rancher/webhook 0.11.2: docs/upstream.md.
"""
