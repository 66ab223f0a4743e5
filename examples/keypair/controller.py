"""The handler, and what calls it."""

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.hashes import MD5
from cryptography.hazmat.primitives.serialization import load_ssh_public_key, ssh_key_fingerprint

from examples.keypair.kinds import KEY_PAIRS, KeyPair
from kubeloop.api.objects import edit, set_condition
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.factory import ControllerFactory

VALIDATED = "validated"


def register(management: ControllerFactory) -> None:
    key_pairs = management.controller(KEY_PAIRS)
    key_pairs.on_change("vm-keypair-controller", KeyPairHandler(key_pairs.client).on_key_pair_changed)


class KeyPairHandler:
    def __init__(self, key_pairs: ResourceClient[KeyPair]) -> None:
        self._key_pairs = key_pairs

    async def on_key_pair_changed(self, key: str, key_pair: KeyPair | None) -> KeyPair | None:
        if key_pair is None or key_pair.deleting:
            return key_pair
        if not key_pair.spec.public_key or key_pair.status.finger_print:
            return key_pair
        finger_print, status, reason = None, "True", None
        try:
            finger_print = fingerprint(key_pair.spec.public_key)
        except ValueError as err:
            status, reason = "False", f"failed to parse the public key, error: {err}"
        conditions = set_condition(key_pair.status.conditions, VALIDATED, status, reason=reason, last_update=True)
        new = edit(key_pair, status={"finger_print": finger_print, "conditions": conditions})
        return await self._key_pairs.update(key_pair, new)


def fingerprint(public_key: str) -> str:
    """MD5 in hexadecimal, as ssh-keygen showed it once. Raises ValueError for what is not a public key."""
    try:
        key = load_ssh_public_key(public_key.strip().encode())
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("ssh: no key found") from None
    return ssh_key_fingerprint(key, MD5()).hex(":")
