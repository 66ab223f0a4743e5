"""A cluster in process, for tests: client-go's `kubernetes/fake`, but with the API server's rules.

    cluster = FakeCluster()
    cluster.put(PODS, {"metadata": {"name": "p", "namespace": "ns"}})
    management = ControllerFactory(cluster.client())

It takes the place of the transport, so that paths, bodies, decoding and errors are those of a real client. It has
get, list (pages, selectors), watch (bookmarks, WatchList, 410 after `compact`), create (generateName), update,
merge and JSON patches, server-side apply, delete, eviction of pods, reviews (a reactor may answer them);
resourceVersion, uid and generation; conflicts, finalizers, the rules for metadata and status, discovery. One contract
test runs on it and on a real API server.

What it does not have: admission, schemas and defaults, quota, garbage collection, grace periods, rights. Namespaces
need not exist. Only a real server knows whether a definition that does not say it has a status subresource: writes of
its status raise ValueError."""

from kubeloop.testing.fake.server import FakeCluster as FakeCluster
