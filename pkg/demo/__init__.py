"""The main job as a play: a migration that a ResourceQuota refuses, and the same migration with headroom.

Promises: everything real where it can be: a control plane of its own, `headroom controller` as a process of its own.
What is shown and checked was read from the API server by watching; nothing is left behind, however the play ends.
Forbids: looking into headroom's own state, and being imported by anything but the command line.

scenario.py lists the acts; seed.py holds the numbers; `play.play` is the way in.
"""
