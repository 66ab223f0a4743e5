"""The official package's SharedInformer. It does not hold custom resources: their lists are plain dicts to it."""

import time
from typing import Any

from kubernetes import client, config
from kubernetes.informer import MODIFIED, SharedInformer
from protocol import Measured, arguments


def main() -> None:
    kubeconfig, _, watches = arguments()
    config.load_kube_config(kubeconfig)
    api = client.CoreV1Api()
    listed: Any = api.list_pod_for_all_namespaces(_preload_content=False)
    expected = len(listed.json()["items"])
    measured = Measured()
    informers = [SharedInformer(api.list_pod_for_all_namespaces) for _ in range(watches)]

    def count(pod: Any) -> None:
        measured.events += 1

    for informer in informers:
        informer.add_event_handler(MODIFIED, count)
        informer.start()
    # It has no has_synced.
    while any(len(informer.cache.list_keys()) < expected for informer in informers):
        time.sleep(0.002)
    measured.synced(lambda: len(informers[0].cache.list_keys()))
    time.sleep(3600)


main()
