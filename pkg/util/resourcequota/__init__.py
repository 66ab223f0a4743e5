"""What ResourceQuota counts, and what its limits should be.

Promises: pure decisions: objects in, usage, entries or a patch out.
Forbids: I/O and reading anything but the arguments.
"""
