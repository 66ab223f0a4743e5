"""Talking to the API server: configuration, transport, typed resource clients.

Promises: objects are decoded straight from the server's bytes into `kubeloop.api` Structs; every failure is an
`errors.ApiError` with its HTTP status (0: never answered), or an `errors.ConfigError` for a configuration
that can't work; every call has a timeout; a request is repeated only where repeating it can't do harm.
Forbids: sending a decoded object back whole (writes are patches and creates of plain mappings), caching
(`kubeloop.cache`), blocking the event loop (credential plugins run in a thread of their own)."""
