"""Migration state on VMIs and VMs, as the UI reads it (Harvester pkg/controller/master/migration).

Promises: the three state annotations of a VMI follow its migration, and its VM's timestamp is bumped with them.
Forbids: touching a ResourceQuota; that one's writer is `pkg.controller.resourcequota`."""
