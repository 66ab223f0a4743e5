"""KubeVirt's, Harvester's and managed-tenant-quota's kinds: typed objects (`kubeloop.api`), only the fields in use."""
