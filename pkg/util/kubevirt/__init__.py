"""KubeVirt's objects: how it renders pods (overhead, launcher, target, attachments), and which are trusted. Pure."""
