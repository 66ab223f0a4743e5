"""Admission webhooks: the server that answers the API server's reviews, its certificate, and its registration (as
controller-runtime's pkg/webhook and dynamiclistener have them).

Promises: a review that is malformed, too large or never ends gets a 4xx and costs the others nothing; connections are
bounded in number and time; replicas share one CA, which renews itself, and one registration, of which only what
differs is written.
Forbids: a say in what is decided: a hook gets the request and returns the decision."""
