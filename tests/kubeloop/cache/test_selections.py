"""An informer of the objects that match a label selector."""

from __future__ import annotations

import pytest

from kubeloop.api.registry import PODS
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.cache.recovery import ReflectorOptions
from kubeloop.client.client import Client
from kubeloop.client.namespaces import Namespaces
from kubeloop.testing.scripted_server import LIST, WATCH, LiveWatch, ScriptedServer, listing, status, watch
from kubeloop.testing.scripted_steps import added, deleted, error, obj

pytestmark = pytest.mark.virtual_time

PATH = PODS.path()


async def test_the_selector_goes_with_every_list_page_and_watch() -> None:
    live = LiveWatch()
    async with ScriptedServer() as server, Client(server.config()) as client:
        server.script(WATCH, PATH, status(400, "BadRequest"), watch(error(410, "Expired")), live.reply)
        server.script(
            LIST,
            PATH,
            listing([obj("a", "1", "ns")], "5", "next"),
            listing([obj("b", "2", "ns")], "5"),
            listing([obj("b", "2", "ns")], "9"),
        )
        selected = client.resource(PODS).select(label_selector="kubevirt.io=virt-launcher")
        informer = SharedIndexInformer(selected, options=ReflectorOptions(backoff_base=0.02))
        informer.start()
        await live.opened()
        assert informer.indexer.list_keys() == ["ns/b"]
        assert len(server.requests) == 6
        assert {seen.query["labelSelector"] for seen in server.requests} == {"kubevirt.io=virt-launcher"}
        await informer.stop()


async def test_each_of_several_namespaces_is_watched_from_where_its_own_watch_stopped() -> None:
    first, second = PODS.path("first"), PODS.path("second")
    live = LiveWatch()
    async with ScriptedServer() as server, Client(server.config()) as client:
        server.script(LIST, first, listing([obj("a", "1", "first")], "5"))
        server.script(LIST, second, listing([obj("b", "2", "second")], "7"))
        # Whichever ends, the other is ended with it, and may have more to say.
        steps = watch(added(obj("c", "9", "first")))
        server.script(WATCH, first, status(422, "Invalid"), steps, LiveWatch().reply, LiveWatch().reply)
        server.script(WATCH, second, LiveWatch().reply, watch(deleted(obj("b", "8", "second"))), live.reply)
        pods = client.resource(PODS)
        namespaces = Namespaces([pods.select(namespace="first"), pods.select(namespace="second")])
        informer = SharedIndexInformer(namespaces, options=ReflectorOptions(backoff_base=0.02))
        informer.start()
        await live.opened()
        assert informer.indexer.list_keys() == ["first/a", "first/c"]
        asked = [seen for seen in server.requests if seen.verb == WATCH]
        assert [seen.query.get("resourceVersion") for seen in asked if seen.path == first] == [None, "5", "9", "9"]
        assert [seen.query["resourceVersion"] for seen in asked if seen.path == second] == ["7", "7", "8"]
        await informer.stop()
