"""Checks of a process by itself: whether it is healthy, what it was installed as, what stands in its way.

Promises: every answer has an end; what cannot be read is reported as unknown, never as healthy.
Forbids: deciding anything about a quota."""
