"""The annotation strategy's writer of ResourceQuotas (Harvester pkg/controller/master/resourcequota and the scaling
half of vmim_controller.go).

Promises: annotations and spec.hard change in one patch bound to the version that was observed; whatever
happened meanwhile, the next reconcile repairs it.
Forbids: another controller writing such a ResourceQuota; enqueue its key instead."""
