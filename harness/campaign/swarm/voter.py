"""A voter of a swarm: its machine, its incarnations, its lanes to the others, and its state for the watch.

The voter itself is a whole node of KRaft over direct calls (`node_voter`).  It answers requests of other voters, and
operations of clients as (function, key, value).

    ("read", key, None)      -> ("ok", what the object holds)
    ("write", key, value)    -> ("ok", None)
    ("voters", "", change)   -> ("ok", None), of an operator
    ("topics", "", request)  -> ("ok", None), of an administrator
    ("registry", "", request) -> ("ok", None), of an administrator or a broker
    either                   -> ("refused", None): certainly nothing was written; ("unknown", None)

A register holds a number or None, a list a tuple of numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

from harness.campaign.swarm.scenario import Scenario
from harness.campaign.swarm.watch import Watch, WatchedRow
from harness.campaign.swarm.watch_brokers import CommittedBatch
from harness.campaign.swarm.watch_voters import key_of
from simulation.calls import Lane, LaneTimes, NoAnswer
from simulation.machine import Machine
from simulation.network import SimulatedNetwork
from system_under_test.kraft.log.small_files import derived_uuid
from system_under_test.kraft.node.trace import Trace
from system_under_test.kraft.ports import Timer
from system_under_test.kraft.raft.changes import VoterChange
from system_under_test.kraft.raft.decisions import id_of_new_disk
from system_under_test.kraft.raft.messages import (
    FetchRequest,
    FetchSnapshotRequest,
    RaftRequest,
    RaftResponse,
    ReplicaKey,
)
from system_under_test.kraft.raft.replication import WAIT_MAX_S
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry, VoterHistory, VoterSet, voter_set
from system_under_test.kraft.simulated import HANDLER_CPU_S, MachineClock

PORT = 9093
"""Port of requests as bytes, if there are any."""
CALLS_PORT = 1
"""Port of requests as objects."""
OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
Operation = tuple[str, str, int | None]
Value = int | None | tuple[int, ...]
Position = tuple[int, int]
"""(offset of a batch, number of the record in it): position of a change in the committed log."""
Change = tuple[Position, str, str | None]
"""(position, key, written value)."""


class VoterOnMachine(ABC):
    """A machine, its incarnations, the lanes to the others, and what the watch knows of it.

    lives: number of starts. key: identifies it together with its disk. flushed, durable_end: end of its durable log, by
    its own report and by its disk. end: (epoch, offset) of the end of its log.
    may_stop: its disk fails, or its log is damaged, so it may exit. may_forget: its log was damaged and it lost power
    before it started again, so it may mistake durable entries for a torn tail.
    """

    def __init__(
        self, number: int, scenario: Scenario, machine: Machine, network: SimulatedNetwork, watch: Watch
    ) -> None:
        self.number = number
        self.name = machine.name
        self.machine = machine
        self.lives = 0
        self.may_stop = False
        self.may_forget = False
        self.left_cleanly: set[int] = set()
        """Epochs of its brokers that shut down cleanly, as its starts found them on its disk."""
        self.observes = number > scenario.nodes
        self._rate = scenario.rates[number - 1] if number <= len(scenario.rates) else 1.0
        self.watch = watch
        self.on_first_fetch: Callable[[VoterOnMachine], None] = lambda voter: None
        self.on_part: Callable[[int], None] = lambda replica: None
        """Report that a replica has some parts of a snapshot, and requests the next one from this server."""
        self._scenario = scenario
        self._network = network
        self._fetched_in = 0
        self._slowed = 1.0
        self._disks = 0
        self._take_disk(derived_uuid("directory", scenario.seed, self.name))

    def start(self) -> None:
        if self.machine.process is None:
            self.lives += 1
            self.machine.start(self._serve, "output")
            self.slow_down(self._slowed)

    def slow_down(self, times: float) -> None:
        """Multiply the time of each handler by the scenario's factor, in this incarnation and the next ones."""
        self._slowed = times
        factor = times * self._scenario.cpu_factor
        self.machine.costs = {kind: seconds * factor for kind, seconds in HANDLER_CPU_S.items()} if factor else {}

    @abstractmethod
    async def _serve(self, machine: Machine) -> int: ...

    def replace_disk(self) -> None:
        """Replace the disk of a server that is down with an empty one."""
        self._disks += 1
        drawn = derived_uuid("directory", self._scenario.seed, self.name, self._disks)
        self._take_disk(id_of_new_disk(drawn, self.directory, {self._scenario.bug}))
        self.machine.wipe()
        self._format()

    def _take_disk(self, directory: UUID) -> None:
        """Make this server another replica, with another name for the watch, which reads it often."""
        self.directory = directory
        self.key = key_of(self.replica)

    @abstractmethod
    def _format(self) -> None:
        """Format its empty disk for a start, and forget the content of the previous one."""

    @property
    def alive(self) -> bool:
        return self.machine.process is not None

    # State that the watch and the storm read

    @property
    def replica(self) -> ReplicaKey:
        """Return this server with its disk."""
        return ReplicaKey(self.number, self.directory)

    @abstractmethod
    def voter_history(self) -> VoterHistory:
        """Return the voters that its log names; before the log names any, those of the configuration."""

    @abstractmethod
    def log_began_anew(self) -> None:
        """Report that its log was truncated, that a snapshot may have replaced it, or that another incarnation has
        begun.
        """

    @abstractmethod
    def snapshot_voters(self) -> VoterSet | None:
        """Return the voters in its newest snapshot."""

    def _configured(self) -> VoterSet:
        return initial_voters(self._scenario)

    @property
    def role(self) -> str:
        return self.watch.roles.get(self.name, "dead") if self.alive else "dead"

    cluster_id: str
    epoch: int
    mark: int
    flushed: int
    durable_end: int
    end: tuple[int, int]

    @property
    @abstractmethod
    def log_start(self) -> int:
        """Return the start of its log: all before it is in a snapshot."""

    @property
    @abstractmethod
    def snapshot_end(self) -> int:
        """Return the end of its newest snapshot; 0: it has none."""

    @abstractmethod
    def prefix(self, offset: int) -> int | None:
        """Return an identification of all entries before this offset; None if no entry ends there, or if the log begins
        after it.
        """

    @abstractmethod
    def changes(self, offset: int, end_offset: int) -> Iterator[Change]:
        """Return every change between two offsets in the log of this voter.  For a list, the written value is the whole
        list.
        """

    @abstractmethod
    def committed_batches(self, offset: int, end_offset: int) -> list[CommittedBatch]:
        """Return the batches of its metadata log between two offsets."""

    @abstractmethod
    def flip(self, at: int, how: str = "") -> bool:
        """Damage a file (`damage.FILE_KINDS`).  Return False if there is none, or this incarnation has not recovered
        its log yet.
        """

    # Calls

    def _lanes(self) -> Lanes:
        hosts = [f"n{n}" for n in range(1, self._scenario.may_vote + 1)]
        return Lanes(self._network, self.number, hosts)

    def _noted(self, connection: int, request: RaftRequest, reply: Callable[[Any], None]) -> Callable[[Any], None]:
        """Note the arrival of a voter's request; return the function that answers it."""
        calls, wait_s = self.watch.calls, 0.0
        calls.called(self)
        if request.cluster_id != self.cluster_id:
            return self._awaited(connection, wait_s, reply)
        self._note_fetch(request)
        if isinstance(request, FetchRequest):
            wait_s = min(request.max_wait_ms / 1000, WAIT_MAX_S)
            calls.fetched(self, key_of(request.replica), request.current_leader_epoch)
        elif isinstance(request, FetchSnapshotRequest):
            replica = key_of(request.replica)
            calls.fetched(self, replica, request.current_leader_epoch)
            calls.part_asked(self, replica, request)
            reply = self._telling(reply, lambda response: calls.part_sent(self, replica, response))
            if request.position:
                self.on_part(request.replica.id)
        return self._awaited(connection, wait_s, reply)

    def _telling(self, reply: Callable[[Any], None], note: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a reply that calls `note` first, unless another incarnation has begun."""
        life = self.lives

        def answer(response: Any) -> None:
            if life == self.lives:
                note(response)
            reply(response)

        return answer

    def _awaited(self, connection: int, wait_s: float, reply: Callable[[Any], None]) -> Callable[[Any], None]:
        number = self.watch.calls.asked(self, connection, wait_s)
        return self._telling(reply, lambda response: self.watch.calls.answered(self, number))

    def _noted_change(self, change: VoterChange, reply: Callable[[Any], None]) -> Callable[[Any], None]:
        """Note an operator's request for this change of voters; return the function that answers it."""
        sets, end = self.watch.sets, self.end[1]
        if sets is None:
            return reply
        sets.asked_for(change)

        def note(response: Any) -> None:
            if response == (OK, None):
                sets.acknowledged(self, change, end)

        return self._telling(reply, note)

    def _note_fetch(self, request: RaftRequest) -> None:
        first = isinstance(request, FetchRequest) and request.current_leader_epoch > self._fetched_in
        if first and isinstance(request, FetchRequest) and self.watch.leads(self):
            self._fetched_in = request.current_leader_epoch
            self.on_first_fetch(self)


def initial_voters(scenario: Scenario) -> VoterSet:
    """Return the initial voters of the cluster, each with its first disk."""
    names = {number: f"n{number}" for number in range(1, scenario.nodes + 1)}
    return voter_set(
        VoterEntry(
            ReplicaKey(number, derived_uuid("directory", scenario.seed, name)),
            (VoterEndpoint("CONTROLLER", name, PORT),),
        )
        for number, name in names.items()
    )


class Lanes:
    """`ports.Calls` of one voter: as in `wire.channel`, one lane to each peer for fetches and one for all other
    requests.
    """

    def __init__(self, network: SimulatedNetwork, me: int, hosts: Sequence[str]) -> None:
        self._lanes = {
            (peer, fetches): Lane(network, host, CALLS_PORT, LaneTimes(2.0, backoff_s=0.02))
            for peer, host in enumerate(hosts, 1)
            if peer != me
            for fetches in (True, False)
        }

    def call(self, peer: int, request: RaftRequest, answered: Callable[[RaftResponse | None], None]) -> None:
        lane = self._lanes[peer, type(request) is FetchRequest]
        lane.call(request, lambda answer: answered(None if type(answer) is NoAnswer else answer))


LOG_BEGINS_ANEW = frozenset({"start", "truncate", "snapshot"})


class WatchedTrace(Trace):
    """Trace whose rows go to the watch at once, and nowhere else."""

    def __init__(self, voter: VoterOnMachine) -> None:
        super().__init__(lambda line: None, lambda: 0, 0, voter.lives - 1)
        self._voter = voter
        self._process = voter.machine.process

    def row(self, event: str, epoch: int, **columns: Any) -> None:
        if self._voter.machine.process is self._process:  # otherwise the voter was killed during the effect
            if event in LOG_BEGINS_ANEW:
                self._voter.log_began_anew()
            self._voter.watch.row(self._voter, WatchedRow(event, epoch, **columns))


class DriftingClock(MachineClock):
    """`ports.Clock` of a machine whose monotonic clock runs `rate` times as fast."""

    def __init__(self, machine: Machine, rate: float) -> None:
        super().__init__(machine)
        self._rate = rate

    def now(self) -> float:
        return self._loop.time() * self._rate

    def now_ns(self) -> int:
        return round(self.now() * 1e9)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        # Rounding must not fire a timer before `now() == when`: the node would re-arm it forever.
        return self._loop.call_at(when / self._rate + 1e-9, callback)


def elements(text: str | None) -> tuple[int, ...] | None:
    """Return the elements of a list in a record; None for no list."""
    return None if text is None else tuple(int(member.partition(":")[0]) for member in text.split(",") if member)
