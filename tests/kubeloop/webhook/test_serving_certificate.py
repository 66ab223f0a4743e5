"""Another certificate in a listener that is in use."""

from __future__ import annotations

import asyncio
import ssl
import time

import pytest
from cryptography.hazmat.primitives import serialization

from kubeloop.webhook.certificates import CertificateError, KeyPair, Material, issue
from kubeloop.webhook.serving_certificate import load, server_context

pytestmark = pytest.mark.virtual_time


def made() -> Material:
    return issue(["127.0.0.1"], time.time())


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
    writer.close()


async def connect(port: int, trusted: Material) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context(cadata=trusted.bundle.decode())
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def test_new_connections_get_the_new_certificate_and_old_ones_go_on() -> None:
    one, other = made(), made()
    context = server_context()
    load(context, one.serving)
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await connect(port, one)
    load(context, other.serving)
    _, second = await connect(port, other)
    with pytest.raises(ssl.SSLCertVerificationError):
        await connect(port, one)
    writer.write(b"still here\n")
    assert await reader.readline() == b"still here\n"
    for each in (writer, second):
        each.close()
    server.close()


def encrypted(pair: KeyPair) -> bytes:
    key = serialization.load_pem_private_key(pair.key, None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )


@pytest.mark.parametrize("what", ["key of another", "garbage", "no certificate", "an encrypted key"])
async def test_what_cannot_be_used_leaves_the_context_as_it_was(what: str) -> None:
    good, bad = made(), made()
    context = server_context()
    load(context, good.serving)
    certificate, key = {
        "key of another": (good.serving.certificate, bad.serving.key),
        "garbage": (b"x", b"y"),
        "no certificate": (b"", good.serving.key),
        "an encrypted key": (bad.serving.certificate, encrypted(bad.serving)),
    }[what]
    with pytest.raises(CertificateError, match="certificate and key cannot be used"):
        load(context, KeyPair(certificate, key))
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    _, writer = await connect(server.sockets[0].getsockname()[1], good)
    writer.close()
    server.close()
