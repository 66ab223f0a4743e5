"""Replicas, one Secret, one CA."""

from __future__ import annotations

import asyncio
import base64
import ssl

import pytest

from kubeloop.api.core import Secret
from kubeloop.api.registry import SECRETS
from kubeloop.client.errors import ConfigError, NotFound
from pkg.webhook.certificate_secret import AUTHORITY_KEY, BUNDLE, CERTIFICATE, KEY, SharedCertificates
from pkg.webhook.certificates import DAY
from pkg.webhook.serving_certificate import server_context
from tests.kinds import Clock, Kind

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


def replica(secrets: Secrets, clock: Clock, hosts: tuple[str, ...] = ("127.0.0.1",)) -> SharedCertificates:
    return SharedCertificates(secrets.client, "default", NAME, hosts, server_context(), clock)


@pytest.fixture
def secrets() -> Secrets:
    return Secrets()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_the_first_replica_writes_and_the_others_read(secrets: Secrets, clock: Clock) -> None:
    replicas = [replica(secrets, clock) for _ in range(5)]
    await asyncio.gather(*(each.refresh() for each in replicas))
    assert len({each.bundle for each in replicas}) == 1
    assert all(each.expires for each in replicas)
    assert secrets.data()[BUNDLE] == replicas[0].bundle
    before = len(secrets.calls)
    await replicas[0].refresh()
    assert [verb for verb, _, _ in secrets.calls[before:]] == ["get"]
    assert len(secrets.asked("patch")) == 0


async def test_of_replicas_that_renew_together_one_wins(secrets: Secrets, clock: Clock) -> None:
    replicas = [replica(secrets, clock) for _ in range(5)]
    await asyncio.gather(*(each.refresh() for each in replicas))
    clock.now += 244 * DAY
    before = shows(replicas[0])
    await asyncio.gather(*(each.refresh() for each in replicas))
    assert len({each.bundle for each in replicas}) == 1
    (shown,) = {shows(each) for each in replicas}
    assert shown == secrets.data()[CERTIFICATE] != before


def shows(one: SharedCertificates) -> bytes:
    assert one.loaded is not None
    return one.loaded.certificate


async def test_a_secret_that_was_deleted_has_a_new_ca(secrets: Secrets, clock: Clock) -> None:
    replicas = [replica(secrets, clock) for _ in range(2)]
    await asyncio.gather(*(each.refresh() for each in replicas))
    before = replicas[0].bundle
    secrets.gone(AT)
    await asyncio.gather(*(each.refresh() for each in replicas))
    (bundle,) = {each.bundle for each in replicas}
    assert bundle == secrets.data()[BUNDLE] != before
    assert {shows(each) for each in replicas} == {secrets.data()[CERTIFICATE]}


async def test_what_an_earlier_version_kept_beside_it_goes_with_the_next_renewal(
    secrets: Secrets, clock: Clock
) -> None:
    one = replica(secrets, clock)
    await one.refresh()
    secrets.spoil(staged_crt="eA==", staged_key="eA==", activate_at="eA==")
    before = one.bundle
    clock.now += 244 * DAY
    await one.refresh()
    assert one.bundle == before
    assert secrets.data().keys() == {BUNDLE, "authority.crt", AUTHORITY_KEY, CERTIFICATE, KEY}


spoiled_secrets = pytest.mark.parametrize(
    "spoiled",
    [
        {"tls_crt": None},
        {"tls_key": "!"},
        {"tls_key": base64.b64encode(b"x").decode()},
        {"ca_crt": ""},
        {"authority_key": None},
    ],
)


@spoiled_secrets
async def test_a_secret_that_is_garbage_is_replaced(
    spoiled: dict[str, str | None], secrets: Secrets, clock: Clock
) -> None:
    await replica(secrets, clock).refresh()
    secrets.spoil(**spoiled)
    one = replica(secrets, clock)
    await one.refresh()
    assert one.expires
    again = replica(secrets, clock)
    await again.refresh()
    assert again.bundle == one.bundle


@spoiled_secrets
async def test_a_secret_that_was_spoiled_comes_back_as_it_was(
    spoiled: dict[str, str | None], secrets: Secrets, clock: Clock
) -> None:
    """The other replicas, and the locks that stand, have its CA: another one would be trusted by none of them yet."""
    one = replica(secrets, clock)
    await one.refresh()
    before = secrets.data()
    secrets.spoil(**spoiled)
    await one.refresh()
    assert secrets.data() == before


async def test_a_foreign_writer_in_between_is_read(secrets: Secrets, clock: Clock) -> None:
    one = replica(secrets, clock)
    await one.refresh()
    before = shows(one)
    clock.now += 244 * DAY
    secrets.before.append(lambda: secrets.edited(AT, {"metadata": {"labels": {"a": "b"}}}))
    await one.refresh()
    assert shows(one) == secrets.data()[CERTIFICATE] != before


async def test_another_host_keeps_the_ca(secrets: Secrets, clock: Clock) -> None:
    one = replica(secrets, clock)
    await one.refresh()
    other = replica(secrets, clock, ("localhost",))
    await other.refresh()
    assert other.bundle == one.bundle
    await one.refresh()
    assert shows(one) == shows(other)


async def test_a_namespace_that_is_not_there_is_one_clear_line(secrets: Secrets, clock: Clock) -> None:
    secrets.errors["create"] = [NotFound('namespaces "default" not found', status=404)]
    with pytest.raises(ConfigError, match="namespace default for the certificate's secret"):
        await replica(secrets, clock).refresh()


async def test_what_is_kept_is_what_a_listener_can_load(secrets: Secrets, clock: Clock) -> None:
    await replica(secrets, clock).refresh()
    data = secrets.data()
    assert data[KEY].startswith(b"-----BEGIN PRIVATE KEY-----")
    assert data[AUTHORITY_KEY].startswith(b"-----BEGIN PRIVATE KEY-----")
    ssl.create_default_context(cadata=data[BUNDLE].decode())
