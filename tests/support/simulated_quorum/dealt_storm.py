"""Plays dealt cards on the small world: a run of a minute takes a second or two, and its watch sees everything.

The kinds of fault resolve their cards as in a real run, with the leader that the voters report.  Carried out are cuts,
pauses, ends of processes, losses of power, delays of links and slow disks.  Other impairments, other failures of disks
and clocks do not exist in this world: such cards pass without effect.

Clients are ten processes on c1 and c2.  Half of them follow the newest leader that their client node reaches, and half
stay with the oldest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random

from dealt import deal

from checkers.record.faults import Card, Fault
from nemesis.catalog import kind_named
from nemesis.cluster import LINKS, Link
from nemesis.coverage import LOOK_EVERY_S, MOMENT_WAIT_S, has_come, leader_now, newest_epoch
from nemesis.kind import LeaderNow, Scene, isolated
from nemesis.kinds.packets import NAME as PACKETS_NAME
from nemesis.kinds.packets import impairments
from simulated_quorum.world import World
from system_under_test.subject import NodeStatus

CLIENTS = ("c1", "c2")
PROCESSES = 10
LEADER_WAIT_S = 5.0
LATE_HOLD_S = 1.5
SLOW_FSYNC_S = 0.15
ENDED = ("kill", "stop", "power")


class DealtStorm:
    """One run.  `play()` once; then the world's watch holds what was violated, and `began` what was carried out."""

    def __init__(
        self,
        cards: Sequence[Card],
        seed: int,
        *,
        bugs: Sequence[str] = (),
        servers: int = 5,
        seconds: float = 60.0,
        rate_hz: float = 60.0,
    ) -> None:
        self.world = World(servers, seed=seed, bugs=bugs)
        self.cards, self.seconds, self.rate_hz = cards, seconds, rate_hz
        self.began: list[tuple[Card, Fault, LeaderNow | None]] = []
        self.servers = tuple(f"n{id}" for id in self.world.nodes)
        self._random = Random(f"clients of {seed}")
        self._jitter = Random(f"links of {seed}")
        self._seed = seed
        self._active: dict[int, Fault] = {}
        self._epochs: dict[int, int] = {}

    def play(self) -> DealtStorm:
        world = self.world
        world.elect()
        self._start = world.now
        for card in self.cards:
            self._run(card.at_s, self._card(card))
        self._run(0.0, self._clients())
        world.elapse(self.seconds)
        world.heal()
        for id in world.nodes:
            world.resume(id)
            world.restart(id)
        world.elapse(10.0)
        return self

    def statuses(self) -> list[NodeStatus]:
        return [
            NodeStatus(
                f"n{node.id}",
                node.core.epoch,
                str(node.core.role),
                None if node.core.leader_id is None else f"n{node.core.leader_id}",
                node.core.high_watermark,
                node.disk.end_offset,
            )
            for node in self.world.running()
            if node.core is not None
        ]

    def _run(self, delay_s: float, steps: Iterator[float]) -> None:
        """Steps are seconds to wait, as a generator yields them."""

        def go_on() -> None:
            with suppress(StopIteration):
                self.world.after(next(steps), go_on)

        self.world.after(delay_s, go_on)

    def _card(self, card: Card) -> Iterator[float]:
        kind, due = kind_named(card.kind), self._start + card.heal_s
        if card.after:
            since = self._epochs.get(card.after, newest_epoch(self.statuses()))
            until = self.world.now + MOMENT_WAIT_S
            while not has_come(card.moment, since, self.statuses(), self._running()):
                yield LOOK_EVERY_S
                if self.world.now > until:
                    return
        leader: LeaderNow | None = None
        if kind.targets[card.name].against_leader and not card.like:
            until = self.world.now + LEADER_WAIT_S
            while (leader := leader_now(self.statuses(), self._running())) is None:
                yield 0.2
                if self.world.now > until:
                    return
        avoid = {node for other in self._active.values() for node in other.nodes or isolated(other)}
        rng = Random(f"{self._seed}/{card.number}")
        scene = Scene(self.servers, CLIENTS, tuple(self._running()), leader, rng, frozenset(avoid))
        earlier = next((fault for other, fault, _ in self.began if other.number == card.like), None)
        fault = earlier if card.like else kind.resolve(card.name, scene)
        if fault is None or self.world.now >= due:
            return
        self.began.append((card, fault, leader))
        self._active[card.number] = fault
        self._epochs[card.number] = leader.epoch if leader else newest_epoch(self.statuses())
        self._inject(fault)
        yield max(due, self.world.now + min(card.heal_s - card.at_s, LATE_HOLD_S)) - self.world.now
        del self._active[card.number]
        self._heal(fault)

    def _inject(self, fault: Fault) -> None:
        self._lay()
        for id in self._ids(fault):
            if fault.kind in ENDED and self.world.nodes[id].core is not None:
                self.world.crash(id, power_loss=fault.kind == "power")
            elif fault.kind == "pause":
                self.world.pause(id)

    def _heal(self, fault: Fault) -> None:
        self._lay()
        for id in self._ids(fault):
            if fault.kind in ENDED:
                self.world.restart(id)
            elif fault.kind == "pause":
                self.world.resume(id)

    def _lay(self) -> None:
        """Cut and delay what the faults in force say together."""
        numbers = dict(zip(self.servers, self.world.nodes, strict=True))
        self.world.blocked = {(numbers[a], numbers[b]) for a, b in self._cut() if {a, b} <= numbers.keys()}
        self.world.lag_s = {}
        for fault in self._active.values():
            for (a, b), impairment in impairments(fault.settings).items() if fault.kind == PACKETS_NAME else ():
                if {a, b} <= numbers.keys():
                    jitter_s = self._jitter.random() * impairment.get("jitter_s", 0.0)
                    self.world.lag_s[numbers[a], numbers[b]] = impairment.get("delay_s", 0.0) + jitter_s
            if fault.settings.get("behaviour") == "slow":
                self._slow_disks(self._ids(fault))

    def _slow_disks(self, ids: Sequence[int]) -> None:
        """Disks of this world take no time.  But a voter answers when it has fsynced, so its messages are late."""
        for id in ids:
            for other in self.world.nodes:
                self.world.lag_s[id, other] = SLOW_FSYNC_S

    def _cut(self) -> set[Link]:
        return {link for fault in self._active.values() if LINKS in kind_named(fault.kind).needs for link in fault.cut}

    def _ids(self, fault: Fault) -> list[int]:
        return [int(name[1:]) for name in fault.nodes if name in self.servers]

    def _running(self) -> list[str]:
        return [f"n{node.id}" for node in self.world.running() if node.frozen is None]

    def _clients(self) -> Iterator[float]:
        """One operation after another, by processes drawn at random, at whom they take for the leader."""
        word = 0
        while True:
            yield self._random.expovariate(self.rate_hz)
            process = self._random.randrange(PROCESSES)
            client, cut = CLIENTS[process % len(CLIENTS)], self._cut()
            reached = [id for id in self.world.leaders() if (client, f"n{id}") not in cut]
            if reached:
                word += 1
                leader = reached[0 if process % 4 < 2 else -1]
                if process < 6 and self._random.random() < 0.5:
                    self.world.propose(leader, f"w{word}")
                else:
                    self.world.read(leader)


def storms(nemesis: str, seeds: Sequence[int], bugs: Sequence[str] = (), seconds: float = 60.0) -> Iterator[DealtStorm]:
    for seed in seeds:
        cards = deal(nemesis, ("n1", "n2", "n3", "n4", "n5"), seconds, Random(f"deck of {seed}"))
        yield DealtStorm(cards, seed, bugs=bugs, seconds=seconds).play()
