"""The annotation strategy's writer of ResourceQuotas (Harvester pkg/controller/master/resourcequota and the scaling
half of vmim_controller.go).

Promises: annotations and spec.hard change in one patch bound to what was observed; the next reconcile repairs the rest.
Forbids: another controller writing such a ResourceQuota; enqueue its key instead."""
