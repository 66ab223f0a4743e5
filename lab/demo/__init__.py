"""The main job as a demo: a migration that a ResourceQuota refuses, and the same migration with headroom.

Promises: everything real where it can be: a control plane of its own, `headroom controller` as a process of its own.
What is shown and checked was read from the API server by watching; nothing is left behind, however the demo ends.
Forbids: looking into headroom's own state, and being imported by anything but the command line.

scenario.py lists the steps; seed.py holds the numbers; `run.run_demo` is the way in.
"""
