"""Warnings of the API server: an unknown field, a version that will go (RFC 7234 §5.5). They are for the program's
author, and need not be repeated for every object."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Final

from kubeloop.once import Once

log = logging.getLogger(__name__)

_WARNING: Final = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_OBJECT: Final = re.compile(r"^(/api/[^/]+|/apis/[^/]+/[^/]+)(?:/namespaces/[^/]+(?=/.))?/([^/]+)(?:/[^/]+(/[^/]+)?)?$")
"""Prefix, plural and subresource of a path; without the namespace and the name, which are the tenants'."""
_logged: Final = Once(60.0)


def log_warnings(method: str, path: str, headers: Iterable[str]) -> None:
    """Logs each warning of an answer, once a minute for each kind and method."""
    for header in headers:
        for text in _WARNING.findall(header):
            match = _OBJECT.search(path)
            warned = method, f"{match[1]}/{match[2]}{match[3] or ''}" if match else path, text.replace('\\"', '"')
            if _logged.is_due(*warned):
                log.warning("%s %s: the API server warns: %s", *warned)
