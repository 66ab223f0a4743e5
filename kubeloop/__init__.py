"""kubeloop: Kubernetes controllers in asyncio, with client-go's and wrangler's semantics.

Promises: names, semantics and recovery of client-go, in Python's spelling: shared informers, rate-limited work queues,
controllers by kind, leader election; objects are typed, writes are patches.
Forbids: knowing what it is used for. It imports nothing of the products built on it."""
