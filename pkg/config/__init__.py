"""The parts of one process: this product's controllers by kind (Harvester's pkg/config), the settings, its metrics.

Promises: what the caches keep of an object is what is read of it.
Forbids: decisions; looking at the process itself."""
