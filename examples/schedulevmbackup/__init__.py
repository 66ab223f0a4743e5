"""Harvester's `schedulevmbackup` controller: backups of a VM at the times of a CronJob, so many of them kept.

Behaviour and names of harvester/harvester, pkg/controller/master/schedulevmbackup, written anew.
"""
