"""The scenario's objects and numbers.

Source: the investigation of overhead ratio and quota with Harvester 1.7 (README, "The demo"): a namespace limit of
3000m / 5000Mi, a VM of 2 CPU / 4Gi that asks for 125m / 2730Mi, overhead ratio 1.5.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from kubeloop.api.quantity import Quantity
from lab.record import Amounts
from pkg.util import constants

NAMESPACE: Final = "quota-test"
LIMIT: Final = '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi"}}'
RATIO: Final = "1.5"

BASE: Final = Amounts.of("3", "5000Mi")
"""The limits that Rancher writes."""
POD: Final = Amounts.of("2015m", "4797464313")
"""The usage of the VM's launcher pod: the guest, the overhead at the ratio, the console log's container."""
BOTH_PODS: Final = Amounts.of("4030m", "9594928626")
HARVESTER: Final = Amounts.of("5", "9980344313")
"""The base and Harvester's own estimate: the guest and the overhead."""
EXACT: Final = Amounts.of("5015m", "10040344313")
"""The base and one more launcher pod, as quota counts it."""

SECOND_RAISED: Final = Amounts.of("3985m", "5688295687")
"""The base and the second VM's pod, cut to take what the first leaves of the limit: 985m and 445415687 bytes."""
BOTH_MOVE: Final = Amounts.of("6", "10000Mi")
"""The base and one more pod of each VM: twice the base, as the two fill it."""

_SECOND_MEMORY = "74022679"
"""445415687 less the overhead of this VM at ratio 1.5: 371393008 bytes."""

FIRST_DOMAIN: Final[Mapping[str, Any]] = {
    "cpu": {"cores": 2, "sockets": 1, "threads": 1},
    "devices": {},
    "resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "125m", "memory": "2730Mi"}},
}
SECOND_DOMAIN: Final[Mapping[str, Any]] = {
    "cpu": {"cores": 1, "sockets": 1, "threads": 1},
    "devices": {"autoattachGraphicsDevice": False, "logSerialConsole": False},
    "resources": {"limits": {"cpu": "985m", "memory": _SECOND_MEMORY}, "requests": {"cpu": "60m", "memory": "64Mi"}},
}

MAINTAINED_LIMIT: Final = (
    '{"limit":{"pods":"50","requestsCpu":"3","requestsMemory":"4200Mi","limitsCpu":"3","limitsMemory":"4404019200"}}'
)
MAINTAINED: Final = Amounts.of("3", "4404019200")
"""The limit of the investigation with Harvester 1.2.1 in which a maintained node's VMs were refused."""
THREE_VMS: Final = ("vm3", "vm4", "vm5")
THREE_PODS: Final = Amounts.of("3", "3892310016")
THREE_REQUESTS: Final = Quantity.parse("2750460Ki")
"""requests.memory of three of its VMs; here each is cut to what one of them counts on today's KubeVirt at ratio 1.5."""
THIRD_SPEC: Final[Mapping[str, Any]] = {
    "evictionStrategy": "LiveMigrateIfPossible",
    "domain": {
        "cpu": {"cores": 1, "sockets": 1, "threads": 1},
        "devices": {"autoattachGraphicsDevice": False, "logSerialConsole": False},
        "resources": {"limits": {"cpu": "1", "memory": "924582326"}, "requests": {"cpu": "62m", "memory": "565969334"}},
    },
}


def policies(kind: str) -> list[dict[str, Any]]:
    """The objects of that kind of deploy/policy.yaml."""
    text = (Path(__file__).parent / "policy.yaml").read_text("utf-8")
    return [body for body in yaml.safe_load_all(text) if body["kind"] == kind]


def forged_pod() -> dict[str, Any]:
    """A tenant's pod with the labels of a launcher, for which a quota would be raised if labels were believed."""
    labels = {constants.LABEL_APP: constants.APP_VIRT_LAUNCHER, constants.LABEL_VM_NAME: "vm1"}
    container = {"name": "compute", "image": "none", "resources": {"limits": {"cpu": "1m", "memory": "1Mi"}}}
    return {"metadata": {"name": "forged", "labels": labels}, "spec": {"containers": [container]}}


def overhead_setting() -> dict[str, Any]:
    """Returns Harvester's setting of the overhead ratio."""
    return {"metadata": {"name": constants.SETTING_OVERHEAD_RATIO}, "value": RATIO, "default": RATIO}
