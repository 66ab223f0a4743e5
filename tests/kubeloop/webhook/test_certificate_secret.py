"""Replicas, one Secret, one CA."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Callable

import pytest

from kubeloop.api.core import Secret
from kubeloop.api.registry import SECRETS
from kubeloop.client.errors import ConfigError, NotFound
from kubeloop.webhook.certificates import DAY
from kubeloop.webhook.serving_certificate import SharedCertificates, server_context
from tests.kinds import Clock, Kind

BUNDLE, AUTHORITY_KEY, CERTIFICATE, KEY = "ca.crt", "authority.key", "tls.crt", "tls.key"

pytestmark = pytest.mark.virtual_time

NAME = "headroom-webhook-tls"
AT = f"default/{NAME}"


class Secrets(Kind[Secret]):
    """Of which a test reads and spoils one."""

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

    def made(*hosts: str) -> SharedCertificates:
        return SharedCertificates(server_context(), secrets.client, "default", NAME, hosts or ("127.0.0.1",), clock)

    return made


async def refreshed(*replicas: SharedCertificates) -> tuple[bytes, bytes]:
    """All at once: the bundle and the certificate, which all of them have then."""
    await asyncio.gather(*(each.refresh() for each in replicas))
    (agreed,) = {(each.bundle, each.loaded and each.loaded.certificate) for each in replicas}
    assert all(agreed)
    return agreed  # type: ignore[return-value]


async def test_the_first_replica_writes_what_a_listener_can_load_and_the_others_read(
    secrets: Secrets, replica: Replicas
) -> None:
    replicas = [replica() for _ in range(5)]
    bundle, certificate = await refreshed(*replicas)
    data = secrets.data()
    assert (data[BUNDLE], data[CERTIFICATE]) == (bundle, certificate)
    for key in (KEY, AUTHORITY_KEY):
        assert data[key].startswith(b"-----BEGIN PRIVATE KEY-----")
    ssl.create_default_context(cadata=bundle.decode())
    before = len(secrets.calls)
    await refreshed(replicas[0])
    assert [verb for verb, _, _ in secrets.calls[before:]] == ["get"]
    assert len(secrets.asked("patch")) == 0


async def test_of_replicas_that_renew_together_one_wins_also_beside_a_foreign_writer(
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
    told = [line.partition(": ")[2] for line in caplog.messages if line.startswith("secret ")]
    assert told == ["certificates renewed"]


async def test_a_secret_that_was_deleted_has_a_new_ca(secrets: Secrets, replica: Replicas) -> None:
    replicas = [replica() for _ in range(2)]
    before, _ = await refreshed(*replicas)
    secrets.gone(AT)
    bundle, certificate = await refreshed(*replicas)
    assert bundle == secrets.data()[BUNDLE] != before
    assert certificate == secrets.data()[CERTIFICATE]


async def test_what_an_earlier_version_kept_beside_it_goes_with_the_next_renewal(
    secrets: Secrets, clock: Clock, replica: Replicas
) -> None:
    one = replica()
    before, _ = await refreshed(one)
    secrets.spoil(staged_crt="eA==", staged_key="eA==", activate_at="eA==")
    clock.now += 244 * DAY
    assert (await refreshed(one))[0] == before
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
@pytest.mark.parametrize("known", [True, False], ids=["by one that knew it", "by one that did not"])
async def test_a_secret_that_is_garbage_is_replaced(
    spoiled: dict[str, str | None], known: bool, secrets: Secrets, replica: Replicas
) -> None:
    """As it was, if that is known: the other replicas, and the locks that stand, have its CA."""
    one = replica()
    await refreshed(one)
    before = secrets.data()
    secrets.spoil(**spoiled)
    await refreshed(one if known else replica())
    assert (secrets.data() == before) is known
    await refreshed(replica(), one)


async def test_another_host_keeps_the_ca(replica: Replicas) -> None:
    one, other = replica(), replica("localhost")
    bundle, _ = await refreshed(one)
    assert (await refreshed(other))[0] == bundle
    await refreshed(one, other)


async def test_a_namespace_that_is_not_there_is_one_clear_line(secrets: Secrets, replica: Replicas) -> None:
    secrets.errors["create"] = [NotFound('namespaces "default" not found', status=404)]
    with pytest.raises(ConfigError, match="namespace default for the certificate's secret"):
        await replica().refresh()
