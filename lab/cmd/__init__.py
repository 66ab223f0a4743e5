"""The commands that the lab adds to `headroom`: testcluster, demo, scale."""
