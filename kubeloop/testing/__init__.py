"""Tools for tests of controllers: a cluster in process, a scripted server, virtual time, and a real control plane.

Promises: everything is on loopback or in process, and is ended by what started it.
Forbids: being imported by what runs in production."""
