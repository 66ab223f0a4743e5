"""The embedded cluster for tests and demo: a real etcd, kube-apiserver and kube-controller-manager, nodes by kwok.

Promises: found or built without anything but Python (and what it can fetch); on free loopback ports, TLS everywhere,
RBAC on, quota admission as in any cluster; `down` ends exactly what `up` started, after any crash; a test run or
demo that is interrupted, by whatever, leaves no process and no temporary directory behind.

Forbids: knowing what it is used for: CRDs, programs beside the servers and the audit policy are given to it.
Linux only: it reads /proc.

`cluster.up`, `cluster.down`, `cluster.status` and `cluster.EmbeddedCluster` are the way in;
versions.py is where versions are pinned."""
