"""VirtualMachines that cannot start within their quota are halted and told why (Harvester's
SetHaltIfInsufficientResourceQuota).

Promises: nothing is halted on a cache's word alone, nor for what a migration occupies; the reason goes with a start.
Forbids: touching a VM that has a pod, or starting one."""
