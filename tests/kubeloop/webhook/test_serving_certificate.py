"""The certificate that a listener serves: from cert-manager's files, or the Secret that replicas share; how it is
loaded into a context that is in use."""

import asyncio
import base64
import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kubeloop.api.core import Secret
from kubeloop.api.registry import SECRETS
from kubeloop.client.errors import ConfigError, NotFound
from kubeloop.webhook.certificates import DAY, CertificateError, KeyPair, Material, issue
from kubeloop.webhook.serving_certificate import CertificateFiles, SharedCertificates, load, server_context
from tests.kinds import Clock, Kind
from tests.kubeloop.client.pki import Authority

pytestmark = pytest.mark.virtual_time


def new_material() -> Material:
    return issue(["127.0.0.1"], time.time())


# -- loaded into a context


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
    writer.close()


async def connect(port: int, trusted: Material) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context(cadata=trusted.bundle.decode())
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def test_only_new_connections_get_the_new_certificate() -> None:
    old_material, renewed_material = new_material(), new_material()
    context = server_context()
    load(context, old_material.serving)
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await connect(port, old_material)
    load(context, renewed_material.serving)
    _, second = await connect(port, renewed_material)
    with pytest.raises(ssl.SSLCertVerificationError):
        await connect(port, old_material)
    writer.write(b"still here\n")
    assert await reader.readline() == b"still here\n"
    for replica in (writer, second):
        replica.close()
    server.close()


@pytest.mark.parametrize("defect", ["key of another", "garbage", "no certificate", "an encrypted key"])
async def test_what_cannot_be_used_leaves_the_context_as_it_was(defect: str) -> None:
    good, bad, locked = new_material(), new_material(), Authority().issue("x", password=b"secret")
    context = server_context()
    load(context, good.serving)
    certificate, key = {
        "key of another": (good.serving.certificate, bad.serving.key),
        "garbage": (b"x", b"y"),
        "no certificate": (b"", good.serving.key),
        "an encrypted key": (locked.certificate.encode(), locked.key.encode()),
    }[defect]
    with pytest.raises(CertificateError, match="certificate and key cannot be used"):
        load(context, KeyPair(certificate, key))
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    _, writer = await connect(server.sockets[0].getsockname()[1], good)
    writer.close()
    server.close()


# -- from files


def write(folder: Path, material: Material, authority: str = "ca.crt") -> None:
    (folder / "tls.crt").write_bytes(material.serving.certificate)
    (folder / "tls.key").write_bytes(material.serving.key)
    (folder / authority).write_bytes(material.bundle)


def files(folder: Path, authority: Path | None = None) -> CertificateFiles:
    return CertificateFiles(server_context(), folder / "tls.crt", folder / "tls.key", authority)


@pytest.mark.parametrize(
    ("file", "authority", "registered"),
    [("ca.crt", None, True), ("root.pem", "root.pem", True), ("root.pem", None, False)],
    ids=["beside the certificate", "one's own choice", "none: an injector's affair"],
)
async def test_the_ca_that_is_registered(tmp_path: Path, file: str, authority: str | None, registered: bool) -> None:
    material = new_material()
    write(tmp_path, material, file)
    certificate_files = files(tmp_path, tmp_path / authority if authority else None)
    assert not certificate_files.expires
    await certificate_files.refresh()
    assert certificate_files.expires
    assert certificate_files.bundle == (material.bundle if registered else None)


async def test_a_change_is_loaded(tmp_path: Path) -> None:
    write(tmp_path, new_material())
    certificate_files = files(tmp_path)
    await certificate_files.refresh()
    renewed = new_material()
    write(tmp_path, renewed)
    await certificate_files.refresh()
    assert certificate_files.bundle == renewed.bundle
    assert certificate_files.loaded == renewed.serving


@pytest.mark.parametrize("half", [b"", b"-----BEGIN CERTIFICATE-----\nMIIB"])
async def test_a_file_that_is_half_written_changes_nothing(tmp_path: Path, half: bytes) -> None:
    material = new_material()
    write(tmp_path, material)
    certificate_files = files(tmp_path)
    await certificate_files.refresh()
    (tmp_path / "tls.crt").write_bytes(half)
    await certificate_files.refresh()
    assert certificate_files.loaded == material.serving
    (tmp_path / "tls.crt").unlink()
    await certificate_files.refresh()
    assert certificate_files.expires


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key", ""], ids=["a certificate", "a key", "the right key"])
async def test_what_was_never_there_is_one_clear_line(tmp_path: Path, missing: str) -> None:
    write(tmp_path, new_material())
    if missing:
        (tmp_path / missing).unlink()
    else:
        (tmp_path / "tls.key").write_bytes(new_material().serving.key)
    with pytest.raises(ConfigError, match=missing or "cannot be used"):
        await files(tmp_path).refresh()


# -- from a Secret

BUNDLE, AUTHORITY_KEY, CERTIFICATE, KEY = "ca.crt", "authority.key", "tls.crt", "tls.key"
NAME = "headroom-webhook-tls"
AT = f"default/{NAME}"


class Secrets(Kind[Secret]):
    """The Secrets, of which a test reads and spoils one."""

    def __init__(self) -> None:
        super().__init__(SECRETS)

    def data(self) -> dict[str, bytes]:
        return {name: base64.b64decode(text) for name, text in self.objects[AT]["data"].items()}

    def spoil(self, **data: str | None) -> None:
        self.edited(AT, {"data": {name.replace("_", "."): text for name, text in data.items()}})


@pytest.fixture
def secrets() -> Secrets:
    return Secrets()


@pytest.fixture
def clock() -> Clock:
    return Clock()


Replicas = Callable[..., SharedCertificates]


@pytest.fixture
def replica(secrets: Secrets, clock: Clock) -> Replicas:
    """Makes one."""

    def make_replica(*hosts: str) -> SharedCertificates:
        return SharedCertificates(server_context(), secrets.client, "default", NAME, hosts or ("127.0.0.1",), clock)

    return make_replica


async def refreshed(*replicas: SharedCertificates) -> tuple[bytes, bytes]:
    """All at once: the bundle and the certificate, which all of them have then."""
    await asyncio.gather(*(replica.refresh() for replica in replicas))
    (agreed,) = {(replica.bundle, replica.loaded and replica.loaded.certificate) for replica in replicas}
    assert all(agreed)
    return agreed  # type: ignore[return-value]


async def test_the_first_replica_writes_and_the_others_read(secrets: Secrets, replica: Replicas) -> None:
    replicas = [replica() for _ in range(5)]
    bundle, certificate = await refreshed(*replicas)
    data = secrets.data()
    assert (data[BUNDLE], data[CERTIFICATE]) == (bundle, certificate)
    for key in (KEY, AUTHORITY_KEY):
        assert data[key].startswith(b"-----BEGIN PRIVATE KEY-----")
    ssl.create_default_context(cadata=bundle.decode())
    calls_before = len(secrets.calls)
    await refreshed(replicas[0])
    assert [verb for verb, _, _ in secrets.calls[calls_before:]] == ["get"]
    assert len(secrets.asked("patch")) == 0


async def test_one_of_the_replicas_that_renew_together_wins(
    secrets: Secrets, clock: Clock, replica: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    replicas = [replica() for _ in range(5)]
    bundle, certificate = await refreshed(*replicas)
    assert [line.partition(": ")[2] for line in caplog.messages if line.startswith("secret ")] == ["created"]
    caplog.clear()
    clock.now += 244 * DAY
    secrets.before.append(lambda: secrets.edited(AT, {"metadata": {"labels": {"a": "b"}}}))
    assert await refreshed(*replicas) == (bundle, secrets.data()[CERTIFICATE])
    assert secrets.data()[CERTIFICATE] != certificate
    messages = [line.partition(": ")[2] for line in caplog.messages if line.startswith("secret ")]
    assert messages == ["certificates renewed"]


async def test_a_secret_that_was_deleted_has_a_new_ca(secrets: Secrets, replica: Replicas) -> None:
    replicas = [replica() for _ in range(2)]
    old_bundle, _ = await refreshed(*replicas)
    secrets.gone(AT)
    bundle, certificate = await refreshed(*replicas)
    assert bundle == secrets.data()[BUNDLE] != old_bundle
    assert certificate == secrets.data()[CERTIFICATE]


async def test_keys_of_an_earlier_version_go_with_the_next_renewal(
    secrets: Secrets, clock: Clock, replica: Replicas
) -> None:
    only_replica = replica()
    old_bundle, _ = await refreshed(only_replica)
    secrets.spoil(staged_crt="eA==", staged_key="eA==", activate_at="eA==")
    clock.now += 244 * DAY
    assert (await refreshed(only_replica))[0] == old_bundle
    assert secrets.data().keys() == {BUNDLE, "authority.crt", AUTHORITY_KEY, CERTIFICATE, KEY}


@pytest.mark.parametrize(
    "spoiled",
    [
        {"tls_crt": None},
        {"tls_key": "!"},
        {"tls_key": base64.b64encode(b"x").decode()},
        {"ca_crt": ""},
        {"authority_key": None},
    ],
)
@pytest.mark.parametrize("is_known", [True, False], ids=["by one that knew it", "by one that did not"])
async def test_a_secret_that_is_garbage_is_replaced(
    spoiled: dict[str, str | None], is_known: bool, secrets: Secrets, replica: Replicas
) -> None:
    """The Secret becomes what it was, if that is known: the other replicas, and the locks that stand, have its CA."""
    first_replica = replica()
    await refreshed(first_replica)
    old_data = secrets.data()
    secrets.spoil(**spoiled)
    await refreshed(first_replica if is_known else replica())
    assert (secrets.data() == old_data) is is_known
    await refreshed(replica(), first_replica)


async def test_another_host_keeps_the_ca(replica: Replicas) -> None:
    first_replica, localhost_replica = replica(), replica("localhost")
    bundle, _ = await refreshed(first_replica)
    assert (await refreshed(localhost_replica))[0] == bundle
    await refreshed(first_replica, localhost_replica)


async def test_a_namespace_that_is_not_there_is_one_clear_line(secrets: Secrets, replica: Replicas) -> None:
    secrets.errors["create"] = [NotFound('namespaces "default" not found', status=404)]
    with pytest.raises(ConfigError, match="namespace default for the certificate's secret"):
        await replica().refresh()
