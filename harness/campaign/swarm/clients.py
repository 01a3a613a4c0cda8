"""Clients in the process of the simulation: their requests, the servers they choose, and conclusions from the answers.

Half of the processes follow: they send requests to the leader of the highest epoch.  The other processes stay with a
server until it refuses a request, because otherwise no process would use a deposed leader.  A process that follows
learns of a new leader at once, which is impossible for real clients.  This saves the search for the leader, and no
verdict depends on the chosen server.

Operations are (function, key, value), and their answers:

    ("read", key, None)      -> ("ok", value of the object)
    ("write", key, value)    -> ("ok", None)
    ("voters", "", change)   -> ("ok", None), of an operator
    ("topics", "", request)  -> ("ok", None), of an administrator
    ("registry", "", request) -> ("ok", None), of an administrator or a broker
    any operation            -> ("refused", None): certainly nothing was written; ("unknown", None)

The value of a register is a number or None, the value of a list is a tuple of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from checkers.base.history import Type
from harness.campaign.swarm.scenario import CLIENTS, Scenario
from harness.campaign.swarm.watch_calls import EPOCH, OFFSET, NumberAnswered
from simulation.calls import Lane, LaneTimes, NoAnswer
from simulation.loop import Process, SimulatedLoop
from simulation.network import SimulatedNetwork

if TYPE_CHECKING:
    from harness.campaign.swarm.node_voter import NodeVoter

PORT = 9093
"""Port for requests as bytes, if there are any."""
CALLS_PORT = 1
"""Port for requests as objects."""
OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
Operation = tuple[str, str, int | None]
Value = int | None | tuple[int, ...]
Position = tuple[int, int]
"""(offset of a batch, index of the record in the batch): position of a change in the committed log."""
Change = tuple[Position, str, str | None]
"""(position, key, written value)."""

BACKOFF_S = 0.05


@dataclass(slots=True)
class Asked:
    """An operation.

    began, ended: positions in the total order of all invokes and completions; -1 if the operation never ended
    type: OK, FAIL (certainly not done) or INFO (unknown)
    got: answer of a read
    """

    process: int
    function: str
    key: str
    value: int | None
    began: int
    began_s: float
    node: str = ""
    ended: int = -1
    ended_s: float = -1.0
    type: Type = Type.INFO
    got: Value = None


class History:
    """All operations in order of their invokes, and every number returned to a client."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.numbers: list[NumberAnswered] = []
        self.places = 0

    def place(self) -> int:
        self.places += 1
        return self.places - 1


@dataclass(frozen=True, slots=True)
class Outside:
    """Programs outside the cluster.

    hosts: processes in which they run
    best: returns the running leader of the highest epoch; None if there is none
    """

    network: SimulatedNetwork
    hosts: Sequence[Process]
    best: Callable[[], NodeVoter | None]

    def call(
        self, server: str, what: Any, limit_s: float, answered: Callable[[Any], None] = lambda answer: None, at: int = 0
    ) -> None:
        """Send a request to a server once, from host number `at`."""
        Lane(self.network, server, CALLS_PORT, LaneTimes(limit_s), owner=self.hosts[at]).call(what, answered)

    def later(self, seconds: float, action: Callable[[], None], at: int = 0) -> None:
        loop = self.network.loop
        loop.post(loop.time() + seconds, self.hosts[at], lambda _: action(), None)


class StormClient:
    """One process of a client."""

    def __init__(
        self, number: int, scenario: Scenario, outside: Outside, history: History, names: Sequence[str]
    ) -> None:
        self.process = outside.hosts[number % len(CLIENTS)]
        self._number = number
        self._scenario = scenario
        self._network = outside.network
        self._loop: SimulatedLoop = outside.network.loop
        self._history = history
        self._best = outside.best
        self._names = names
        self._follows = number % 4 < 2
        self._reads_only = number % 5 >= 3
        self._random = Random(f"{scenario.seed}/client/{number}")
        self._target = ""
        self._lane: Lane | None = None
        self._until_s = 0.0
        self._values = number * 1_000_000
        self.done = True

    def run(self, until_s: float) -> None:
        """Send requests at the scenario's rate until `until_s`."""
        self._until_s = until_s
        self.done = False
        self._next()

    def probe(self, name: str) -> None:
        """Send one request to this server, even if it is not the leader."""
        self._leave(name)
        self.ask(self._choose(), lambda asked: None)

    def _next(self) -> None:
        pause_s = self._random.expovariate(self._scenario.rate_hz / self._scenario.processes)
        at_s = self._loop.time() + pause_s
        if at_s >= self._until_s:
            self.done = True
            return
        self._loop.post(at_s, self.process, lambda _: self._ask(), None)

    def _ask(self) -> None:
        function, key, value = self._choose()
        self.ask((function, key, value), lambda asked: self._next())

    def _choose(self) -> Operation:
        random, workload = self._random, self._scenario.workload
        key = f"k{random.randrange(self._scenario.keys)}"
        if self._reads_only or random.random() < 0.5:
            return "read", key, None
        if workload == "repeated":
            return "write", key, random.randrange(self._scenario.values)
        self._values += 1
        return ("append" if workload == "list" else "write"), key, self._values

    def ask(self, operation: Operation, done: Callable[[Asked], None]) -> None:
        """Send one operation, and call `done` with its outcome."""
        function, key, value = operation
        asked = Asked(self._number, function, key, value, self._history.place(), self._loop.time())
        self._history.asked.append(asked)
        lane = self._lane_to_target()
        if lane is None:
            self._end(asked, NoAnswer("no leader known", sent=False), done)
            return
        asked.node = self._target
        lane.call(operation, lambda answer: self._end(asked, answer, done))

    def _lane_to_target(self) -> Lane | None:
        if self._follows or not self._target:
            best = self._best()
            if best is None and not self._target:
                return None
            name = best.name if best is not None else self._target
            if name != self._target:
                self._leave(name)
        if self._lane is None:
            limit_s = self._scenario.op_timeout_s
            times = LaneTimes(limit_s, connect_s=limit_s)
            self._lane = Lane(self._network, self._target, CALLS_PORT, times, self.process)
        return self._lane

    def _leave(self, name: str) -> None:
        if self._lane is not None:
            self._lane.close()
        self._lane, self._target = None, name

    def _end(self, asked: Asked, answer: Any, done: Callable[[Asked], None]) -> None:
        asked.ended, asked.ended_s = self._history.place(), self._loop.time()
        reads = asked.function == "read"
        if type(answer) is NoAnswer:
            asked.type = Type.FAIL if reads or not answer.sent else Type.INFO
            if answer.why == "refused":
                self._move()
        else:
            how, got, *stamp = answer
            for kind, number in zip((EPOCH, OFFSET), stamp, strict=False):
                row = NumberAnswered(kind, asked.began, asked.node, asked.ended, Type.OK, number)
                self._history.numbers.append(row)
            asked.type = Type.OK if how == OK else Type.FAIL if reads or how == REFUSED else Type.INFO
            asked.got = got
            if how != OK:
                self._move()
        if asked.type is Type.OK:
            done(asked)
        else:
            self._loop.post(self._loop.time() + BACKOFF_S, self.process, done, asked)

    def _move(self) -> None:
        """Choose another server after a refusal, unless the process follows the leader."""
        if not self._follows:
            best = self._best()
            name = best.name if best is not None else self._random.choice(self._names)
            if name != self._target:
                self._leave(name)


def elements(text: str | None) -> tuple[int, ...] | None:
    """Return the elements of a list in a record; None if there is no list."""
    return None if text is None else tuple(int(member.partition(":")[0]) for member in text.split(",") if member)
