"""A sabotaged fault is never called installed, and an honest one always is.

Injections by the dozen into a small cluster in namespaces, every other one sabotaged.  The servers are a loop that
writes and fsyncs.  Each injection is one card, played by `nemesis.play.play` as in a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from test_namespaces_faults import why_not

from checkers.record.faults import Achieved, Card, FaultRecord
from harness.backends.backend import ClusterSpec
from harness.backends.namespaces_backend import NamespacesBackend
from nemesis.cluster import CLIENT_PROCESSES, CLOCK, DAMAGES, DISK, PACKETS, Link
from nemesis.kinds import KINDS
from nemesis.measure import Hooks
from nemesis.play import play
from nemesis.resolve import MainPhase, PlayOptions
from system_under_test.subject import Node, NodeStatus

pytestmark = [pytest.mark.namespaces, pytest.mark.skipif(why_not() != "", reason=why_not())]

NIGHTLY = int(os.environ.get("INJECTIONS", "250"))
"""For each of four clusters."""


SERVERS, CLIENTS = ("n1", "n2", "n3"), ("c1",)
HOLDS_S = (2.0, 8.0, 32.0)
"""A busy machine may measure too little of an honest fault in a short time.  Then it is injected again for longer."""
SEEN_S_MIN = 1.0
"""What is taken back later than so long before the heal counts as honest: no measurement may follow it."""
_LEFT_OUT = ("membership",)
"""It needs a system that has members."""
_SERVER = """
import os, sys, time
place = os.path.join(sys.argv[1], "log")
while True:
    try:
        with open(place, "ab") as log:
            log.write(b"a row of the log\\n")
            log.flush()
            os.fsync(log.fileno())
    except OSError:
        pass
    time.sleep(0.05)
"""


@dataclass(slots=True)
class Tally:
    """honest, sabotaged: outcome -> count.  wrong: sabotaged ones that were called installed.  blamed: honest ones that
    were not, in words."""

    honest: Counter[str] = field(default_factory=Counter)
    sabotaged: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    blamed: list[str] = field(default_factory=list)

    def __iadd__(self, other: Tally) -> Tally:
        self.honest += other.honest
        self.sabotaged += other.sabotaged
        self.wrong += other.wrong
        self.blamed += other.blamed
        return self

    def add(self, how: str, record: FaultRecord) -> None:
        words = f"{record.card.kind} {record.card.name}: {record.achieved}: {record.reason}"
        (self.sabotaged if how else self.honest)[str(record.achieved)] += 1
        if how and record.achieved is Achieved.INSTALLED:
            self.wrong.append(f"{how}: {words}")
        elif not how and record.achieved is not Achieved.INSTALLED:
            self.blamed.append(words)


async def inject_many(times: int, seed: int) -> Tally:
    """Cards of every kind and target in turn, shuffled by the seed."""
    tally = Tally()
    rng = Random(seed)
    async with _cluster(seed) as cluster:
        for number, (kind, target) in zip(range(1, times + 1), _targets(rng), strict=False):
            how = rng.choice((NEVER, PARTLY, TAKEN_BACK, INSTEAD)) if number % 2 else ""
            cluster.arm(how, rng.getrandbits(32))
            chance = rng.getrandbits(32)
            for hold_s in HOLDS_S:
                record = await _inject(cluster, Card(1, kind, target, 0.0, hold_s), chance)
                sabotaged = cluster.done
                await _mend(cluster)
                if how or record.achieved is not Achieved.INDETERMINATE:
                    break
            tally.add(how if sabotaged else "", record)
            if number % 25 == 0:
                print(number, tally, flush=True)
    return tally


def _targets(rng: Random) -> Iterator[tuple[str, str]]:
    every = [
        (kind.name, name)
        for kind in KINDS.values()
        if kind.name not in _LEFT_OUT
        for name, target in kind.targets.items()
        if target.servers_min <= len(SERVERS)
    ]
    while True:
        rng.shuffle(every)
        yield from every


async def _inject(cluster: Sabotaged, card: Card, seed: int) -> FaultRecord:
    """Play one card.  Just before its heal the sabotage ends, so that the heal is carried out."""

    async def statuses() -> list[NodeStatus]:
        return [NodeStatus(name, 1, "leader" if name == "n1" else "follower", "n1") for name in SERVERS]

    async def nothing(record: FaultRecord) -> None:
        return None

    async def end_sabotage() -> None:
        await asyncio.sleep(card.heal_s - SEEN_S_MIN)
        done = cluster.done
        await cluster.disarm()
        cluster.done = done

    began_ns = time.monotonic_ns()
    hooks = Hooks(record=lambda record: None, before_heal=nothing)
    ending = asyncio.ensure_future(end_sabotage())
    options = PlayOptions(over_budget=True)
    clock = lambda: time.monotonic_ns() - began_ns  # noqa: E731
    (record,) = await play([card], MainPhase(cluster, statuses, clock, 0), Random(seed), hooks, options)
    await ending
    return record


async def _mend(cluster: Sabotaged) -> None:
    await cluster.disarm()
    await cluster.cut(())
    await cluster.mend()
    for server in SERVERS:
        state = await cluster.state(server)
        if state == "dead":
            await cluster.restart(server)
        elif state == "stopped":
            await cluster.resume(server)


@asynccontextmanager
async def _cluster(seed: int) -> AsyncIterator[Sabotaged]:
    wanted = frozenset({DISK, CLOCK, PACKETS, CLIENT_PROCESSES})
    damages = dict.fromkeys(DAMAGES.values(), "log")
    run_id = f"injections{os.getpid()}-{seed}"
    made = NamespacesBackend(ClusterSpec(run_id, SERVERS, CLIENTS, seed, wanted, notices_damage=damages))
    try:
        await made.create(lambda words: None)

        async def start(node: Node) -> None:
            await node.start([*node.python, "-S", "-E", "-c", _SERVER, node.data_dir])

        made.restart_with(start)
        for server in SERVERS:
            await start(made.node(server))
        yield Sabotaged(made)
    finally:
        await made.destroy()


NEVER, PARTLY, TAKEN_BACK, INSTEAD = "never", "partly", "taken back", "another fault instead"
LATER_S = (0.0, 0.3)
"""How long after the order it is taken back."""


class Sabotaged:
    """Everything but the orders of faults is the real cluster's own.

    how: what becomes of the next order, "" for an honest cluster.  done: whether the sabotage came to pass; an order
    that has no parts, or for which there is nothing else to do instead, is dropped."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._rng = Random(0)
        self._later: list[asyncio.Task[None]] = []
        self.how = ""
        self.done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def arm(self, how: str, seed: int) -> None:
        self.how, self.done, self._rng = how, False, Random(seed)

    async def disarm(self) -> None:
        """From now on every order is carried out; what was to be taken back has been."""
        self.how = ""
        later, self._later = self._later, []
        await asyncio.gather(*later)

    # ---- orders ------------------------------------------------------------------------------------------------

    async def cut(self, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        half = set(sorted(links)[: len(links) // 2])
        await self._links(
            bool(links),
            whole=lambda: self._cluster.cut(links, reject),
            half=lambda: self._cluster.cut(half, half & set(reject)),
            back=lambda: self._cluster.cut(()),
        )

    async def impair(self, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        await self._links(
            bool(links),
            whole=lambda: self._cluster.impair(links, seed),
            half=lambda: self._cluster.impair({}, seed),
            back=lambda: self._cluster.impair({}, seed),
        )

    async def pause(self, server: str) -> None:
        await self._node(lambda: self._cluster.pause(server), back=lambda: self._cluster.resume(server))

    async def kill(self, server: str) -> None:
        await self._node(
            lambda: self._cluster.kill(server),
            back=lambda: self._cluster.restart(server),
            instead=lambda: self._cluster.pause(server),
        )

    async def stop(self, server: str) -> None:
        await self._node(
            lambda: self._cluster.stop(server),
            back=lambda: self._cluster.restart(server),
            instead=lambda: self._cluster.pause(server),
        )

    async def lose_power(self, server: str, kept: str, seed: int) -> None:
        await self._node(
            lambda: self._cluster.lose_power(server, kept, seed),
            back=lambda: self._cluster.restart(server),
            instead=lambda: self._cluster.kill(server),
        )

    async def arm_disk(self, server: str, operation: str, nth: int) -> None:
        """An armed disk holds an operation until the power loss.  A sabotage may drop both: the fault is skipped."""
        if self.how in ("", TAKEN_BACK):
            await self._cluster.arm_disk(server, operation, nth)
        else:
            self.done = True

    async def damage_disk(self, server: str, how: str, seed: int) -> None:
        await self._node(
            lambda: self._cluster.damage_disk(server, how, seed), back=lambda: self._cluster.restart(server)
        )

    async def behave_disk(self, server: str, rules: Sequence[Mapping[str, Any]], seed: int) -> None:
        if not rules:
            await self._cluster.behave_disk(server, rules, seed)
            return
        slow = [{"operations": ["fsync"], "delay_s": 0.002}]
        await self._node(
            lambda: self._cluster.behave_disk(server, rules, seed),
            back=lambda: self._cluster.behave_disk(server, [], 0),
            instead=lambda: self._cluster.behave_disk(server, slow, 0),
        )

    async def set_clock(self, server: str, offset_s: float, rate: float) -> None:
        if not offset_s:
            await self._cluster.set_clock(server, offset_s, rate)
            return
        await self._node(
            lambda: self._cluster.set_clock(server, offset_s, rate),
            back=lambda: self._cluster.set_clock(server, 0.0, 1.0),
            instead=lambda: self._cluster.set_clock(server, -offset_s, rate),
        )

    # ---- results of a sabotaged order ------------------------------------------------------------------------------

    async def _links(self, breaks: bool, whole: Order, half: Order, back: Order) -> None:
        if not breaks:
            await whole()
        elif self.how == PARTLY:
            self.done = True
            await half()
        else:
            await self._node(whole, back)

    async def _node(self, order: Order, back: Order, instead: Order | None = None) -> None:
        if not self.how:
            await order()
            return
        if self.how == TAKEN_BACK:
            await order()
            self._later.append(asyncio.ensure_future(self._take_back(back)))
            return
        self.done = True
        if self.how == INSTEAD and instead is not None:
            await instead()

    async def _take_back(self, back: Order) -> None:
        await asyncio.sleep(self._rng.uniform(*LATER_S))
        if self.how:  # the heal has not begun
            with contextlib.suppress(OSError):  # an order that was refused or already undone cannot be undone
                await back()
                self.done = True


Order = Callable[[], Coroutine[Any, Any, Any]]


async def test_a_few_injections() -> None:
    """Into three clusters at once: most of the time is the length of faults."""
    await _judge(8, 1, 2, 3)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [11, 12, 13, 14])
async def test_a_thousand_injections(seed: int) -> None:
    await _judge(NIGHTLY, seed)


async def _judge(times: int, *seeds: int) -> None:
    """times: of each cluster."""
    tally = Tally()
    for each in await asyncio.gather(*(inject_many(times, seed) for seed in seeds)):
        tally += each
    print(f"sabotaged: {dict(tally.sabotaged)}; honest: {dict(tally.honest)}")
    print("\n".join(tally.blamed))
    assert tally.wrong == []
    least = times * len(seeds) / 4
    assert sum(tally.sabotaged.values()) >= least and sum(tally.honest.values()) >= least
    assert tally.honest["installed"] >= 0.9 * sum(tally.honest.values()), tally.blamed
