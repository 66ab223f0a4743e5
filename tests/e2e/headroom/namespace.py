"""A namespace under quota whose VMs and migrations are run by the stand-ins."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from kubeloop.testing.polling import PATIENCE, eventually
from lab import bodies
from tests.e2e.api import CORE, Api, Raw, Watch
from tests.e2e.headroom.amounts import Amounts
from tests.e2e.headroom.shapes import Shape
from tests.e2e.tenant import ANNOTATION, DEFAULT, NamespaceRequests, by_value

METER = "meter"
LASTING = "Running=600"
"""phase_seconds of a migration that runs until the test hurries it."""
FOR_GOOD = 2.5
"""Seconds after which a refusal counts as one that stays: headroom and KubeVirt answer within a few hundredths."""


class QuotaNamespace(NamespaceRequests):
    """A namespace. `limits` (by ResourceQuota names) is what Rancher grants; its stand-in makes the default quota."""

    patience = PATIENCE

    def __init__(
        self,
        api: Api,
        *,
        limits: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(api, bodies.new_name())
        given = dict(annotations or {})
        if limits:
            given[ANNOTATION] = bodies.granting(limits)
        api.create(f"{CORE}/namespaces", {"metadata": {"name": self.name, "annotations": given}})
        if limits:
            eventually(self._default, PATIENCE)

    # Quotas.

    def make_quota(
        self,
        name: str,
        hard: Mapping[str, str],
        *,
        managed: bool = False,
        spec: Raw | None = None,
        **annotations: str,
    ) -> None:
        """A quota without Rancher, once it counts."""
        labels = {"headroom.harvesterhci.io/managed": "true"} if managed else {}
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        self.api.create(self.quotas, {"metadata": metadata, "spec": {"hard": dict(hard), **(spec or {})}})
        self.wait_counted(name)

    def meter(self, *names: str) -> None:
        """A quota that measures and never refuses; headroom has nothing to do with it."""
        self.make_quota(METER, dict.fromkeys(("pods", *names), "1P"))

    def grant(self, limits: Mapping[str, Any]) -> None:
        """Rancher grants this from now on; its default quota counts when this returns."""
        self.api.patch(self.path, {"metadata": {"annotations": {ANNOTATION: bodies.granting(limits)}}})
        eventually(
            lambda: (self._default() or {}).get("spec", {}).get("hard", {}).keys() == limits.keys(), PATIENCE
        )
        self.wait_counted()

    def grant_what_is_used(self, *names: str) -> Amounts:
        """Not a byte more than what the meter shows."""
        used = self.used(METER)
        granted = {name: used[name] for name in names}
        self.grant(granted)
        return granted

    def wait_counted(self, name: str = "") -> None:
        """Until the quota controller has counted what is there."""

        def counted() -> bool:
            quota = self.quota(name)
            status = quota.get("status", {})
            return by_value(status.get("hard", {})) == by_value(quota["spec"]["hard"]) and "used" in status

        eventually(counted, PATIENCE)

    def quota(self, name: str = "") -> Raw:
        """A quota by name; without one, Rancher's default."""
        found = self.api.get(f"{self.quotas}/{name}") if name else self._default()
        assert found is not None, f"{self.name} has no default quota"
        return found

    def _default(self) -> Raw | None:
        return next(iter(self.api.items(self.quotas, labelSelector=f"{DEFAULT}=true")), None)

    def patch_quota(self, patch: Raw, name: str = "") -> None:
        self.api.patch(f"{self.quotas}/{name or self.quota()['metadata']['name']}", patch)

    def watch(self) -> Watch:
        """Every version of the quotas from now on; the first are those that are there."""
        return self.api.watch(self.quotas)

    def watch_pods(self) -> Watch:
        return self.api.watch(f"{self.path}/pods")

    def wait_event(self, reason: str) -> Raw:
        found: Raw = eventually(lambda: self.events(reason), PATIENCE)[0]
        return found

    # VMs and migrations.

    def start(self, *names: str, shape: Shape | None = None) -> QuotaNamespace:
        """VMIs, once they run."""
        shape = shape or Shape()
        if shape.limit_range:
            self.limit_range(shape.limit_range)
        for name in names:
            self.api.create(self.instances, shape.body(name))
        for name in names:
            self.wait_running(name)
        return self

    def start_vm(self, name: str = "vm1") -> QuotaNamespace:
        """A VM with its VMI."""
        body = bodies.machine(name, Shape().body(name)["spec"], strategy="Always")
        self.api.create(f"{self.kubevirt}/virtualmachines", body)
        self.wait_running(name)
        return self

    def wait_running(self, name: str) -> None:
        """Until the VMI runs, its volumes are plugged in and its namespace's quotas count its pods."""

        def runs() -> bool:
            status = self.vmi(name).get("status", {})
            plugged = all(
                volume.get("phase", "Ready") == "Ready" for volume in status.get("volumeStatus") or ()
            )
            wants = any("hotpluggable" in json.dumps(v) for v in self.vmi(name)["spec"].get("volumes") or ())
            return (
                status.get("phase") == "Running"
                and plugged
                and (not wants or bool(status.get("volumeStatus")))
            )

        eventually(runs, PATIENCE, lambda: f"VMI {name}: {self.vmi(name).get('status')}")

    def limit_range(self, item: Mapping[str, Any]) -> None:
        body = {"metadata": {"name": "small"}, "spec": {"limits": [item]}}
        self.api.create(f"{self.path}/limitranges", body)

    def vmi(self, name: str) -> Raw:
        return self.api.find(f"{self.instances}/{name}") or {"spec": {}}

    def migrate(self, vm: str = "vm1", name: str = "", *, linger: float = 0.0, **marks: Any) -> str:
        """A migration that hurries; `linger` is how long the source counts afterwards, in seconds. Its name."""
        name = name or bodies.new_name(f"move-{vm}")
        asked = {"phase_seconds": "0.05", "source_linger_seconds": linger, **marks}
        self.api.create(self.migrations, bodies.migration(name, vm, **asked))
        return name

    def hurry(self, *migrations: str) -> None:
        """What was to last for ever ends now."""
        for name in migrations:
            marks = {"metadata": {"annotations": bodies.stand_in(phase_seconds="0.05")}}
            self.api.patch(f"{self.migrations}/{name}", marks)

    def succeed(self, *migrations: str) -> None:
        for migration in migrations:
            assert self.wait_phase(migration, "Succeeded", "Failed") == "Succeeded", self.migration(migration)

    def stays_refused(self, migration: str, seconds: float = FOR_GOOD) -> None:
        """Refused, and still so after a while."""
        eventually(lambda: self.is_refused(migration), PATIENCE)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.phase_of(migration) == "Pending", self.migration(migration)
            time.sleep(0.1)
        assert self.is_refused(migration)

    def delete_migration(self, name: str) -> None:
        """Until it is gone."""
        self.api.delete(f"{self.migrations}/{name}")
        eventually(lambda: not self.migration(name), PATIENCE)

    def pods(self, **labels: str) -> list[Raw]:
        selector = ",".join(
            f"{key}={value}" for key, value in {"kubevirt.io": "virt-launcher", **labels}.items()
        )
        return self.api.items(f"{self.path}/pods", labelSelector=selector)

    def counting(self) -> list[str]:
        """The launchers that have not ended."""
        return [
            p["metadata"]["name"] for p in self.pods() if p["status"]["phase"] not in ("Succeeded", "Failed")
        ]

    def pod_runs(self, name: str) -> bool:
        pod = self.api.find(f"{self.path}/pods/{name}")
        return pod is not None and pod["status"]["phase"] == "Running"

    def end(self, pod: str, phase: str = "Succeeded") -> None:
        """The pod's containers are through: from now on it does not count."""
        self.api.patch(f"{self.path}/pods/{pod}/status", {"status": {"phase": phase}})

    def remove_ended(self) -> None:
        """The launchers that are over, once one is."""
        over = {"Succeeded", "Failed"}
        eventually(lambda: any(p["status"]["phase"] in over for p in self.pods()), PATIENCE)
        for pod in self.pods():
            if pod["status"]["phase"] in over:
                self.api.delete(f"{self.path}/pods/{pod['metadata']['name']}")

    def settle(self, base: Mapping[str, Any], name: str = "") -> None:
        """Until every VM has one pod again and the quota is back at its base, without a trace."""
        vms = len(self.api.items(self.instances))
        eventually(lambda: len(self.counting()) == vms, PATIENCE, lambda: f"pods left: {self.counting()}")
        self.wait_hard(base, name)
        eventually(lambda: not self.entries(name), PATIENCE, lambda: f"entries left: {self.entries(name)}")
