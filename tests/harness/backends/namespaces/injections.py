"""Injections by the dozen into a small cluster in namespaces, every other one sabotaged; what each record says.

The servers are a loop that writes and fsyncs.  Each injection is one card, played by `nemesis.play.play` as in a run.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from sabotage import INSTEAD, NEVER, PARTLY, TAKEN_BACK, Sabotaged

from checkers.record.faults import Achieved, Card, FaultRecord
from harness.backends.backend import ClusterSpec
from harness.backends.namespaces_backend import NamespacesBackend
from nemesis.cluster import CLIENT_PROCESSES, CLOCK, DAMAGES, DISK, PACKETS
from nemesis.kinds import KINDS
from nemesis.measure import Hooks
from nemesis.play import play
from nemesis.resolve import MainPhase, PlayOptions
from system_under_test.subject import Node, NodeStatus

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
