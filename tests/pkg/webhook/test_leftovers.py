"""Registered webhooks, as a leader sees them that serves none."""

import asyncio

from prometheus_client import REGISTRY

from kubeloop.testing.virtual_time import virtual_time
from pkg.config.settings import Settings
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.webhook.configurations import fingerprint
from pkg.webhook.registration import EVENT_CHANGED, EVENT_NOT_REACHED, LEFTOVERS_PERIOD, Leftovers, Registrar
from tests.pkg.webhook.test_registration import URL, RegistrationServer

Said = list[tuple[str, str]]
STRICT = Settings(strict=["pods"])


async def registered(options: Settings = STRICT) -> RegistrationServer:
    server = RegistrationServer()
    server.mark = fingerprint(URL, options)
    await Registrar(server.client(), URL, options).ensure(b"ca")
    return server


def metric_value() -> float | None:
    return REGISTRY.get_sample_value("headroom_webhook_unreachable")


def leftovers(server: RegistrationServer, sink: Said, *, remove: bool = False) -> Leftovers:
    return Leftovers(server.client(), "default", remove=remove, tell=lambda *words: sink.append(words))


async def test_dead_webhooks_are_reported_once_with_their_policies() -> None:
    server, sink = await registered(), Said()
    looked = leftovers(server, sink)
    await looked.check()
    assert (sink, metric_value()) == ([], 0)
    server.reached.clear()
    await looked.check()
    assert (sink, metric_value()) == ([], 1)  # it may have been started again
    await looked.check()
    await looked.check()
    ((reason, policies),) = sink
    assert reason == EVENT_NOT_REACHED
    assert "pods.headroom.harvesterhci.io (Fail)" in policies
    assert "resourcequotas.headroom.harvesterhci.io (Ignore)" in policies
    assert "connection refused" in policies
    server.reached.add(URL.url)
    await looked.check()
    assert metric_value() == 0


async def test_webhooks_that_another_client_deletes_are_reported_once() -> None:
    server, sink = await registered(), Said()
    looked = leftovers(server, sink)
    await looked.check()
    server.validating.gone(WEBHOOK_CONFIGURATION_NAME)
    for _ in range(3):
        await looked.check()
    ((reason, line),) = sink
    assert (reason, line.endswith("was deleted by another client")) == (EVENT_CHANGED, True)


async def test_where_nothing_is_registered_nothing_is_asked() -> None:
    server, sink = RegistrationServer(), Said()
    looked = leftovers(server, sink)
    await looked.check()
    assert (sink, server.writes) == ([], [])


@virtual_time
async def test_unserved_webhooks_are_removed_also_later_ones() -> None:
    server = await registered()
    running = asyncio.create_task(leftovers(server, [], remove=True).run())
    await asyncio.sleep(1)
    assert (server.validating.objects, server.mutating.objects) == ({}, {})
    await Registrar(server.client(), URL, STRICT).ensure(b"ca")  # a replica of before, which ends
    await asyncio.sleep(LEFTOVERS_PERIOD)
    assert (server.validating.objects, server.mutating.objects) == ({}, {})
    running.cancel()


@virtual_time
async def test_an_api_server_that_is_away_is_asked_again() -> None:
    server, sink = await registered(), Said()
    server.away = True
    running = asyncio.create_task(leftovers(server, sink).run())
    await asyncio.sleep(3 * LEFTOVERS_PERIOD)
    assert (sink, running.done()) == ([], False)
    server.away = False
    server.reached.clear()
    await asyncio.sleep(2 * LEFTOVERS_PERIOD)
    assert len(sink) == 1
    running.cancel()
