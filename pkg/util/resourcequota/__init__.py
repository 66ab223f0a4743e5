"""ResourceQuotas: their usage, and their limits while VMs migrate.

Promises: pure decisions: objects in, usage, entries or a patch out. Forbids: I/O and reading anything but the
arguments."""
