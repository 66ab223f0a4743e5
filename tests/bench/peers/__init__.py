"""Programs that headroom's cache, watch and queue are measured beside: client-go (go/) and Python packages that watch.

Each program here does the same and speaks the same protocol (protocol.py). The Python ones run in a virtual environment
of their own and import nothing of this project.
"""
