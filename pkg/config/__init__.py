"""The parts of one process: this product's controllers by kind (Harvester's pkg/config), what its caches keep, the
settings, its metrics, how Rancher's quotas are written, and why it cannot do its work.

Promises: what the caches keep of an object is what is read of it.
Forbids: decisions; looking at the process itself."""
