"""What KubeVirt renders (overhead, launcher, migration target, attachments) and what is believed of its pods. Pure."""
