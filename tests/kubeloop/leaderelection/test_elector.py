"""Leader election on virtual time: who holds the lease when, and that never two may write."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest

from kubeloop.api.core import LeaseSpec
from kubeloop.api.meta import Object
from kubeloop.api.registry import LEASES
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden, NotFound, ServerError
from kubeloop.leaderelection.elector import LeaderElectionConfig, LeaderElector, LeaseLost, NotLeader
from kubeloop.leaderelection.lease_lock import LeaseLock
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.virtual_time import now, settle
from tests.kubeloop.leaderelection.lease_server import KEY, LeaseServer, Link

pytestmark = pytest.mark.virtual_time

OTHER = LeaseSpec(
    holder_identity="other", lease_duration_seconds=15, acquire_time="1999-01-01T00:00:00.000000Z",
    renew_time="2999-01-01T00:00:00.000000Z", lease_transitions=4,
)  # fmt: skip


@dataclass
class Candidate:
    """An elector that is run, and when it began and ended to lead."""

    link: Link
    elector: LeaderElector
    led: list[float] = field(default_factory=list)
    losses: list[tuple[float, str]] = field(default_factory=list)
    messages: list[tuple[float, str]] = field(default_factory=list)
    leaders: list[str] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def start(self) -> "Candidate":
        self.task = asyncio.create_task(self._run())
        return self

    async def kill(self) -> None:
        """Ends the candidate as kill -9 does: it reports nothing to anyone."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])

    async def end(self) -> bool:
        """A graceful end."""
        await self.kill()
        return await self.elector.release()

    async def _run(self) -> None:
        try:
            await self.elector.run(lambda: self.led.append(now()))
        except LeaseLost as err:
            self.losses.append((now(), str(err)))

    def may_write(self) -> bool:
        with contextlib.suppress(NotLeader):
            self.elector.before_write()
            return True
        return False


class Race:
    """Candidates of one Lease. Every quarter of a second it is checked that at most one may write."""

    def __init__(self, **durations: float) -> None:
        self.server = LeaseServer()
        self.candidates: list[Candidate] = []
        self._config = LeaderElectionConfig(**durations)

    def candidate(self, identity: str, clock: Callable[[], float] = now) -> Candidate:
        link = Link(self.server)
        lock = LeaseLock(Client(link), "ns", "headroom", identity)
        messages: list[tuple[float, str]] = []
        leaders: list[str] = []
        elector = LeaderElector(
            lock,
            self._config,
            clock=clock,
            tell=lambda message: messages.append((round(now()), message)),
            on_new_leader=leaders.append,
        )
        self.candidates.append(Candidate(link, elector, messages=messages, leaders=leaders))
        return self.candidates[-1]

    async def lasts(self, seconds: float) -> None:
        end = now() + seconds
        while now() < end:
            assert sum(candidate.may_write() for candidate in self.candidates) <= 1
            await asyncio.sleep(0.25)


def two_candidates() -> tuple[Race, Candidate, Candidate]:
    """a and b, which begin at once."""
    race = Race()
    return race, race.candidate("a").start(), race.candidate("b").start()


async def alone(seconds: float) -> tuple[Race, Candidate]:
    """Lets one candidate run alone for so long."""
    race = Race()
    candidate = race.candidate("a").start()
    await race.lasts(seconds)
    return race, candidate


async def test_a_missing_lease_is_created_and_renewed() -> None:
    race, leader = await alone(1)
    acquired = race.server.lease.spec.acquire_time
    await race.lasts(6)
    assert leader.led == [0]
    assert [when for when, _ in race.server.written] == [0, 2, 4, 6]
    assert leader.link.gets == [0]  # renewals read nothing
    spec = race.server.lease.spec
    assert (spec.holder_identity, spec.lease_duration_seconds, spec.lease_transitions) == ("a", 15, 0)
    assert spec.acquire_time == acquired is not None
    assert spec.renew_time is not None


@pytest.mark.parametrize(("transitions", "next_transitions"), [(4, 5), (2**31 - 1, 2**31 - 1)])
async def test_another_holder_keeps_its_whole_duration_from_here(transitions: int, next_transitions: int) -> None:
    race = Race()
    race.server.set(msgspec.structs.replace(OTHER, lease_transitions=transitions))
    await asyncio.sleep(100)  # not watched: how long ago it was renewed is not known
    waiting = race.candidate("a").start()
    await race.lasts(14.75)
    assert waiting.led == []
    await race.lasts(1)
    assert waiting.led == [pytest.approx(115, abs=0.1)]
    assert race.server.lease.spec.lease_transitions == next_transitions


async def test_a_holder_with_a_longer_duration_than_ours_is_left_that() -> None:
    race = Race(lease_duration=3, renew_deadline=2, retry_period=0.5)
    race.server.set(OTHER)
    waiting = race.candidate("a").start()
    await race.lasts(16)
    assert waiting.led == [pytest.approx(15, abs=0.1)]


async def test_one_of_two_leads_and_the_other_tries_on() -> None:
    race, leader, follower = two_candidates()
    await race.lasts(60)
    assert (leader.led, follower.led) == ([0], [])
    tries = follower.link.gets[2:]
    assert {round(b - a, 6) for a, b in itertools.pairwise(tries)} == {2.0}


async def test_after_the_leader_was_killed_the_lease_runs_out_once() -> None:
    race, leader, follower = two_candidates()
    await race.lasts(21)
    await leader.kill()
    await race.lasts(18)
    assert follower.led == [pytest.approx(35, abs=0.1)]  # last renewed at 20, seen at once by the watch


async def test_without_a_watch_a_killed_leader_is_followed_in_18_s() -> None:
    race = Race()
    leader, follower = race.candidate("a").start(), race.candidate("b")
    follower.link.watches = False
    await race.lasts(1)
    follower.start()
    await race.lasts(20.5)
    killed = now()
    await leader.kill()
    await race.lasts(18)
    assert killed < follower.led[0] <= killed + 18


async def test_a_released_lease_is_taken_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kubeloop.leaderelection")
    race, leader, follower = two_candidates()
    await race.lasts(21)
    assert await leader.end()
    end = now()
    assert not leader.may_write()
    assert race.server.lease.spec.lease_duration_seconds == 1
    await settle()
    assert follower.led == [end]
    assert (leader.leaders, follower.leaders) == (["a"], ["a", "b"])
    assert [line for line in caplog.messages if "is held by" in line] == ["the lease ns/headroom is held by a"]
    await race.lasts(30)
    assert follower.losses == []


async def test_a_deleted_lease_is_still_left_to_its_last_holder() -> None:
    """It does not know yet, and may write until it does."""
    race = Race()
    race.server.set(OTHER)
    waiting = race.candidate("a").start()
    await race.lasts(5)
    race.server.remove(LEASES, KEY)
    await race.lasts(15)
    assert waiting.led == [pytest.approx(15, abs=0.1)]


async def test_a_leader_whose_lease_was_deleted_makes_it_anew() -> None:
    race, leader, follower = two_candidates()
    await race.lasts(5)
    race.server.remove(LEASES, KEY)
    await race.lasts(30)
    assert (leader.losses, follower.led) == ([], [])


@pytest.mark.parametrize(("fault", "reason"), [("cut", "cut off"), ("hangs", "no answer in time")])
async def test_a_leader_that_is_cut_off_stops_before_another_begins(fault: str, reason: str) -> None:
    race, leader, follower = two_candidates()
    await race.lasts(20.5)
    setattr(leader.link, fault, True)
    await race.lasts(30)
    assert leader.losses == [(30, f"lost the lease ns/headroom: not renewed for 10 s: {reason}")]
    assert follower.led == [pytest.approx(35, abs=0.1)]


@pytest.mark.parametrize(("fault", "seconds"), [("cut", 7), ("answers_lost", 5)])
async def test_a_short_outage_costs_nothing(fault: str, seconds: float) -> None:
    race, leader, follower = two_candidates()
    await race.lasts(20.5)
    for candidate in race.candidates:
        setattr(candidate.link, fault, True)
    await race.lasts(seconds)
    for candidate in race.candidates:
        setattr(candidate.link, fault, False)
    await race.lasts(60)
    assert (leader.losses, follower.led) == ([], [])


async def test_a_leader_that_was_stopped_too_long_writes_nothing() -> None:
    """The monotonic clock goes on while the process is stopped; its loop does not."""
    skipped = 0.0
    race = Race()
    stopped = race.candidate("a", lambda: now() + skipped).start()
    await race.lasts(3)
    assert stopped.may_write()
    skipped = 20.0
    assert not stopped.may_write()
    await race.lasts(3)
    assert [text for _, text in stopped.losses] == ["lost the lease ns/headroom: not renewed for 10 s"]
    assert [when for when, _ in race.server.written] == [0, 2]


async def test_a_leader_that_finds_another_holder_stops_at_once() -> None:
    race, leader = await alone(3)
    race.server.set(OTHER)
    await race.lasts(2)
    assert leader.losses == [(4, "lost the lease ns/headroom: other holds it")]


async def test_what_others_write_to_our_lease_does_not_end_it() -> None:
    race, leader = await alone(3)
    race.server.set(race.server.lease.spec)  # a label, say: only the version moves
    await race.lasts(30)
    assert leader.losses == []


async def test_the_lease_counts_from_when_a_renewal_was_sent() -> None:
    race, leader = await alone(1)
    leader.link.delay = 4.0
    await race.lasts(6)  # sent at 2, answered at 6
    leader.link.cut = True
    await race.lasts(4.75)
    assert leader.may_write()
    await race.lasts(0.5)
    assert not leader.may_write()


async def test_a_candidate_without_rights_is_not_ready_and_tries_on(caplog: pytest.LogCaptureFixture) -> None:
    race = Race()
    barred = race.candidate("a")
    assert barred.elector.unready() == ["lease ns/headroom: not read yet"]
    barred.link.error = Forbidden("leases is forbidden")
    barred.start()
    await race.lasts(125)
    assert barred.elector.unready() == ["lease ns/headroom: leases is forbidden"]
    message = "lease ns/headroom: not acquired or renewed: leases is forbidden"
    assert barred.messages == [(0, message), (60, message), (120, message)]
    assert caplog.text.count("leases is forbidden") == 3
    barred.link.error = None
    await race.lasts(3)
    assert len(barred.led) == 1
    assert barred.elector.unready() == []


async def test_a_failure_is_told_again_after_a_renewal() -> None:
    race, leader = await alone(1)
    for _ in range(2):
        leader.link.error = ServerError("etcd is away")
        await race.lasts(4)
        leader.link.error = None
        await race.lasts(4)
    message = "lease ns/headroom: not acquired or renewed: etcd is away"
    assert leader.messages == [(2, message), (10, message)]


async def test_a_standby_stays_ready_during_a_short_outage() -> None:
    race = Race()
    race.candidate("a").start()
    standby = race.candidate("b").start()
    await race.lasts(5)
    standby.link.cut = True
    await race.lasts(8)
    assert standby.elector.unready() == []
    await race.lasts(4)
    assert standby.elector.unready() == ["lease ns/headroom: cut off"]


@pytest.mark.parametrize("leads", [False, True], ids=["a standby", "a leader before it knows"])
async def test_a_lease_of_others_is_not_released_for_them(leads: bool) -> None:
    race = Race()
    for step in (0, 3):
        if leads is bool(step):
            race.server.set(OTHER)
        if not step:
            ends = race.candidate("a").start()
            await race.lasts(3)
    assert bool(ends.led) is leads
    assert not await ends.end()
    assert race.server.lease.spec == OTHER


async def test_candidates_with_bad_links_never_write_two_at_a_time() -> None:
    race = Race(lease_duration=6, renew_deadline=4, retry_period=1)
    candidates = [race.candidate(name).start() for name in "abcde"]
    for turn in range(60):
        for number, candidate in enumerate(candidates):
            candidate.link.cut = (turn * 7 + number * 3) % 5 == 0
            candidate.link.delay = ((turn + number) % 4) * 0.7
            candidate.link.answers_lost = (turn * 3 + number) % 7 == 0
            if candidate.losses and candidate.task is not None and candidate.task.done():
                candidate.losses.clear()
                candidate.start()  # its process was started again
        await race.lasts(3)
    assert len({holder for _, holder in race.server.written}) > 1


@pytest.mark.parametrize("durations", [(10, 10, 2), (15, 2, 2), (15, 10, 0), (15, 10, -1), (2, 10, 1)], ids=str)
def test_durations_under_which_two_could_write(durations: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="must be longer than"):
        LeaderElectionConfig(*durations)


async def test_a_lease_whose_namespace_does_not_exist_is_said_at_once() -> None:
    race = Race()
    waiting = race.candidate("a")
    reason = 'namespaces "ns" not found'

    def refuse(request: Request) -> None:
        if request.verb == "create":
            raise NotFound(reason)

    race.server.reactors.append(refuse)
    waiting.start()
    await race.lasts(3)
    assert [message for _, message in waiting.messages] == [f"lease ns/headroom: not acquired or renewed: {reason}"]
    race.server.reactors.clear()
    await race.lasts(3)
    assert waiting.led


async def test_a_release_reads_the_lease_again_after_a_conflict() -> None:
    race = Race()
    leader = race.candidate("a").start()
    await race.lasts(3)

    def renewal_arrives(request: Request) -> None:
        if request.verb == "patch":
            race.server.reactors.clear()
            race.server.set(msgspec.structs.replace(race.server.lease.spec, renew_time="2030-01-01T00:00:00.000000Z"))

    race.server.reactors.append(renewal_arrives)
    assert await leader.end()
    assert race.server.lease.spec.holder_identity is None


async def test_leading_is_an_event_on_the_lease() -> None:
    events: list[tuple[str, str, str, str]] = []

    class ListRecorder:
        def event(self, obj: Object, type: str, reason: str, message: str) -> None:
            events.append((obj.key, type, reason, message))

    server = LeaseServer()
    lock = LeaseLock(server.client(), "ns", "headroom", "a")
    for ending in ("released", "lost"):
        events.clear()
        elector = LeaderElector(lock, clock=now, recorder=ListRecorder())
        running = asyncio.create_task(elector.run(lambda: None))
        await asyncio.sleep(3)
        assert events == [("ns/headroom", "Normal", "LeaderElection", "a became leader")]
        if ending == "released":
            running.cancel()
            assert await elector.release()
        else:
            server.set(OTHER)
            with pytest.raises(LeaseLost):
                await running
        assert [message for *_, message in events] == ["a became leader", "a stopped leading"]
