"""Harvester's `nodedrain` controller: places a node in maintenance mode, by stopping VMs and evicting pods.

Behaviour and names of harvester/harvester, pkg/controller/master/nodedrain and pkg/util/drainhelper, written anew.
"""
