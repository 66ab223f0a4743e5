"""Managed tenant quota: namespaces with a VirtualMachineMigrationResourceQuota.

Promises: quotas are raised only under a lock and with their originals saved; the process may end after any write,
and the next observation continues or rolls back; every lock ends.
Forbids: touching a quota of another namespace, and decisions in here: `pkg.util.managedtenantquota` makes them."""
