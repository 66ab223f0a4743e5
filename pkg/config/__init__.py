"""What one process has: this product's controllers by kind (Harvester's pkg/config), its metrics, what it is asked and
what it publishes of itself, and what it checks of its own installation.

Promises: what cannot be read or written here is logged and never stops a controller.
Forbids: creating or changing an admission policy: that is the administrator's.
"""
