"""Pods in a namespace that holds headroom: the added headroom is for the migrations it was added for.

Promises: what fits into the base passes; what would fit only into the added headroom does not.
Forbids: a say in namespaces that hold nothing (the API server does not even ask, by the namespace's label).
"""
