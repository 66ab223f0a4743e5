"""The long-running processes, started and ended in order.

Promises: what was started ends, the Lease last; nothing is written before the election or after the Lease is lost.
Forbids: reading flags."""
