"""Whether a review comes from the API server, also where it presents no client certificate: the webhooks are registered
with paths that end in a key, which only readers of webhook configurations know."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

_BYTES: Final = 16
_DIGITS: Final = frozenset("0123456789abcdef")


class Caller:
    """The key. Replicas share the one that stands in the registered configuration: `adopt` it before writing there."""

    def __init__(self) -> None:
        self.key = secrets.token_hex(_BYTES)

    def adopt(self, webhooks: Iterable[Mapping[str, Any]]) -> None:
        """Take over the key of registered webhooks, if one of their paths ends in a key."""
        for webhook in webhooks:
            config = webhook.get("clientConfig") or {}
            path = urlsplit(config.get("url") or "").path or (config.get("service") or {}).get("path") or ""
            key = path.rpartition("/")[2]
            if _is_key(key):
                self.key = key

    def split(self, path: str) -> tuple[str, bool]:
        """A request's path without a key, and whether it ended in ours."""
        rest, _, key = path.rpartition("/")
        if not rest or not _is_key(key):
            return path, False
        return rest, hmac.compare_digest(key, self.key)


def _is_key(text: str) -> bool:
    return len(text) == 2 * _BYTES and _DIGITS.issuperset(text)
