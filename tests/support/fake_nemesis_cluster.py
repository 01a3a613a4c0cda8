"""A cluster in memory whose links, beacons and processes can lie, and an event loop on which a minute takes no time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from random import Random
from typing import Any, cast

from virtual_time import run as in_no_time

from checkers.record.faults import Card, FaultRecord
from nemesis.cluster import Beacons, CannotInject, Cluster, Link
from nemesis.measure import Hooks
from nemesis.play import play
from nemesis.resolve import MainPhase
from system_under_test.subject import NodeGone, NodeStatus


class FakeCluster:
    """Does what it is ordered, and reports what is true, except where a lie was switched on.  lies: by their names."""

    def __init__(self, servers: int = 5, clients: int = 2, **lies: Any) -> None:
        self.servers = tuple(f"n{i}" for i in range(1, servers + 1))
        self.clients = tuple(f"c{i}" for i in range(1, clients + 1))
        self.links = list(permutations((*self.servers, *self.clients), 2))
        self.states = dict.fromkeys((*self.servers, *self.clients), "running")
        self.leader: str | None = "n1"
        self.epoch = 3
        self.orders: list[str] = []
        self._silent: frozenset[Link] = frozenset()
        self._interval_ms = 20.0
        self._at_s = 0.0
        self._owed = 0.0
        self._sent = 0
        # numbers (from, to], and the links silent during them
        self._stretches: list[tuple[int, int, frozenset[Link]]] = []
        # The lies.
        self.leaks: set[Link] = set()  # never really cut
        self.stuck: set[Link] = set()  # links that never recover once cut
        self.unreported: set[Link] = set()
        self.share_sent = 1.0  # fraction of due beacons that are sent
        self.starved_until_s = 0.0  # until then hardly any beacon is sent
        self.immortal: set[str] = set()
        self.idle: set[str] = set()  # they write nothing
        self.gone: set[str] = set()  # nodes whose agents do not answer
        self.cannot: dict[str, str] = {}  # order -> reason why this backend cannot carry it out
        self.lines: dict[str, list[tuple[float, str]]] = {}
        self.missing: dict[str, str] = {}  # capability -> reason why this backend lacks it
        for name, value in lies.items():
            setattr(self, name, value)

    def node(self, name: str) -> Any:
        raise NotImplementedError("the nemesis never asks for a node")

    def lacks(self, capability: str) -> str:
        return self.missing.get(capability, "")

    @property
    def silent(self) -> frozenset[Link]:
        return self._silent

    @silent.setter
    def silent(self, links: Collection[Link]) -> None:
        with suppress(RuntimeError):  # set before the loop runs: no beacon was due yet
            self._beat_on()
        self._silent = frozenset(links)

    async def mend(self) -> None:
        self._ordered("mend", "")

    async def cut(self, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        self._ordered("cut", str(len(links)) + (f" reject {len(reject)}" if reject else ""))
        for a, b in links:
            self._answers_or_raises(a)
            self._answers_or_raises(b)
        self.silent = frozenset(links) - self.leaks | (self.silent & self.stuck)

    async def beat(self, interval_ms: float) -> None:
        self._beat_on()
        self._interval_ms = interval_ms

    async def mark(self) -> Mapping[Link, int]:
        self._beat_on()
        return {link: self._sent for link in self.links if link[0] not in self.gone}

    async def arrived(self, first: Mapping[Link, int], last: Mapping[Link, int]) -> Mapping[Link, Beacons]:
        self._beat_on()
        return {
            link: Beacons(last[link] - first[link], self._received(link, first[link], last[link]))
            for link in first.keys() & last.keys()
            if link not in self.unreported and link[1] not in self.gone
        }

    def _received(self, link: Link, first: int, last: int) -> int:
        received = 0
        for begin, to, silent in reversed(self._stretches):
            if to <= first:
                break
            received += 0 if link in silent else max(0, min(to, last) - max(begin, first))
        return received

    def _beat_on(self) -> None:
        """Send what was due since the last time."""
        now_s = asyncio.get_running_loop().time()
        share = 0.02 if now_s <= self.starved_until_s else self.share_sent
        self._owed += (now_s - self._at_s) * 1e3 / self._interval_ms * share
        self._at_s = now_s
        whole = int(self._owed + 1e-6)
        self._owed -= whole
        if whole:
            self._stretches.append((self._sent, self._sent + whole, self._silent))
        self._sent += whole

    async def state(self, server: str) -> Any:
        self._answers_or_raises(server)
        return self.states[server]

    async def pause(self, server: str) -> None:
        await self._set("pause", server, "stopped")

    async def resume(self, server: str) -> None:
        if self.states[server] == "stopped":
            await self._set("resume", server, "running")

    async def kill(self, server: str) -> None:
        await self._set("kill", server, "dead")

    async def kill_at_write(self, server: str, within_s: float) -> bool:
        if server in self.idle:
            await asyncio.sleep(within_s)
            return False
        await self._set("kill at write", server, "dead")
        return True

    async def await_line(self, server: str, pattern: str, nth: int, within_s: float, freeze: bool = False) -> str:
        """Lines come from `lines`: server -> (second of the virtual clock, line)."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        for at_s, line in self.lines.get(server, ()):
            if loop.time() < at_s < until_s and re.search(pattern, line):
                nth -= 1
                if nth == 0:
                    await asyncio.sleep(at_s - loop.time())
                    return line
        await asyncio.sleep(max(0.0, until_s - loop.time()))
        return ""

    async def thaw(self, server: str) -> None:
        self._ordered("thaw", server)

    async def stop(self, server: str) -> None:
        await self._set("stop", server, "dead")

    async def restart(self, server: str) -> None:
        self._answers_or_raises(server)
        assert self.states[server] == "dead", f"{server} was started twice"
        await self._set("restart", server, "running")

    async def statuses(self) -> list[NodeStatus]:
        return [
            NodeStatus(s, self.epoch, "leader" if s == self.leader else "follower", self.leader)
            for s in self.servers
            if self.states[s] == "running" and s not in self.gone
        ]

    @property
    def whole(self) -> bool:
        return not self.silent and set(self.states.values()) == {"running"}

    async def _set(self, order: str, server: str, state: str) -> None:
        self._ordered(order, server)
        self._answers_or_raises(server)
        await asyncio.sleep(0.001)
        if server not in self.immortal:
            self.states[server] = state

    def _ordered(self, order: str, what: str) -> None:
        if order in self.cannot:
            raise CannotInject(self.cannot[order])
        self.orders.append(f"{order} {what}")

    def _answers_or_raises(self, server: str) -> None:
        if server in self.gone:
            raise NodeGone(f"the agent of {server} does not answer")


class Witness:
    """Hears the hooks.  `before_heal` looks at the cluster, to tell whether the fault was still in force."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.delivered: list[FaultRecord] = []
        self.in_force_before_heal: list[bool] = []

    async def before_heal(self, record: FaultRecord) -> None:
        self.in_force_before_heal.append(not self.cluster.whole)

    @property
    def hooks(self) -> Hooks:
        return Hooks(record=self.delivered.append, before_heal=self.before_heal)


def card(
    kind: str = "partition",
    name: str = "isolate-leader",
    number: int = 1,
    at_s: float = 2.0,
    hold_s: float = 10.0,
    like: int = 0,
) -> Card:
    return Card(number, kind, name, at_s, at_s + hold_s, like)


async def played(
    cluster: FakeCluster,
    *cards: Card,
    seed: int = 7,
    hooks: Hooks | None = None,
    ended: asyncio.Event | None = None,
    voters: tuple[str, ...] = (),
    **more: Any,
) -> tuple[list[FaultRecord], Witness]:
    witness = Witness(cluster)
    injected = cast(Cluster, cluster)  # it lacks the verbs of optional capabilities; a test that needs one adds it
    main = MainPhase(injected, cluster.statuses, now_ns, now_ns(), ended or asyncio.Event(), voters)
    records = await play(cards, main, Random(seed), hooks or witness.hooks, **more)
    return records, witness


def played_while(
    cluster: FakeCluster, *cards: Card, acts: Mapping[float, Callable[[], object]], **more: Any
) -> list[FaultRecord]:
    """The records of the cards, played in no time.  acts: second of the run -> what happens then."""

    async def run() -> list[FaultRecord]:
        for at_s, act in acts.items():
            asyncio.get_running_loop().call_later(at_s, act)
        return (await played(cluster, *cards, **more))[0]

    return cast("list[FaultRecord]", in_no_time(run()))


def now_ns() -> int:
    return int(asyncio.get_running_loop().time() * 1e9)


def timeless(record: FaultRecord) -> FaultRecord:
    """The record without the times of any clock."""
    return replace(record, injected_ns=0, heal_ordered_ns=0, healed_ns=0, apply_ms=0.0)
