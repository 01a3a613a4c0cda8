"""Shuffles what may happen to a quorum, by one seed, and looks after every event whether it still keeps its word.

A run has a stormy part and a calm part.  In the stormy part messages are delayed, lost and reordered, links are cut,
connections break, and voters crash between any two effects, stop for a while, resign and come back.  Meanwhile clients
send proposals and reads to voters that believe they lead.  In the calm part all faults have ended, and the quorum must
elect, commit and agree.  The seed also decides which faults a run has, and how many: runs with few kinds of fault find
more than runs that mix all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random

from simulated_quorum.invariants import LIVENESS, Violation
from simulated_quorum.world import World
from system_under_test.kraft.raft.messages import Timing

HASTY = Timing(
    election_timeout_s=0.3, fetch_timeout_s=0.5, request_timeout_s=0.5, retry_backoff_s=0.02, fetch_max_wait_s=0.15
)
"""More elections in less time; the proportions are much the same."""

CALM_LIMIT_S = 20.0
"""Within this time after the last fault a leader must have committed a new proposal on every voter."""


@dataclass(frozen=True)
class Outcome:
    seed: int
    violations: tuple[Violation, ...]
    effects: int
    elections: int
    acknowledged: int
    reads: int
    calm_s: float  # seconds that the quorum needed after the last fault
    installed: int = 0  # number of snapshots that followers fetched

    @property
    def invariants(self) -> set[str]:
        return {violation.invariant for violation in self.violations}


@dataclass(frozen=True)
class Weather:
    """How a run's storm blows; rates are events per second of the whole quorum."""

    voters: int
    timing: Timing
    storm_s: float
    slow_share: float  # fraction of messages that take up to `slow_s`
    slow_s: float
    loss: float
    crash_chance: float  # per effect
    cut_rate: float
    isolation_rate: float
    break_rate: float
    pause_rate: float
    shutdown_rate: float
    propose_rate: float
    read_rate: float
    batches_per_read: int
    lanes: bool

    @staticmethod
    def draw(random: Random) -> Weather:
        """One of three climates: anything may happen; the leader is cut off again and again; elections collide."""

        def sometimes(share: float, low: float, high: float) -> float:
            return random.uniform(low, high) if random.random() < share else 0.0

        weather = Weather(
            voters=random.choice([3, 3, 3, 5, 2, 4]),
            timing=random.choice([Timing(), HASTY, HASTY, HASTY]),
            storm_s=random.uniform(3.0, 9.0),
            slow_share=sometimes(0.5, 0.02, 0.4),
            slow_s=random.choice([0.1, 0.5, 2.0]),
            loss=sometimes(0.4, 0.01, 0.2),
            crash_chance=sometimes(0.6, 0.0005, 0.02),
            cut_rate=sometimes(0.7, 0.1, 1.0),
            isolation_rate=0.0,
            break_rate=sometimes(0.3, 0.2, 3.0),
            pause_rate=sometimes(0.3, 0.05, 0.3),
            shutdown_rate=sometimes(0.2, 0.05, 0.3),
            propose_rate=random.uniform(0.5, 6.0),
            read_rate=random.uniform(0.5, 6.0),
            batches_per_read=random.choice([1, 2, 5, 1000]),
            lanes=random.random() < 0.7,
        )
        match random.randrange(3):
            case 0:
                return weather
            case 1:
                return replace(
                    weather,
                    voters=random.choice([3, 5]),
                    timing=HASTY,
                    loss=0.0,
                    crash_chance=0.0,
                    cut_rate=0.0,
                    isolation_rate=random.uniform(0.3, 0.8),
                    propose_rate=10.0,
                    read_rate=20.0,
                )
            case _:
                return replace(
                    weather,
                    voters=random.choice([3, 4, 5]),
                    timing=HASTY,
                    storm_s=random.uniform(2.0, 5.0),
                    slow_share=random.uniform(0.3, 1.0),
                    slow_s=random.uniform(0.05, 0.4),
                    shutdown_rate=random.uniform(0.5, 2.0),
                    propose_rate=1.0,
                    read_rate=1.0,
                )


def shuffle(
    seed: int,
    bugs: Iterable[str] = (),
    *,
    to_the_end: bool = False,
    story: list[str] | None = None,
    make_world: Callable[..., World] = World,
    snapshots: bool = False,
) -> Outcome:
    """One run.  It ends with the first violation, unless to_the_end: then all that follow from it are collected.

    snapshots: voters take snapshots all the time, and mostly cut their logs behind them.

    The same seed gives the same weather, with bugs and without.
    """
    random = Random(f"weather {seed}")
    weather = Weather.draw(random)
    world = make_world(
        weather.voters,
        seed=seed,
        bugs=bugs,
        timing=weather.timing,
        lanes=weather.lanes,
        batches_per_read=weather.batches_per_read,
    )
    world.story = story
    storm = Storm(world, weather, random)
    if snapshots:
        storm.take_snapshots(Random(f"snapshots {seed}"))

    def sound() -> bool:
        return to_the_end or not world.watch.violations

    end = weather.storm_s
    while sound() and world.next_event_at() < end:
        world.step()
    storm.end()
    calm_s = 0.0
    if sound():
        calm_s = _calm_down(world, sound)
    return Outcome(
        seed,
        tuple(world.watch.violations),
        world.effects,
        len(world.watch.leaders),
        sum(proposal.outcome == "acknowledged" for proposal in world.proposals.values()),
        sum(read.outcome == "answered" for read in world.reads.values()),
        calm_s,
        world.watch.snapshots_installed,
    )


class Storm:
    """Draws faults and clients' calls until it ends."""

    def __init__(self, world: World, weather: Weather, random: Random) -> None:
        self._world, self._weather, self._random = world, weather, random
        self._blowing = True
        self._words = 0
        world.delay_s = self._delay_s
        world.is_lost = lambda: weather.loss > 0 and random.random() < weather.loss
        world.crashes = lambda: weather.crash_chance > 0 and random.random() < weather.crash_chance
        world.on_crash = self._restart_later
        for rate, action in (
            (weather.cut_rate, self._cut),
            (weather.isolation_rate, self._isolate),
            (weather.break_rate, self._break),
            (weather.pause_rate, self._pause),
            (weather.shutdown_rate, self._shut_down),
            (weather.propose_rate, self._propose),
            (weather.read_rate, self._read),
        ):
            if rate > 0:
                self._repeat(rate, action)

    def end(self) -> None:
        """Everything heals, everybody runs."""
        world = self._world
        self._blowing = False
        world.heal()
        world.delay_s = lambda: 0.001 + 0.004 * self._random.random()
        world.is_lost = world.crashes = lambda: False
        for id in world.nodes:
            world.resume(id)
            world.restart(id)

    def take_snapshots(self, random: Random) -> None:
        """By a stream of random numbers of its own: the weather stays what it is without snapshots."""

        def take() -> None:
            self._world.take_snapshot(random.choice(list(self._world.nodes)), keep_log=random.random() < 0.3)
            self._world.after(random.expovariate(rate), take)

        rate = random.choice([1.0, 3.0, 10.0])
        self._world.after(0.5, take)

    def _repeat(self, rate: float, action: Callable[[], None]) -> None:
        def happen() -> None:
            if self._blowing:
                action()
                self._repeat(rate, action)

        self._world.after(self._random.expovariate(rate), happen)

    def _delay_s(self) -> float:
        if self._random.random() < self._weather.slow_share:
            return self._random.uniform(0.0, self._weather.slow_s)
        return 0.001 + 0.004 * self._random.random()

    def _cut(self) -> None:
        """Halves, one alone (often the leader), two groups and a loner, one direction of one link, or all healed."""
        world, random = self._world, self._random
        ids = list(world.nodes)
        random.shuffle(ids)
        leader = world.leader()
        if leader is not None and random.random() < 0.5:
            ids.remove(leader)
            ids.insert(random.choice([0, len(ids)]), leader)
        match random.randrange(6):
            case 0 | 1:
                world.heal()
            case 2:
                half = random.randint(1, len(ids) - 1)
                world.cut(ids[:half], ids[half:])
            case 3:
                world.cut(ids[1:])
            case 4:
                world.cut(ids[: len(ids) // 2], ids[len(ids) // 2 : -1])
            case 5:
                world.blocked.add((ids[0], ids[1]))

    def _isolate(self) -> None:
        """Cut the leader off, or make the way to it so long that it hears of the past only; heal if that is so."""
        world = self._world
        leader = world.leader()
        if world.blocked or world.lag_s or leader is None:
            world.heal()
        elif self._random.random() < 0.5:
            world.cut([id for id in world.nodes if id != leader])
        else:
            world.slow_down(leader, self._random.uniform(1.0, 1.5) * self._weather.timing.fetch_timeout_s)

    def _break(self) -> None:
        connections = self._world.connections()
        if connections:
            self._world.break_connection(self._random.choice(connections))

    def _pause(self) -> None:
        id = self._random.choice(list(self._world.nodes))
        self._world.pause(id)
        self._world.after(self._random.uniform(0.1, 4.0), lambda: self._world.resume(id))

    def _shut_down(self) -> None:
        """Orderly: the leader resigns to the others, then the process ends."""
        leaders = self._world.leaders()
        id = leaders[0] if leaders else self._random.choice(list(self._world.nodes))
        if self._world.nodes[id].core is not None:
            self._world.shut_down(id)
            self._world.after(self._random.uniform(0.05, 0.5), lambda: self._world.crash(id))

    def _restart_later(self, id: int) -> None:
        self._world.after(self._random.uniform(0.0, 3.0), lambda: self._world.restart(id))

    def _asked_voter(self) -> int | None:
        """Mostly a voter that believes it leads, which may be a deposed one."""
        running = [node.id for node in self._world.running()]
        leaders = self._world.leaders()
        pool = leaders if leaders and self._random.random() < 0.9 else running
        return self._random.choice(pool) if pool else None

    def _propose(self) -> None:
        id = self._asked_voter()
        if id is not None:
            first = self._words + 1
            self._words += self._random.choice([1, 1, 1, 4])
            self._world.propose(id, *(f"w{word}" for word in range(first, self._words + 1)))

    def _read(self) -> None:
        id = self._asked_voter()
        if id is not None:
            self._world.read(id)


def _calm_down(world: World, sound: Callable[[], bool]) -> float:
    """Seconds until a new proposal is acknowledged and everybody knows it is committed."""
    begin = world.now
    limit = begin + CALM_LIMIT_S
    while sound() and world.now < limit:
        world.wait_for(lambda: world.leader() is not None or not sound(), limit - world.now)
        leader = world.leader()
        if leader is None:
            break
        proposal, read = world.propose(leader, "calm"), world.read(leader)
        world.wait_for(lambda: proposal.outcome not in ("pending", "accepted") or not sound(), limit - world.now)  # noqa: B023
        if proposal.outcome != "acknowledged":
            continue
        if not world.wait_for(lambda: read.outcome != "pending", limit - world.now):  # noqa: B023
            break
        if world.wait_for(lambda: _agree(world, proposal.end_offset), limit - world.now):  # noqa: B023
            return world.now - begin
    if sound():
        world.watch.violated(LIVENESS, f"no agreement within {CALM_LIMIT_S:.0f} s after the last fault")
    return world.now - begin


def _agree(world: World, end_offset: int) -> bool:
    marks = [node.core.high_watermark or 0 if node.core is not None else 0 for node in world.nodes.values()]
    return min(marks) >= end_offset and len({node.disk.prefix(end_offset) for node in world.nodes.values()}) == 1
