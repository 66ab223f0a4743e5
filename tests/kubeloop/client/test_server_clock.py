"""The API server's clock, whatever this machine's says."""

from email.utils import formatdate

import pytest

from kubeloop.client.connections import ServerClock
from tests.kinds import Clock

SERVER = 1_800_000_000.0


def heard(clock: ServerClock, seconds: float) -> None:
    clock.heard(formatdate(seconds, usegmt=True))


@pytest.mark.parametrize("skew", [-7200.0, -200.0, 0.0, 200.0, 7200.0])
def test_this_machines_clock_makes_no_difference(skew: float) -> None:
    uptime = Clock(5.0)
    clock = ServerClock(uptime, lambda: SERVER + skew)
    heard(clock, SERVER)
    assert clock() == SERVER
    uptime.now += 40.0
    assert clock() == SERVER + 40.0


def test_it_comes_closer_with_every_answer() -> None:
    uptime = Clock(5.0)
    clock = ServerClock(uptime, lambda: 0.0)
    heard(clock, SERVER + 0.9)
    assert clock() == SERVER
    uptime.now += 0.2
    heard(clock, SERVER + 1.1)
    assert clock() == SERVER + 1.0
    uptime.now += 0.5
    heard(clock, SERVER + 1.6)
    assert clock() == SERVER + 1.5


def test_an_answer_of_two_seconds_does_not_set_it_back() -> None:
    uptime = Clock(5.0)
    clock = ServerClock(uptime, lambda: SERVER)
    for second, passed, progress in ((0.0, 0.0, 0.0), (1.0, 2.5, 2.5), (2.0, 2.0, 2.0)):
        uptime.now += passed
        heard(clock, SERVER + second)
        assert clock() == SERVER + progress


def test_a_server_clock_that_is_set_is_followed() -> None:
    clock = ServerClock(Clock(5.0), lambda: SERVER)
    heard(clock, SERVER - 3600.0)
    assert clock() == SERVER - 3600.0


@pytest.mark.parametrize(
    "date", ["", "yesterday", "Fri, 99 Foo 2027 00:00:00 GMT", "Fri, 1 Jan 99999999999999999999 00:00:00 GMT"]
)
def test_without_a_readable_header_it_is_this_machines(date: str) -> None:
    clock = ServerClock(Clock(5.0), lambda: SERVER)
    clock.heard(date)
    assert clock() == SERVER
