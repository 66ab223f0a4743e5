"""Decisions, and what everything else computes with: constants, amounts, pods as KubeVirt renders them.

Promises: pure functions over immutable values; the same input gives the same output, byte for byte.
Forbids: I/O, clocks, randomness, logging, and any import from this project but `pkg.api`."""
