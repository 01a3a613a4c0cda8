"""Plays a scenario: boots the voters, runs clients, plays the cards, heals, and demands progress.

    set-up   brokers register and objects are created, within SET_UP_S
    main     clients send requests, cards are played
    calm     everything is healed and every server runs.  Within CALM_S each object accepts a write and a read, brokers
             serve, partitions have leaders and all their replicas in sync, and all logs agree.  Servers whose disk was
             damaged may be missing while a majority is left
    after    the demands of `judging.AfterStorm` on brokers and voters

The scenario decides everything: equal scenarios give equal rows, operations and verdicts, byte for byte.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

from checkers.base.history import Type
from harness.campaign.swarm.acts import DO, OF_THE_LIVING, ArmedCard, mend
from harness.campaign.swarm.clients import Asked, Change, History, Operation, Outside, StormClient
from harness.campaign.swarm.judging import CALM_S, LOOK_S, AfterStorm, judge
from harness.campaign.swarm.node_voter import NodeVoter
from harness.campaign.swarm.operators import Administrators, Operators
from harness.campaign.swarm.scenario import CLIENTS, PROBES, Scenario, StormCard
from harness.campaign.swarm.watch import Watch
from harness.campaign.swarm.watch_brokers import BrokerWatch
from harness.campaign.swarm.watch_voters import VoterSets
from simulation.loop import OWNER, Gate, Killed, Process, SimulatedLoop
from simulation.machine import Machine, stderr_of_each_process
from simulation.network import SimulatedNetwork

SET_UP_S = 30.0


class Played:
    """Result of a scenario.

    digest: hash of every row and operation
    faults: (fault, role, phase) -> number of injections
    struck: kinds of fault before the first violation, in order
    calm_s: seconds until the healed system had recovered; -1 if it did not recover
    """

    def __init__(self, world: StormWorld, cpu_s: float) -> None:
        watch, asked = world.watch, world.history.asked
        self.scenario, self.found, self.digest = world.scenario, watch.found, world.digest.hexdigest()
        self.simulated_s, self.cpu_s, self.calm_s = world.loop.time(), cpu_s, world.calm_s
        self.operations, self.ok = len(asked), sum(each.type is Type.OK for each in asked)
        self.rows, self.epochs = watch.rows, max((voter.epoch for voter in world.voters), default=0)
        self.moments, self.transitions, self.faults = dict(world.moments), dict(watch.transitions), dict(world.struck)
        first_s = self.found[0].time_s if self.found else float("inf")
        self.struck = tuple(dict.fromkeys(kind for at_s, kind in world.kinds if at_s <= first_s))

    @property
    def symptom(self) -> str:
        """Return an approximation of the cause: the first violated rule and the role of the voter then."""
        if not self.found:
            return ""
        first = self.found[0]
        return f"{first.rule}; {first.role or 'clients'}"


def play(scenario: Scenario) -> Played:
    began_s = time.process_time()
    with _quiet():
        world = StormWorld(scenario)
        world.loop.run(world.main())
        for problem in world.problems:  # clients belong to the project, so their errors are not answers of the system
            raise problem.get("exception") or RuntimeError(problem["message"])
        judge(scenario, world.history, world.voters, world.watch, world.archive)
    for answered in (*world.history.asked, *world.history.numbers):
        world.note(repr(answered))
    return Played(world, time.process_time() - began_s)


@contextmanager
def _quiet() -> Iterator[None]:
    """Send output and logs of nodes to their machines, or discard them.  Collect garbage only once, afterwards, because
    collections during a scenario would take a sixth of its time.
    """
    before, collects = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        with stderr_of_each_process():
            yield
    finally:
        logging.disable(before)
        if collects:
            gc.enable()


class StormWorld:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.loop = SimulatedLoop()
        random = Random(f"{scenario.seed}/network")
        self.network = SimulatedNetwork(self.loop, random, scenario.base_delay_s, scenario.spread_s)
        self.digest = hashlib.blake2b(digest_size=12)
        self.watch = Watch(self.loop.time, self._met, self.note, self._committed)
        self.archive: list[Change] = []
        may_vote = scenario.may_vote
        servers = [f"n{number}" for number in range(1, may_vote + scenario.observers + 1)]
        names = servers[:may_vote]
        self.servers: list[NodeVoter] = []
        """Possible voters, then observers.  An observer that is no broker is never cut off; only cards aimed at an
        event hit it.
        """
        for number, name in enumerate(servers, 1):
            machine = Machine(name, self.loop, self.network, scenario.seed)
            voter = NodeVoter(number, scenario, machine, self.network, self.watch)
            voter.on_first_fetch = lambda voter: self._met("first-fetch", voter)
            voter.on_part = lambda replica: self._met("part", self.servers[replica - 1])
            machine.on_operation = partial(self._operation, voter)
            self.servers.append(voter)
        self.voters: list[NodeVoter] = self.servers[:may_vote]
        self.watch.voters = self.voters
        self.history = History()
        self.problems: list[dict[str, Any]] = []
        self.hosts = [Process(name) for name in CLIENTS]
        for host in self.hosts:
            host.on_exception = self.problems.append
        outside = Outside(self.network, self.hosts, self.best)
        self.outside: Outside = outside
        # Probes with these process numbers stay with one server, and also write.
        stay = [number for number in range(scenario.processes, 100) if number % 4 > 1 and number % 5 < 3][:PROBES]
        self.clients, self.probes = (
            [StormClient(number, scenario, outside, self.history, names) for number in numbers]
            for numbers in (range(scenario.processes), stay)
        )
        self.operators: Operators | None = None
        if scenario.dynamic:
            sets = self.watch.sets = VoterSets(self.loop.time, self.watch.violated_by)
            sets.servers = self.servers
            self.operators = Operators(outside, self.voters, sets)
        if scenario.brokers:
            left_cleanly = lambda broker, epoch: epoch in self.servers[broker - 1].left_cleanly  # noqa: E731
            self.watch.brokers = BrokerWatch(self.watch.violated_by, self._met_at_broker, left_cleanly, names)
        self.administrators: Administrators = Administrators(outside, self.history, self.watch.brokers)
        self.moments: Counter[str] = Counter()
        self.struck: Counter[tuple[str, str, str]] = Counter()
        self.kinds: list[tuple[float, str]] = []
        self.calm_s = -1.0
        self.acts_until_s = 0.0
        """Second of the scenario until which cards have effects."""
        self._nobody = contextvars.Context()
        self.armed: list[ArmedCard] = []
        self.lost_power: dict[str, str] = {}
        self.damaged: set[str] = set()
        self._storm = False
        self._numbers = 0

    def note(self, line: str) -> None:
        self.digest.update(line.encode())

    # Phases

    async def main(self) -> None:
        try:
            for server in self.servers:
                server.start()
            if unsettled := await self.brokers_unsettled(SET_UP_S):
                self.watch.violated("no progress", f"{unsettled} {SET_UP_S:g} s after the first start")
                return
            if not await self._every_object(["create"], SET_UP_S):
                self.watch.violated("no progress", f"no object could be made within {SET_UP_S:g} s of the first start")
                return
            await self._main_phase()
            await self._calm()
            if self.calm_s >= 0:
                await AfterStorm(self).demand()
        finally:
            self._storm = False
            for server in self.servers:
                server.machine.kill()
            for host in self.hosts:
                self.loop.kill(host)

    async def _main_phase(self) -> None:
        began_s = self.loop.time()
        until_s = began_s + self.scenario.seconds
        self._storm = True
        for card in self.scenario.cards:
            arm = self._arm if card.moment else self._strike
            self._at(began_s + card.at_s, arm, card)
        for client in self.clients:
            client.run(until_s)
        await asyncio.sleep(until_s - self.loop.time())
        self._storm = False
        self.armed.clear()
        if self.operators is not None:
            self.operators.stop()
        while not all(client.done for client in self.clients):  # noqa: ASYNC110 - a look costs nothing here
            await asyncio.sleep(LOOK_S)

    async def _calm(self) -> None:
        self._heal()
        began_s = self.loop.time()
        change = {"register": "write", "repeated": "write", "list": "append"}[self.scenario.workload]
        moved = await self._every_object([change, "read"], CALM_S)
        while moved and not self._agree() and self.loop.time() < began_s + CALM_S:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        if not moved or not self._agree():
            states = ", ".join(f"{v.name} {v.role} {v.epoch} {v.end[1]} {v.mark}" for v in self.voters)
            what = "an object takes no write or read" if not moved else "the logs do not agree"
            self.watch.violated("no progress", f"{what} {CALM_S:g} s after all was healed: {states}")
        elif unsettled := await self.brokers_unsettled(began_s + CALM_S - self.loop.time()):
            self.watch.violated("no progress", f"{unsettled} {CALM_S:g} s after all was healed")
        else:
            self.calm_s = round(self.loop.time() - began_s, 3)

    async def brokers_unsettled(self, limit_s: float) -> str:
        """Wait until each broker serves, every partition has a leader, and all its replicas have been in sync at the
        same time; return the first demand that is still unfulfilled at the end, or "".
        """
        until_s, brokers = self.loop.time() + limit_s, self.watch.brokers
        were_in_sync: set[str] = set()
        while brokers is not None:
            if unsettled := brokers.unsettled(self.scenario.broker_ids):
                were_in_sync.clear()
            else:
                unsettled = brokers.out_of_sync(were_in_sync)
            if not unsettled or self.loop.time() >= until_s:
                return unsettled
            await asyncio.sleep(LOOK_S)
        return ""

    def _agree(self) -> bool:
        need = [voter for voter in self.voters if voter.name not in self.damaged]
        caught_up = [voter.alive and voter.mark >= self.watch.committed for voter in need]
        return all(caught_up) and len(caught_up) > self.scenario.nodes // 2

    async def _every_object(self, functions: Sequence[str], limit_s: float) -> bool:
        """Invoke these functions on every object, one after another; return True if each was answered within
        `limit_s`.
        """
        until_s = self.loop.time() + limit_s
        followers = [client for number, client in enumerate(self.clients) if number % 4 < 2]
        keys = [f"k{number}" for number in range(self.scenario.keys)]

        async def answered(client: StormClient, function: str, key: str) -> bool:
            while self.loop.time() < until_s:
                value = None if function in ("read", "create") else self._new_value()
                if (await self._asked(client, (function, key, value))).type is Type.OK:
                    return True
            return False

        async def in_turn(client: StormClient, keys: Sequence[str]) -> bool:
            return all([await answered(client, function, key) for key in keys for function in functions])

        of_clients = (in_turn(client, keys[at :: len(followers)]) for at, client in enumerate(followers))
        return all(await asyncio.gather(*of_clients))

    def _new_value(self) -> int:
        self._numbers += 1
        return self._numbers % 3 if self.scenario.workload == "repeated" else 900_000_000 + self._numbers

    async def _asked(self, client: StormClient, operation: Operation) -> Asked:
        answer: asyncio.Future[Asked] = self.loop.create_future()
        client.ask(operation, answer.set_result)
        return await answer

    # Roles

    def best(self) -> NodeVoter | None:
        """Return the running leader of the highest epoch."""
        leaders = [voter for voter in self.voters if voter.role == "leader"]
        return max(leaders, key=lambda voter: voter.epoch, default=None)

    def who(self, role: str, it: NodeVoter | None) -> NodeVoter | None:
        name, _, number = role.partition(":")
        if name == "it":
            return it
        if name in ("broker", "partition-leader"):
            ids: Sequence[int] = self.scenario.broker_ids
            if name == "partition-leader" and self.watch.brokers is not None:
                ids = self.watch.brokers.leads_partitions()
            return self.servers[ids[int(number) % len(ids)] - 1] if ids else None
        if name == "any":
            return self.voters[int(number) % len(self.voters)]
        leader = self.best()
        if name == "leader" or leader is None:
            return leader
        if name == "former":
            others = [voter for voter in self.voters if voter.role == "leader" and voter is not leader]
            return max(others, key=lambda voter: voter.epoch, default=None)
        others = [voter for voter in self.voters if voter is not leader]
        return others[int(number) % len(others)] if others else None

    def _phase(self) -> str:
        leader = self.best()
        if leader is None:
            return "no leader"
        return "steady" if self.watch.has_committed(leader) else "new leader"

    # Cards

    def _at(self, when_s: float, action: Callable[..., object], *arguments: Any) -> None:
        """Schedule an action of the world, outside of every process."""
        self.loop.call_at(when_s, action, *arguments, context=self._nobody)

    def later(self, seconds: float, action: Callable[..., object], *arguments: Any) -> None:
        self.act_for(seconds)
        self._at(self.loop.time() + seconds, action, *arguments)

    def act_for(self, seconds: float) -> None:
        if seconds > 0:
            self.acts_until_s = max(self.acts_until_s, self.loop.time() + seconds)

    def _arm(self, card: StormCard) -> None:
        if self._storm:
            self.armed.append(ArmedCard(card.moment, partial(self._strike, card), card.nth, card.delay_s))

    def _met(self, moment: str, it: NodeVoter) -> None:
        if moment == "succeeded":
            if not it.alive:
                return
            if self._storm:
                self.later(0.0, self._probe, it)
        self.moments[moment] += 1
        for armed in [each for each in self.armed if each.moment == moment]:
            armed.met += 1
            if armed.met == armed.nth:
                self.armed.remove(armed)
                if armed.delay_s:
                    self.later(armed.delay_s, armed.act, it)
                else:
                    armed.act(it)
        owner = OWNER.get()
        if owner is not None and owner.gate is Gate.DEAD:
            raise Killed  # a fault has killed the process that runs this code, so the code must not continue

    def _met_at_broker(self, moment: str, broker: int | None) -> None:
        """Note an event after its row is judged. broker: None for the controller."""

        def met() -> None:
            it = self.best() if broker is None else self.servers[broker - 1] if broker <= len(self.servers) else None
            if it is not None and self._storm:
                self._met(moment, it)

        self.later(0.0, met)

    def _probe(self, former: NodeVoter) -> None:
        for client in self.probes:
            client.probe(former.name)

    def _committed(self, voter: NodeVoter, before: int, after: int) -> None:
        """Store newly committed changes before the logs that contain them are truncated."""
        if not self.scenario.snapshot_bytes and self.watch.brokers is None:
            return
        if voter.log_start > before:
            what = f"{voter.name}: its log begins at {voter.log_start}, not {before}"
            self.watch.violated("a mark beyond a gap", what)
        if self.scenario.snapshot_bytes:
            self.archive.extend(voter.changes(before, after))
        if self.watch.brokers is not None:
            self.watch.brokers.committed(voter, voter.committed_batches(before, after))

    def _strike(self, card: StormCard, it: NodeVoter | None = None) -> None:
        victim = self.who(card.who, it) if self._storm else None
        if victim is None:
            return
        phase, role = self._phase(), victim.role
        if (card.fault not in OF_THE_LIVING or victim.alive) and DO[card.fault](self, card, victim) is not False:
            self.struck[card.fault, role, phase] += 1
            self.kinds.append((self.loop.time(), card.fault))

    def again(self, voter: NodeVoter) -> None:
        if not voter.alive:
            kind = self.lost_power.pop(voter.name, "")
            if kind:
                self.crash_disk(voter, kind, voter.lives)
            voter.start()

    def crash_disk(self, voter: NodeVoter, kind: str, seed: int) -> None:
        random = Random(f"{self.scenario.seed}/{voter.name}/{seed}")
        voter.machine.lose_power(kind, random)  # type: ignore[arg-type]
        if voter.name in self.damaged:
            voter.may_forget = True  # its recovery point is not fsynced, so the restart may recover less

    def _operation(self, voter: NodeVoter, verb: str, path: str) -> None:
        if verb == "fsync":
            self._met("fsync", voter)

    def _heal(self) -> None:
        self.network.lift()
        for voter in self.servers:
            voter.machine.kill_at_change(0)
            voter.machine.set_wall_clock(0.0, 1.0)
            voter.machine.resume()
            voter.slow_down(1.0)
            mend(self, voter)
