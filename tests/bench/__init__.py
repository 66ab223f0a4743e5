"""Measurements on the embedded cluster: `make bench` prints the table, `python -m tests.bench NAME …` a part of it.

Every figure is seen from outside: what the API server's watch shows, what the operating system counts.
"""
