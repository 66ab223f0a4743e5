"""KubeVirt's objects: how it renders pods (overhead, launcher, migration target, attachments) and which are trusted.
Pure."""
