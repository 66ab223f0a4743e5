"""What the tests of `test_headroom_*.py` share: a stage with one controller at a time, and namespaces whose VMs the
stand-ins play. Nothing here decides what is right; the tests do."""
