"""Harvester's `keypair` controller: writes the fingerprint of an SSH public key into its KeyPair.

Behaviour and names of harvester/harvester, pkg/controller/master/keypair, written anew.
"""
