"""Controllers: they turn changes in the caches into calls of handlers (as wrangler and lasso do).

Promises: one shared informer and one queue a kind, however many controllers use it; a handler is called with a key and
what the cache holds at that moment; one key is never handled twice at a time; when a handler raises, the key is
settled in one place, the other handlers run, the worker continues; a key that failed is retried until it succeeds.
Forbids: handlers that keep state of their own between calls, and changing an object that came from the cache."""
