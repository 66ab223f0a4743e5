"""Leader election on a Lease (client-go's leaderelection and resourcelock), for one event loop.

Promises
- While one candidate may write, no other one may: a candidate writes until `renew_deadline` after it *sent* its last
  successful renewal, and others take the lease no earlier than the lease duration after they *saw* that renewal.
- Only this machine's monotonic clock counts. Times in the Lease are for people; no two machines' clocks are compared.
- A lease that was released is taken at once, by a watch; otherwise candidates try every `retry_period`, without jitter.

Forbids
- Writing with a client that does not ask `LeaderElector.before_write` at the moment of each send.
- Going on after LeaseLost: the process ends, so that nothing which was decided as a leader outlives the lease."""
