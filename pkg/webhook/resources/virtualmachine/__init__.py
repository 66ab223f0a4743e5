"""VirtualMachines: volumes that the namespace's storage limit has no room for are refused.

Promises: Harvester's text, byte for byte; an update is measured by its increase alone.
Forbids: judging cpu and memory here: a VM that cannot start is halted by its controller, with a reason.
"""
