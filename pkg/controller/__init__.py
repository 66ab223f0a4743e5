"""The controllers, laid out as Harvester's `pkg/controller/master`.

Promises: each controller's `register` shows every dependency of it on one screen; a ResourceQuota has one writer,
`resourcequota/`, or `managedtenantquota/` in a namespace with a migration budget, and all others only enqueue it.
Forbids: decisions in handlers. They observe, ask a pure function, and write what it says."""
