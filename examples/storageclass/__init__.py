"""Harvester's `storageclass` controller: writes annotations of a StorageClass into CDI and its StorageProfile.

Behaviour and names of harvester/harvester, pkg/controller/master/storageclass, written anew.
"""
