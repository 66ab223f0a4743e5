"""A locked namespace: its quotas are raised for the target pods that are about to be created, and for no other pod.

Promises: a refusal says who holds the lock and since when; a lock that is gone or past its end refuses nothing.
Forbids: decisions about namespaces that are not locked (the API server asks by the lock's own configuration).
"""
