"""Work queues with client-go's semantics, for one event loop.

Promises: an item waits in a queue once, however often it is added; it is never handed to two workers at the
same time; added again while a worker has it, it is handed out once more after `done`; what waits at the shutdown
is still handed out, what is delayed then (retries too) is dropped, as client-go drops it. A higher priority goes first,
first in first out within one.
Forbids: use from several threads or loops. There is no lock: `add` is sync, only `get` waits, and between a
read and the write that depends on it stands no `await`."""
