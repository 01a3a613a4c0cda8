"""The surroundings of a voter of a swarm: its lanes to the others, its trace, its clock, and the words of its clients.

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

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.campaign.swarm.scenario import Scenario
from harness.campaign.swarm.watch import WatchedRow
from simulation.calls import Lane, LaneTimes, NoAnswer
from simulation.machine import Machine
from simulation.network import SimulatedNetwork
from system_under_test.kraft.log.small_files import derived_uuid
from system_under_test.kraft.node.trace import Trace
from system_under_test.kraft.ports import Timer
from system_under_test.kraft.raft.messages import FetchRequest, RaftRequest, RaftResponse, ReplicaKey
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry, VoterSet, voter_set
from system_under_test.kraft.simulated import MachineClock

if TYPE_CHECKING:
    from harness.campaign.swarm.node_voter import NodeVoter

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


def initial_voters(scenario: Scenario) -> VoterSet:
    """Return the initial voters of the cluster, each with its first disk."""
    names = [f"n{number}" for number in range(1, scenario.nodes + 1)]
    keys = [ReplicaKey(n, derived_uuid("directory", scenario.seed, name)) for n, name in enumerate(names, 1)]
    endpoints = [(VoterEndpoint("CONTROLLER", name, PORT),) for name in names]
    return voter_set(map(VoterEntry, keys, endpoints))


class Lanes:
    """`ports.Calls` of one voter: as in `wire.channel`, one lane to each peer for fetches and one for all other
    requests.
    """

    def __init__(self, network: SimulatedNetwork, me: int, servers: int) -> None:
        self._lanes = {
            (peer, fetches): Lane(network, f"n{peer}", CALLS_PORT, LaneTimes(2.0, backoff_s=0.02))
            for peer in range(1, servers + 1)
            if peer != me
            for fetches in (True, False)
        }

    def call(self, peer: int, request: RaftRequest, answered: Callable[[RaftResponse | None], None]) -> None:
        lane = self._lanes[peer, type(request) is FetchRequest]
        lane.call(request, lambda answer: answered(None if type(answer) is NoAnswer else answer))


LOG_BEGINS_ANEW = frozenset({"start", "truncate", "snapshot"})


class WatchedTrace(Trace):
    """Trace whose rows go to the watch at once, and nowhere else."""

    def __init__(self, voter: NodeVoter) -> None:
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
