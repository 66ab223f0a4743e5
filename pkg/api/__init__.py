"""The kinds of KubeVirt, Harvester and managed-tenant-quota: typed objects with only the fields in use.

`kubeloop.api` says what such an object is and what it must not be used for."""
