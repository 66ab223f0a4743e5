"""Namespaces: the default ResourceQuota where no Rancher renders it (`--render-default-quota`), and the label of those
that hold added headroom (`--reserve`).

Promises: a namespace is labelled before one of its quotas is raised.
Forbids: writing an existing ResourceQuota: `pkg.controller.resourcequota` watches the annotation."""
