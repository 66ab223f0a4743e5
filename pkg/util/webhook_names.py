"""The names under which the webhooks are registered: controllers and webhooks both need them."""

from __future__ import annotations

from typing import Final

CONFIGURATION_NAME: Final = "headroom.harvesterhci.io"
"""The webhook configurations' name. Who wants to know where the webhooks are served reads it there."""
LOCK_PATH: Final = "/lock"
"""What a locked namespace's requests are sent to."""
