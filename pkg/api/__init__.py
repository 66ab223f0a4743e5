"""The kinds of KubeVirt, Harvester and managed-tenant-quota: typed objects (`kubeloop.api`) with only the fields in use."""
