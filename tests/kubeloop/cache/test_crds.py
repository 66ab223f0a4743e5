"""CRDs that appear wake their informer."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kubeloop.api.registry import CUSTOM_RESOURCE_DEFINITIONS, Resource
from kubeloop.cache.informer import CustomResourceWatch, SharedIndexInformer
from kubeloop.cache.recovery import ReflectorOptions
from kubeloop.client.client import Client
from kubeloop.testing.polling import until
from kubeloop.testing.scripted_server import (
    GET,
    LIST,
    WATCH,
    LiveWatch,
    Reply,
    ScriptedServer,
    groups,
    raw,
    resources,
    status,
    watch,
)
from kubeloop.testing.scripted_steps import added, bookmark, deleted, hang, modified, obj
from kubeloop.testing.virtual_time import now
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import VIRTUAL_MACHINES

DEFINITIONS = CUSTOM_RESOURCE_DEFINITIONS.path()
DEFINITION = f"{SETTINGS.plural}.{SETTINGS.group}"
NEVER = ReflectorOptions(missing_poll=3600.0)
OFTEN = ReflectorOptions(missing_poll=0.1)
NO_KIND, FORBIDDEN = raw(b"404 page not found\n", 404), status(403, "Forbidden")
OTHER = obj("virtualmachines.kubevirt.io")


def without_settings(server: ScriptedServer) -> None:
    server.always(WATCH, SETTINGS.path(), NO_KIND)
    server.always(GET, f"/apis/{SETTINGS.api_version}", status(404, "NotFound"))
    server.always(GET, "/apis", groups("kubevirt.io/v1"))
    server.always(WATCH, VIRTUAL_MACHINES.path(), NO_KIND)
    server.always(GET, f"/apis/{VIRTUAL_MACHINES.api_version}", resources("kubevirt.io/v1"))


def with_settings(server: ScriptedServer) -> None:
    objects = watch(added(obj("ratio")), bookmark("8", initial_events_end=True), hang())
    server.always(WATCH, SETTINGS.path(), objects)
    server.always(GET, f"/apis/{SETTINGS.api_version}", resources(SETTINGS.api_version, SETTINGS.plural))


def serving(server: ScriptedServer) -> None:
    """The kind is there with an object, and after a while not served any more."""
    without_settings(server)
    server.script(WATCH, SETTINGS.path(), watch(added(obj("ratio")), bookmark("8", initial_events_end=True), 0.5))


@asynccontextmanager
async def waking(
    prepare: Callable[[ScriptedServer], None],
    definitions: Reply,
    *kinds: Resource[Any],
    options: ReflectorOptions = NEVER,
) -> AsyncIterator[tuple[ScriptedServer, list[SharedIndexInformer[Any]]]]:
    """A server, informers of these kinds (SETTINGS by default), started, and what wakes them; `definitions` is the
    answer to who asks for CRDs."""
    async with ScriptedServer() as server, Client(server.config()) as client:
        prepare(server)
        server.always(WATCH, DEFINITIONS, definitions)
        server.always(LIST, DEFINITIONS, definitions)
        definition_watch = CustomResourceWatch(client)
        informers = [SharedIndexInformer(client.resource(kind), options=options) for kind in kinds or (SETTINGS,)]
        for informer in informers:
            definition_watch.add(informer)
            informer.start()
        yield server, informers
        for informer in informers:
            await informer.stop()
        await definition_watch.stop()


async def test_a_crd_that_appears_wakes_its_informer_at_once() -> None:
    live = LiveWatch()
    async with waking(without_settings, live.reply) as (server, (informer,)):
        await live.opened()
        live.send(added(OTHER), bookmark("5", initial_events_end=True))
        live.send(added(obj(DEFINITION, "6")))
        await server.wait_seen(GET, "/apis", 2)
        assert not informer.installed, "it is there, but not served yet"
        with_settings(server)
        live.send(modified(obj(DEFINITION, "7")))
        await until(lambda: informer.installed)
        assert informer.indexer.list_keys() == ["ratio"]
        accepted = server.seen(WATCH, DEFINITIONS)[0].headers["Accept"]
        assert "as=PartialObjectMetadata" in accepted, "CRDs are large"


async def test_while_every_kind_is_installed_nothing_is_watched() -> None:
    async with waking(with_settings, NO_KIND) as (server, (informer,)):
        assert await informer.wait_for_sync(5)
        assert server.seen(WATCH, DEFINITIONS) == []


@pytest.mark.parametrize("refusal", [FORBIDDEN, NO_KIND], ids=["forbidden", "a 404"])
async def test_without_the_right_to_watch_crds_a_kind_is_polled_for(refusal: Reply) -> None:
    async with waking(without_settings, refusal, options=OFTEN) as (server, (informer,)):
        await server.wait_seen(WATCH, DEFINITIONS)
        with_settings(server)
        await until(lambda: informer.installed)


async def test_only_the_kind_that_came_is_woken() -> None:
    live = LiveWatch()
    async with waking(without_settings, live.reply, SETTINGS, VIRTUAL_MACHINES) as (server, informers):
        await live.opened()
        await until(lambda: not any(informer.installed for informer in informers))
        live.send(added(obj(DEFINITION, "6")), bookmark("6", initial_events_end=True))
        await server.wait_seen(GET, "/apis", 2)
        assert len(server.seen(GET, f"/apis/{VIRTUAL_MACHINES.api_version}")) == 1


@pytest.mark.parametrize("comes_back", [True, False], ids=["it is served again", "its definition is deleted"])
async def test_objects_stay_as_long_as_their_kind_is_defined(comes_back: bool) -> None:
    live = LiveWatch()
    async with waking(serving, live.reply, options=OFTEN) as (server, (informer,)):
        await live.opened()
        assert informer.indexer.list_keys() == ["ratio"], "nobody knows yet"
        live.send(added(obj(DEFINITION, "4")), bookmark("5", initial_events_end=True))
        await server.wait_seen(GET, "/apis", 5)
        assert (informer.indexer.list_keys(), informer.installed) == (["ratio"], False)
        (problem,) = informer.problems(now())
        assert problem == "settings: no longer served, 1 objects are kept as they were last seen"
        if comes_back:
            with_settings(server)
            await until(lambda: informer.installed)
        else:
            live.send(deleted(obj(DEFINITION, "6")))
            await until(lambda: not informer.indexer.list_keys())
        assert informer.indexer.list_keys() == ["ratio"] * comes_back
        assert informer.problems(now()) == []


async def test_objects_of_a_kind_without_a_definition_are_gone() -> None:
    definitions = watch(0.5, added(OTHER), bookmark("5", initial_events_end=True), hang())
    async with waking(serving, definitions) as (_, (informer,)):
        await until(lambda: informer.has_synced() and not informer.indexer.list_keys(), seconds=20)


async def test_nothing_is_gone_where_definitions_may_not_be_read() -> None:
    async with waking(serving, FORBIDDEN, options=OFTEN) as (server, (informer,)):
        await server.wait_seen(GET, "/apis", 5)
        assert informer.indexer.list_keys() == ["ratio"]
        assert informer.problems(now()) != []
