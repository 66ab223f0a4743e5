"""Typed objects of the API server, one module an API group.

Promises: every object is a frozen msgspec Struct that decodes straight from the server's bytes and holds only
the fields in use; `kubeloop.api.registry` names each kind's path once.
Forbids: sending one of these Structs back whole. Fields that are not declared here were not decoded, so an
update would delete them: write patches (`kubeloop.client`)."""
