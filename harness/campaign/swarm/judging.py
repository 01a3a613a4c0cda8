"""Rules that must hold at the end of a scenario: every answer fits the one committed log.

The committed log gives the one order of all changes, so linearizability needs no search.  Each operation has a
position: a write has the position of its change, a read that of the change whose value it returned.  The history is
linearizable with this order exactly if no operation ended before an operation with an earlier position began.  If
values repeat, a read has no position, and the register kernel of the checkers searches for an order.

    lost write                 acknowledged, but not in the log
    failed write in the log    answered as certainly not done
    write in the log twice
    read of no committed value
    not linearizable           an operation stands before one that had ended when it began
    committed log cannot be read

Other answers to clients (ids, epochs, offsets) have their own rules (`watch_calls`).

*After the storm.*  Demands on a healed cluster after it has made progress.

    steady   nothing happens to any server for longer than two sessions of a broker: the controller stays the same, and
             no broker is fenced after the first of these sessions
    silence  a broker dies, and often also the controller that received its last heartbeats: the broker is fenced, and
             returns after a restart, often while another broker, which leads a partition with it, has a slow disk
    topics   a topic is deleted, created and extended, and a broker gets producer ids
    voters   a voter is updated, and a server is added and removed again; or a voter is removed and added again

All requests of this phase can be carried out.  So the controller must do so, and a refusal violates a rule.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from harness.campaign.swarm import operators
from harness.campaign.swarm.clients import Asked, Change, History, Position, Value, elements
from harness.campaign.swarm.operators import PARTITIONS_MAX, PRODUCER_IDS, RegistryRequest, TopicRequest
from harness.campaign.swarm.scenario import Scenario
from harness.campaign.swarm.watch import Watch
from harness.campaign.swarm.watch_brokers import BrokerWatch
from harness.campaign.swarm.watch_calls import overtaken, wrong_numbers
from harness.campaign.swarm.watch_voters import VoterSets
from system_under_test.kraft.log.log import DamagedLog
from system_under_test.kraft.raft.changes import RemoveVoter
from system_under_test.kraft.records.metadata import CorruptRecord
from system_under_test.kraft.subject import KraftBrokers

if TYPE_CHECKING:
    from harness.campaign.swarm.node_voter import NodeVoter
    from harness.campaign.swarm.world import StormWorld

Places: TypeAlias = dict[tuple[str, Value], Position]

BEFORE_ALL: Position = (-1, -1)
STEPS_MAX, SIZE_MAX_BYTES = 2_000_000, 1 << 28


def judge(
    scenario: Scenario, history: History, voters: Sequence[NodeVoter], watch: Watch, archive: Sequence[Change]
) -> None:
    """Report violations to the watch.

    archive: every change at the time when it was first published as committed; used instead of the log if the system
        takes snapshots
    """
    for rule, what in wrong_numbers(history.numbers):
        watch.violated(rule, what)
    best = max(voters, key=lambda voter: voter.mark)
    if best.prefix(best.mark) is None:
        return  # the watch has already reported a violation
    client_operations = [asked for asked in history.asked if asked.function != "create"]
    if scenario.workload == "repeated":
        _judge_repeated(client_operations, watch)
        return
    try:
        log = archive if scenario.snapshot_bytes else [*best.changes(0, best.mark)]
    except (CorruptRecord, DamagedLog) as problem:  # damaged data was accepted because of a planted bug
        watch.violated("committed log cannot be read", str(problem))
        return
    changes, states = _places(scenario, log, watch)
    placed: list[tuple[Position, Asked]] = []
    for asked in client_operations:
        if reads := asked.function == "read":
            at = BEFORE_ALL if asked.got in (None, ()) else states.get((asked.key, asked.got))
        else:
            at = changes.get((asked.key, asked.value))
        if asked.type is Type.OK and at is not None:
            placed.append((at, asked))
        elif asked.type is Type.OK:
            watch.violated("read of no committed value" if reads else "lost write", _words(asked))
        elif asked.type is Type.FAIL and at is not None and not reads:
            watch.violated("failed write in the log", _words(asked))
    _judge_order(placed, watch)


def _places(scenario: Scenario, log: Iterable[Change], watch: Watch) -> tuple[Places, Places]:
    """Return the position of each written element, and the position of each state of an object."""
    changes: Places = {}
    states: Places = {}
    lists: dict[str, tuple[int, ...]] = {}
    for at, key, written in log:
        if scenario.workload == "register":
            value = None if written is None else int(written)
            added: Sequence[int | None] = (value,)
            states[key, value] = at
        else:
            before = lists.get(key, ())
            whole = elements(written) or ()
            added = whole[len(before) :]
            lists[key] = whole
            states[key, whole] = at
        for each in added:
            if (key, each) in changes:
                watch.violated("write in the log twice", f"{key} {each}")
            changes.setdefault((key, each), at)
    return changes, states


def _judge_order(placed: list[tuple[Position, Asked]], watch: Watch) -> None:
    for key in sorted({asked.key for _, asked in placed}):
        for asked, before in overtaken((at, asked) for at, asked in placed if asked.key == key):
            watch.violated("not linearizable", f"{_words(asked)}, after {_words(before)} had ended")
            return


def _judge_repeated(operations: Sequence[Asked], watch: Watch) -> None:
    from checkers.by_hand import judge_events

    events: list[Event] = []
    for number, asked in enumerate(operations):  # each operation gets a process of its own
        shown = asked.got if asked.function == "read" else asked.value
        value = None if isinstance(shown, tuple) else shown
        began = Event(asked.began, 0, number, Type.INVOKE, asked.function, asked.key, asked.value)
        events.append(began)
        if asked.ended >= 0:
            events.append(replace(began, index=asked.ended, type=asked.type, value=value))
    events.sort(key=lambda event: event.index)
    for witness in judge_events(events, "register", Budget(STEPS_MAX, SIZE_MAX_BYTES)).witnesses if events else ():
        watch.violated("not linearizable", f"the operations of {witness.facts['key']} have no order")


def _words(asked: Asked) -> str:
    what = asked.value if asked.function != "read" else asked.got
    shown = what if not isinstance(what, tuple) else f"...{what[-1:]}"
    when = f"{asked.began_s:.3f} to {asked.ended_s:.3f} s"
    return f"{asked.function} {asked.key} {shown} by process {asked.process} at {asked.node}, {when}"


CALM_S = 25.0
"""Maximum seconds until a healed cluster fulfils a demand."""
LOOK_S = 0.1
SESSION_S_MAX = 1.2 * float(KraftBrokers.cluster_settings["brokers"]["session_timeout_s"])
"""Maximum seconds of a broker's session on the slowest clock, including the time to write a record."""
STEADY_S = 2 * SESSION_S_MAX + 1.0
"""Seconds without events for which the cluster must be steady.  A broker that was just fenced may return and be fenced
once more within a session and a second."""
CHANGES_MAX = 3
"""Maximum number of changes of the controller after the storm: leaders that were elected during the storm may still
depose each other.
"""
STEADY_S_MAX = (CHANGES_MAX + 2) * STEADY_S
RESTART_S = 0.3
LEARNS_LATE, KNOWS_S, SLOW_FSYNC_S = 0.7, 0.5, 3.0
"""LEARNS_LATE: share of the storms in which a partition leader has a slow disk when a silent broker returns, so the
leader learns late of the new registration.  KNOWS_S: seconds for the leader to learn before that the broker is fenced.
SLOW_FSYNC_S: seconds of its fsync, more than a broker needs to return."""
REFUSED_RIGHT = "a change that can be made is refused"


class AfterStorm:
    """The demands after the storm. world: all its servers are running."""

    def __init__(self, world: StormWorld) -> None:
        self._world = world
        self._scenario, self._loop, self._watch = world.scenario, world.loop, world.watch

    async def demand(self) -> None:
        """Make all demands, phase by phase."""
        brokers, sets = self._watch.brokers, self._watch.sets
        await self._steady(brokers)
        if brokers is not None:
            await self._silence(brokers)
            await self._topics(brokers)
        if sets is not None:
            await self._voters(sets)

    async def _steady(self, brokers: BrokerWatch | None) -> None:
        """Demand that no broker is fenced.  A broker may be fenced for an earlier reason: it was silent, or asked to
        leave, or its controller changed.  So the time restarts whenever the controller changes, or a server starts or
        ends.
        """
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
                what = f"{fenced} were fenced, {now_s - began_s:.1f} s after the last event of any server"
                self._watch.violated("a broker is fenced without a cause", what)
                return
            if now_s >= began_s + STEADY_S:
                return
            await asyncio.sleep(LOOK_S)
        what = f"{changes} changes of the controller, and no controller led for {STEADY_S:.1f} s, without any fault"
        self._watch.violated("no controller stays in office", what)

    async def _silence(self, brokers: BrokerWatch) -> None:
        """Demand that a silent broker is fenced.  A new controller does not know earlier heartbeats, so it must also
        fence a broker from which it never received one.
        """
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
                what = f"broker {silent.number} has been silent for {CALM_S:g} s, but is not fenced"
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

    def _leads_with(self, silent: NodeVoter, brokers: BrokerWatch) -> NodeVoter | None:
        """Return a broker that leads a partition with a replica on the silent broker.  It must not be the controller,
        because a controller knows its own decisions at once.
        """
        partitions = (each for topic in brokers.image.topics.values() for each in topic.partitions.values())
        leaders = {each.leader for each in partitions if silent.number in each.replicas}
        controller = self._world.best()
        return next((each for each in self._world.servers if each.number in leaders and each is not controller), None)

    async def _topics(self, brokers: BrokerWatch) -> None:
        """Demand changes of a topic without a config, which cards also create and delete."""
        topics = brokers.image.topics
        delete, create, grow = (TopicRequest(how, 2) for how in ("delete", "create", "grow"))
        name = create.name

        def size() -> int:
            return len(topics[name].partitions) if name in topics else 0

        if name in topics:
            await self._accepted(("topics", "", delete), f"to delete {name}", lambda: name not in topics)
        await self._accepted(("topics", "", create), f"to make {name}", lambda: name in topics)
        if 0 < (count := size()) < PARTITIONS_MAX:
            await self._accepted(("topics", "", grow), f"to grow {name}", lambda: size() > count)
        number, registered = min(brokers.image.brokers.items())
        request = RegistryRequest(PRODUCER_IDS, number, registered.broker_epoch)
        await self._accepted(("registry", "", request), f"to give producer ids to broker {number}", lambda: False)

    async def _voters(self, sets: VoterSets) -> None:
        """Demand changes of voters.  A server whose disk is not the disk of its voter is not used, because its voter
        counts for a majority until it is removed.
        """
        leader = self._world.best()
        if leader is None:
            return
        history = leader.voter_history().latest
        may_vote = self._world.servers[: self._scenario.may_vote]
        voting = [each for each in may_vote if history.holds(each.replica)]
        outside = [each for each in may_vote if history.entry(each.number) is None]

        if voting:
            updated = operators.update_voter(voting[0], 0)
            await self._accepted(("voters", "", updated), f"to update voter {voting[0].name}", lambda: False)
        others = [each for each in voting if each is not leader]
        if outside:
            await self._joins(outside[0], sets)
            await self._leaves(outside[0], sets)
        elif len(voting) == len(history.entries) > 2:
            await self._leaves(others[0], sets)
            await self._joins(others[0], sets)

    async def _joins(self, server: NodeVoter, sets: VoterSets) -> None:
        change = ("voters", "", operators.add_voter(server))
        await self._accepted(change, f"to add {server.name} to the voters", lambda: self._votes(server, sets))

    async def _leaves(self, server: NodeVoter, sets: VoterSets) -> None:
        change = ("voters", "", RemoveVoter(server.replica))
        await self._accepted(change, f"to remove voter {server.name}", lambda: not self._votes(server, sets))

    def _votes(self, server: NodeVoter, sets: VoterSets) -> bool:
        best = self._world.best()
        return best is not None and server.key in sets.in_force(best)

    async def _accepted(self, operation: tuple[str, str, object], what: str, is_done: Callable[[], bool]) -> None:
        """Repeat a request to the leader until it is acknowledged, within CALM_S.

        is_done: returns True if an earlier request has been carried out although its answer was lost, so a repetition
            is refused
        """
        until_s = self._loop.time() + CALM_S
        while self._loop.time() < until_s:
            ended: asyncio.Future[Type] = self._loop.create_future()
            if self._world.administrators.ask(operation, ended.set_result) and (await ended is Type.OK or is_done()):
                return
            await asyncio.sleep(LOOK_S)
        self._watch.violated(REFUSED_RIGHT, f"{what} was not accepted within {CALM_S:g} s, without any fault")
