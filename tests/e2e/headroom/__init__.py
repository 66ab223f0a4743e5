"""What the tests of `test_headroom_*.py` share: an environment with one controller at a time, and namespaces whose VMs
the stand-ins run. Nothing here decides what is right; the tests do."""
