"""The ported `keypair` controller: upstream's table (controller_test.go)."""

from typing import Any

import pytest

from examples.keypair.controller import VALIDATED, KeyPairHandler, register
from examples.keypair.kinds import KEY_PAIRS, KeyPair
from kubeloop.api.objects import find_condition
from kubeloop.client.client import Client
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.polling import until

KINDS = (KEY_PAIRS,)
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@example"
FINGERPRINT = "0f:a2:0a:d7:38:3e:65:45:08:6b:63:84:1c:ff:dc:ba"
UNREADABLE = "failed to parse the public key, error: ssh: no key found"

# upstream's name: public key, fingerprint -> fingerprint, (status, reason) of the condition
UPSTREAM: dict[str, tuple[str, str | None, str | None, tuple[str, str | None] | None]] = {
    "blank public key": ("", None, None, None),
    "not blank fingerprint": ("FAKE_PUBLIC_KEY", "FAKE_FINGER_PRINT", "FAKE_FINGER_PRINT", None),
    "illegal public key": ("FAKE_PUBLIC_KEY", None, None, ("False", UNREADABLE)),
    "generate fingerprint for legal public key": (PUBLIC, None, FINGERPRINT, ("True", None)),
}


def key_pair(public_key: str, **status: Any) -> dict[str, Any]:
    metadata = {"namespace": "default", "name": "test"}
    return {"metadata": metadata, "spec": {"publicKey": public_key}, "status": status}


@pytest.mark.parametrize("case", UPSTREAM)
async def test_upstreams_table(case: str) -> None:
    public_key, recorded_fingerprint, fingerprint, condition = UPSTREAM[case]
    cluster = FakeCluster(*KINDS)
    stored = cluster.put(
        KEY_PAIRS, key_pair(public_key, **({"fingerPrint": recorded_fingerprint} if recorded_fingerprint else {}))
    )
    updated = await KeyPairHandler(cluster.client().resource(KEY_PAIRS)).on_key_pair_changed(stored.key, stored)
    assert updated is not None
    assert updated == cluster.get(KEY_PAIRS, stored.key)
    validated = find_condition(updated.status.conditions, VALIDATED)
    assert updated.status.finger_print == fingerprint
    assert (validated and (validated.status, validated.reason)) == condition


@pytest.mark.parametrize("deletion", [None, {"deletionTimestamp": "2026-01-01T00:00:00Z"}])
async def test_nil_and_deleted_resource(deletion: dict[str, Any] | None) -> None:
    cluster = FakeCluster(*KINDS)
    body = key_pair(PUBLIC)
    obj = None if deletion is None else cluster.put(KEY_PAIRS, body | {"metadata": body["metadata"] | deletion})
    assert await KeyPairHandler(cluster.client().resource(KEY_PAIRS)).on_key_pair_changed("default/test", obj) == obj
    assert cluster.requests == []


async def scenario(client: Client) -> None:
    management = ControllerFactory(client)
    register(management)
    await management.start()
    key_pairs = client.resource(KEY_PAIRS)
    await key_pairs.create(key_pair(PUBLIC))

    async def written() -> bool:
        current: KeyPair = await key_pairs.get(namespace="default", name="test")
        return current.status.finger_print == FINGERPRINT

    await until(written)
    await management.stop()
