"""The reports of status, explain, plan and collect. `reader` reads a cluster; all else is pure.

Forbids: being imported by what decides."""
