"""Namespaces: the default ResourceQuota where no Rancher renders it (`--render-default-quota`), and the label of those
that hold added headroom (`--reserve`).

Promises: a namespace is labelled before one of its quotas is raised. A change of the annotation reaches existing quotas
through `pkg.controller.resourcequota`, which watches namespaces.
Forbids: writing an existing ResourceQuota."""
