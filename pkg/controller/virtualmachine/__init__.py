"""VirtualMachines that cannot start within their namespace's quota are halted and told why (Harvester
pkg/controller/master/virtualmachine, SetHaltIfInsufficientResourceQuota).

Promises: nothing is halted on a cache's word alone, nor for what a migration occupies for a while; the reason goes
when the VM runs again.
Forbids: touching a VM that has a pod, or starting one."""
