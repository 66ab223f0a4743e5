"""Admission: the webhooks' answers to the API server's reviews.

Promises: a decision follows from the request and what is read for it (`resources/<kind>`), and about the object in
the request it believes the request; a denial that the caches suggest is checked against the API server first.
Forbids: writing anything while deciding (`sideEffects: None`), importing `pkg.controller`."""
