"""Strangers of a storm: programs that are no voters of the cluster, and ask its voters for what only voters may ask.

another cluster   a server of it asks with its own cluster id, and otherwise as a voter of this one would: for a
                  vote in the next epoch, to be followed or succeeded as a leader, or for entries and snapshots.  It
                  may get one answer alone: that this is another cluster
false leader      a program says, by this cluster's id, that a voter leads the present epoch or a later one.  It may
                  be asked; it is not followed unless it has won that election (`watch`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from harness.campaign.swarm.scenario import ANOTHER_CLUSTER, StormCard
from harness.campaign.swarm.voter import CALLS_PORT, VoterOnMachine
from simulation.calls import Lane, LaneTimes, NoAnswer
from simulation.loop import Process
from simulation.network import SimulatedNetwork
from system_under_test.kraft.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    Error,
    FetchRequest,
    FetchSnapshotRequest,
    RaftRequest,
    SnapshotId,
    VoteRequest,
)

ANSWER_S_MAX = 2.0
OTHER_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class Strangers:
    """host: where they run.  violated: takes a rule, the voter that broke it, and what happened."""

    def __init__(
        self,
        network: SimulatedNetwork,
        host: Process,
        voters: Sequence[VoterOnMachine],
        violated: Callable[[str, VoterOnMachine, str], None],
    ) -> None:
        self._network = network
        self._host = host
        self._voters = voters
        self._violated = violated

    def ask(self, card: StormCard, victim: VoterOnMachine) -> bool:
        """Ask what the card says, once; False if the victim is down or alone."""
        random = Random(card.size)
        others = [voter for voter in self._voters if voter is not victim]
        if not victim.alive or not others:
            return False
        named = random.choice(others)
        if card.how == ANOTHER_CLUSTER:
            request = random.choice(_as_a_voter(named, victim))
            self._call(victim, request, lambda answer: self._judge(victim, request, answer))
        else:
            epoch = victim.epoch + random.choice((0, 1, 1, 3))
            self._call(victim, BeginQuorumEpochRequest(victim.cluster_id, named.number, epoch, victim.replica))
        return True

    def _call(
        self, victim: VoterOnMachine, request: RaftRequest, answered: Callable[[Any], None] = lambda answer: None
    ) -> None:
        lane = Lane(self._network, victim.name, CALLS_PORT, LaneTimes(ANSWER_S_MAX), owner=self._host)
        lane.call(request, answered)

    def _judge(self, victim: VoterOnMachine, request: RaftRequest, answer: Any) -> None:
        if type(answer) is NoAnswer or answer.error == Error.INCONSISTENT_CLUSTER_ID:
            return
        what = f"{victim.name} answers {type(request).__name__} of another cluster with {answer}"
        self._violated("another cluster is answered", victim, what)


def _as_a_voter(asking: VoterOnMachine, asked: VoterOnMachine) -> list[RaftRequest]:
    """What the one voter might ask the other, of each kind, but for the cluster id."""
    epoch, (last_epoch, end) = asked.epoch, asked.end
    me, other, cluster = asking.replica, asked.replica, OTHER_CLUSTER_ID
    return [
        VoteRequest(cluster, epoch + 1, me, other, last_epoch, end + 1, pre_vote=False),
        VoteRequest(cluster, epoch, me, other, last_epoch, end + 1, pre_vote=True),
        BeginQuorumEpochRequest(cluster, me.id, epoch + 1, other),
        EndQuorumEpochRequest(cluster, me.id, epoch, (other,)),
        FetchRequest(cluster, me, epoch, end, last_epoch, None, max_wait_ms=0),
        FetchSnapshotRequest(cluster, me, epoch, SnapshotId(1, 1), 0),
    ]
