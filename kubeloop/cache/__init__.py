"""A copy of the API server's objects in memory: reflector, indexed store, shared informer (client-go's tools/cache).

Promises: one list and one watch a kind, however many handlers; after `has_synced()` the indexer holds what the server
had, and every later change reaches it and then every handler, in order: of a watch with no `await` between the two, of
a list a part of the changes at a time. A deletion that a broken watch missed still arrives, as `on_delete(obj,
final_state_unknown=True)`. An unchanged resourceVersion is never an update, except on a resync. A kind whose CRD is
missing does not block the start of the others. An object that does not decode stays as it was. Only the server's own
discovery empties a store, never a 404.
Forbids: handlers that wait or do the work (they enqueue), and changing an object that came from the cache."""
