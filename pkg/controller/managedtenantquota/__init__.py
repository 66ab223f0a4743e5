"""Managed tenant quota: namespaces with a VirtualMachineMigrationResourceQuota.

Promises: quotas are raised only under a lock and with their originals saved; after every single write the process may
end, and the next look goes on or takes back; whatever happens, a lock ends.
Forbids: touching a quota of a namespace without such an object, and decisions in here: `pkg.util.managedtenantquota`
makes them.
"""

from pkg.controller.managedtenantquota.register import register

__all__ = ["register"]
