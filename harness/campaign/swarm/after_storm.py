"""Demands that are made of a healed cluster once it has made progress.

    steady   nothing happens to any server for longer than two sessions of a broker: one controller leads on, and once
             the first of these sessions is over, no broker is fenced
    silence  a broker dies, and often the controller that heard of it last does, too: the broker is fenced, and comes
             back once it is started again, often while the disk of another one is slow that leads a partition with it
    topics   one is deleted, made and grown, and a broker is given producer ids
    voters   one is updated, and a server joins and is removed again; or a voter is removed and joins again

All that is asked for here can be done.  So the controller must do it, and one that refuses it breaks a rule.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from checkers.base.history import Type
from harness.campaign.swarm.operators import (
    PARTITIONS_MAX,
    PRODUCER_IDS,
    RegistryRequest,
    TopicRequest,
    add_voter,
    update_voter,
)
from harness.campaign.swarm.voter import VoterOnMachine
from harness.campaign.swarm.watch_brokers import BrokerWatch
from harness.campaign.swarm.watch_voters import VoterSets
from system_under_test.kraft.raft.changes import RemoveVoter
from system_under_test.kraft.subject import KraftBrokers

if TYPE_CHECKING:
    from harness.campaign.swarm.world import StormWorld

CALM_S = 25.0
"""A healed cluster takes at most so long for whatever is demanded of it."""
LOOK_S = 0.1
SESSION_S_MAX = 1.2 * float(KraftBrokers.cluster_settings["brokers"]["session_timeout_s"])
"""A session of a broker by the slowest clock, with time for a record."""
STEADY_S = 2 * SESSION_S_MAX + 1.0
"""A broker that was fenced a moment before serves again, and is fenced once more, within a session and a second."""
CHANGES_MAX = 3
"""Changes of the controller that are allowed after the storm: leaders elected in it may still depose each other."""
STEADY_S_MAX = (CHANGES_MAX + 2) * STEADY_S
RESTART_S = 0.3
LEARNS_LATE, KNOWS_S, SLOW_FSYNC_S = 0.7, 0.5, 3.0
"""Share of the storms in which a leader learns late that a broker is registered anew, seconds until it knows that the
broker is fenced, and seconds of an fsync then: more than a broker needs to come back."""
REFUSED_RIGHT = "a change that can be made is refused"


class AfterStorm:
    """world: all its servers run."""

    def __init__(self, world: StormWorld) -> None:
        self._world = world
        self._scenario, self._loop, self._watch = world.scenario, world.loop, world.watch

    async def demand(self) -> None:
        """All phases, one after another."""
        brokers, sets = self._watch.brokers, self._watch.sets
        await self._steady(brokers)
        if brokers is not None:
            await self._silence(brokers)
            await self._topics(brokers)
        if sets is not None:
            await self._voters(sets)

    async def _steady(self, brokers: BrokerWatch | None) -> None:
        """A broker may be fenced for what happened before: it was silent, or asked to leave, or its controller changed.
        So the stretch begins anew with each change of the controller and of a server's life."""
        limit_s = max(self._loop.time(), self._world.acts_until_s) + STEADY_S_MAX
        began_s, before, changes = 0.0, None, 0
        fences: Counter[int] = Counter()
        while changes <= CHANGES_MAX and (now_s := self._loop.time()) < limit_s:
            leader = self._world.best()
            state = leader and (leader.name, leader.epoch), [(each.lives, each.alive) for each in self._world.servers]
            if now_s < self._world.acts_until_s:
                began_s, before = now_s, state
            elif state != before or leader is None:
                changes += state != before
                began_s, before = now_s, state
            if brokers is None or now_s < began_s + SESSION_S_MAX:
                fences = Counter() if brokers is None else brokers.fences.copy()
            elif fenced := sorted(brokers.fences - fences):
                what = f"{fenced} were fenced, {now_s - began_s:.1f} s after anything last happened to a server"
                self._watch.violated("a broker is fenced without a cause", what)
                return
            if now_s >= began_s + STEADY_S:
                return
            await asyncio.sleep(LOOK_S)
        what = f"{changes} changes of the controller, and none has led for {STEADY_S:.1f} s, though nothing happens"
        self._watch.violated("no controller stays in office", what)

    async def _silence(self, brokers: BrokerWatch) -> None:
        """A new controller knows nothing of the heartbeats that the one before it got: it fences a broker, too, that it
        has never heard of."""
        leader = self._world.best()
        if leader is None:
            return
        voters = None if self._watch.sets is None else self._watch.sets.in_force(leader)
        may_die = [
            server
            for server in self._world.servers
            if server is not leader
            and server.number in self._scenario.broker_ids
            and (server.number > self._scenario.may_vote or (voters is None and self._scenario.nodes >= 3))
        ]
        if not may_die:
            return
        random = Random(f"{self._scenario.seed}/silence")
        silent, fails_over_s = random.choice(may_die), random.choice((None, 0.0, 1.5))
        silent.machine.kill()
        if fails_over_s is not None:
            await asyncio.sleep(fails_over_s)
            leader.machine.kill()
            self._world.later(RESTART_S, self._world.again, leader)
        until_s = self._loop.time() + CALM_S
        while not brokers.image.brokers[silent.number].fenced:
            if self._loop.time() >= until_s:
                what = f"broker {silent.number} has been silent for {CALM_S:g} s, and is not fenced"
                self._watch.violated("a silent broker is not fenced", what)
                return
            await asyncio.sleep(LOOK_S)
        late = self._leads_with(silent, brokers) if random.random() < LEARNS_LATE else None
        if late is not None:
            await asyncio.sleep(KNOWS_S)
            late.machine.fsync_s = SLOW_FSYNC_S
        silent.start()
        if late is not None:
            await asyncio.sleep(2 * SLOW_FSYNC_S)
            late.machine.fsync_s = 0.0
        if unsettled := await self._world.brokers_unsettled(CALM_S):
            self._watch.violated("no progress", f"{unsettled} {CALM_S:g} s after broker {silent.number} was silent")

    def _leads_with(self, silent: VoterOnMachine, brokers: BrokerWatch) -> VoterOnMachine | None:
        """A broker that leads a partition with a replica on the silent one.  The controller knows what it decides."""
        partitions = (each for topic in brokers.image.topics.values() for each in topic.partitions.values())
        leaders = {each.leader for each in partitions if silent.number in each.replicas}
        controller = self._world.best()
        found = [each for each in self._world.servers if each.number in leaders and each is not controller]
        return next(iter(found), None)

    async def _topics(self, brokers: BrokerWatch) -> None:
        """The topic is one that cards make and delete, too, without a config."""
        topics = brokers.image.topics
        delete, create, grow = (TopicRequest(how, 2) for how in ("delete", "create", "grow"))
        name = create.name
        if name in topics:
            await self._accepted(("topics", "", delete), f"to delete {name}", lambda: name not in topics)
        await self._accepted(("topics", "", create), f"to make {name}", lambda: name in topics)
        if name in topics and (count := len(topics[name].partitions)) < PARTITIONS_MAX:
            is_done = lambda: name in topics and len(topics[name].partitions) > count  # noqa: E731
            await self._accepted(("topics", "", grow), f"to grow {name}", is_done)
        number, registered = min(brokers.image.brokers.items())
        request = RegistryRequest(PRODUCER_IDS, number, registered.broker_epoch)
        await self._accepted(("registry", "", request), f"to give producer ids to broker {number}", lambda: False)

    async def _voters(self, sets: VoterSets) -> None:
        """A server of which the voters hold another disk is left alone: its voter counts as long as it stays."""
        leader = self._world.best()
        if leader is None:
            return
        history = leader.voter_history().latest
        may_vote = self._world.servers[: self._scenario.may_vote]
        voting = [each for each in may_vote if history.holds(each.replica)]
        outside = [each for each in may_vote if history.entry(each.number) is None]

        if voting:
            updated = update_voter(voting[0], 0)
            await self._accepted(("voters", "", updated), f"to update voter {voting[0].name}", lambda: False)
        others = [each for each in voting if each is not leader]
        if outside:
            await self._joins(outside[0], sets)
            await self._leaves(outside[0], sets)
        elif len(voting) == len(history.entries) > 2:
            await self._leaves(others[0], sets)
            await self._joins(others[0], sets)

    async def _joins(self, server: VoterOnMachine, sets: VoterSets) -> None:
        change = ("voters", "", add_voter(server))
        await self._accepted(change, f"to add {server.name} to the voters", lambda: self._votes(server, sets))

    async def _leaves(self, server: VoterOnMachine, sets: VoterSets) -> None:
        change = ("voters", "", RemoveVoter(server.replica))
        await self._accepted(change, f"to remove voter {server.name}", lambda: not self._votes(server, sets))

    def _votes(self, server: VoterOnMachine, sets: VoterSets) -> bool:
        best = self._world.best()
        return best is not None and server.key in sets.in_force(best)

    async def _accepted(self, operation: tuple[str, str, object], what: str, is_done: Callable[[], bool]) -> None:
        """Ask the leader until it acknowledges, within CALM_S.

        is_done: whether an earlier request whose answer got lost has done it, so that it is refused now."""
        until_s = self._loop.time() + CALM_S
        while self._loop.time() < until_s:
            ended: asyncio.Future[Type] = self._loop.create_future()
            if self._world.administrators.ask(operation, ended.set_result) and (await ended is Type.OK or is_done()):
                return
            await asyncio.sleep(LOOK_S)
        self._watch.violated(REFUSED_RIGHT, f"{what} was not accepted within {CALM_S:g} s, though nothing happens")
