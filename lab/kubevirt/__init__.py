"""A stand-in for KubeVirt: what virt-controller and virt-handler do, as far as it can be seen on the API server.

Promises: a VM that should run gets its VMI and launcher pod, a VMIM goes through KubeVirt's phases in order, and every
pod is created through the real API, so that real quota admission decides. Everything is worked out from the objects:
killed at any moment and started again, it goes on where it was.
Forbids: knowing anything of headroom. It is the other side, and must not be kinder than the original.

`python -m lab.kubevirt --kubeconfig F`. Facts: KubeVirt's
pkg/virt-controller/watch (migration, vmi, vm) for the order of things.
"""
