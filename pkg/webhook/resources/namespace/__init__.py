"""Namespaces: Rancher's quota annotation is not changed under running migrations, nor below what is used.

Promises: Harvester's texts, byte for byte.
Forbids: an opinion about anything but `field.cattle.io/resourceQuota`.
"""
