"""`headroom scale`: nodes are evacuated on a cluster of stand-in nodes and VMs, and what it costs is measured.

Promises: every figure is what the API server's watches and metrics, /proc and headroom's own metrics say; what it
made on a cluster is removed before it ends, whatever ends it.
Forbids: looking into headroom's own state, writing to an object that it did not make, and being imported by anything
but the command line.

plan.py holds the settings and the objects, measurements.py the statistics (pure); `run.run_scale` is the way in.
"""
