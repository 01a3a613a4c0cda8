"""Operators of a storm: they add, remove and update voters, and have those replaced whose disk was lost (KIP-853).

An operator asks the leader over the network, as a client does, and repeats what was refused.  Two of them do not know
of each other.

What they do must leave the cluster able to go on once all is healed.  A disk that was lost never votes again, and still
its voter counts for a majority.  So a storm does one of two things.  Either voters are removed that have their disks,
or disks are lost, one at a time, and only the voters of these disks are removed.

Strangers of a storm: programs that are no voters of the cluster, and ask its voters for what only voters may ask.

another cluster   a server of it asks with its own cluster id, and otherwise as a voter of this one would: for a
                  vote in the next epoch, to be followed or succeeded as a leader, or for entries and snapshots.  It
                  may get one answer alone: that this is another cluster
false leader      a program says, by this cluster's id, that a voter leads the present epoch or a later one.  It may
                  be asked; it is not followed unless it has won that election (`watch`)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from harness.campaign.swarm.clients import Outside
from harness.campaign.swarm.scenario import ANOTHER_CLUSTER, StormCard
from harness.campaign.swarm.voter import OK, PORT, VoterOnMachine
from harness.campaign.swarm.watch_voters import VoterSets
from simulation.calls import NoAnswer
from simulation.loop import SimulatedLoop
from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, UpdateVoter, VoterChange
from system_under_test.kraft.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    Error,
    FetchRequest,
    FetchSnapshotRequest,
    RaftRequest,
    ReplicaKey,
    SnapshotId,
    VoteRequest,
)
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry

AGAIN_S = 0.1
ANSWER_S_MAX = 3.0
REPLACED_WITHIN_S = 20.0
TOO_LATE_S = 0.5


class Operators:
    """Two of them, on a host each."""

    def __init__(self, outside: Outside, servers: Sequence[VoterOnMachine], sets: VoterSets) -> None:
        self._outside = outside
        self._loop: SimulatedLoop = outside.network.loop
        self._servers = servers
        self._sets = sets
        self._removes = self._wipes = False
        self._lost: VoterOnMachine | None = None
        self._until_s = float("inf")

    def stop(self) -> None:
        """They begin nothing more."""
        self._until_s = self._loop.time()

    # Cards

    def change(self, card: StormCard, victim: VoterOnMachine) -> bool:
        """Begin what the card says; whether there is anything to do."""
        leader = self._outside.best()
        if leader is None:
            return False
        until_s = self._loop.time() + card.for_s
        voters = self._sets.in_force(leader)
        outside = [server for server in self._servers if server.key not in voters]
        outside.sort(key=lambda server: server.end[1])  # who lags most comes first
        joining = outside[int(card.size) % len(outside)] if outside else None
        removes = card.how in ("remove", "two") and victim.key in voters and len(voters) > 1 and not self._wipes
        if card.how in ("add", "two") and joining is not None:
            self._repeat(0, lambda: self._added(joining), lambda: add_voter(joining), until_s)
        elif card.how == "update" and victim.key in voters:
            changed = update_voter(victim, int(card.size))
            self._repeat(0, lambda: False, lambda: changed, self._loop.time())
        elif not removes:
            return False
        if removes:
            self._removes = True
            replica = victim.replica
            self._repeat(1, lambda: self._is_gone(replica), lambda: RemoveVoter(replica), until_s)
        return True

    def wipe(self, card: StormCard, victim: VoterOnMachine) -> bool:
        """Replace a disk, and have the voter replaced; whether the cluster can bear that."""
        leader = self._outside.best()
        if leader is None or self._removes or not self._is_settled(leader):
            return False
        voters = self._sets.in_force(leader)
        if victim.key not in voters or len(voters) < 3:
            return False
        self._wipes, self._lost = True, victim
        old = victim.replica
        victim.machine.kill()
        self._sets.disk_is_lost(victim)
        victim.replace_disk()
        until_s = self._loop.time() + REPLACED_WITHIN_S

        def remove() -> None:
            self._repeat(0, lambda: self._is_gone(old), lambda: RemoveVoter(old), until_s, add)

        def add() -> None:
            added, change = lambda: self._added(victim), lambda: add_voter(victim)
            self._repeat(0, added, change, until_s, lambda: self._too_late(old))

        self._outside.later(card.size, remove)
        return True

    def _too_late(self, gone: ReplicaKey) -> None:
        """Another operator has not heard that a disk was replaced, and asks for the voter that had the old one: for
        its removal, and for other endpoints.  Neither may touch the voter with the new disk."""
        changes = (
            RemoveVoter(gone),
            UpdateVoter(VoterEntry(gone, (VoterEndpoint("CONTROLLER", f"n{gone.id}", PORT),))),
        )
        for change in changes:
            self._repeat(1, lambda: False, partial(_same, change), self._loop.time() + TOO_LATE_S)

    def _is_settled(self, leader: VoterOnMachine) -> bool:
        """Every voter that lost its disk is one again with the new one, and that is committed."""
        if leader.voter_history().latest_offset >= leader.mark:
            return False
        return self._lost is None or self._lost.key in self._sets.in_force(leader)

    # Requests

    def _added(self, server: VoterOnMachine) -> bool:
        leader = self._outside.best()
        return leader is not None and server.key in self._sets.in_force(leader)

    def _is_gone(self, replica: ReplicaKey) -> bool:
        leader = self._outside.best()
        entry = leader.voter_history().latest.entry(replica.id) if leader is not None else None
        return leader is not None and (entry is None or entry.key != replica)

    def _repeat(
        self,
        host: int,
        done: Callable[[], bool],
        change: Callable[[], VoterChange],
        until_s: float,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Ask until it is done, or until the time; at least once."""
        if done():
            then()
            return

        def again() -> None:
            if self._loop.time() <= min(until_s, self._until_s):
                self._repeat(host, done, change, until_s, then)

        def answered(answer: object) -> None:
            if answer == (OK, None):
                then()
            else:
                self._outside.later(AGAIN_S, again, host)

        leader = self._outside.best()
        if leader is None:
            answered(None)
        else:
            self._outside.call(leader.name, ("voters", "", change()), ANSWER_S_MAX, answered, host)


def _same(change: VoterChange) -> VoterChange:
    return change


def add_voter(server: VoterOnMachine) -> VoterChange:
    return AddVoter(VoterEntry(server.replica, (VoterEndpoint("CONTROLLER", server.name, PORT),)))


def update_voter(server: VoterOnMachine, number: int) -> VoterChange:
    """It has another second endpoint.  The first stays right: brokers reach the controller there."""
    second = VoterEndpoint("CONTROLLER_TOO", server.name, PORT + 1 + number)
    return UpdateVoter(VoterEntry(server.replica, (VoterEndpoint("CONTROLLER", server.name, PORT), second)))


STRANGER_ANSWER_S_MAX = 2.0
OTHER_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class Strangers:
    """violated: takes a rule, the voter that broke it, and what happened."""

    def __init__(
        self,
        outside: Outside,
        voters: Sequence[VoterOnMachine],
        violated: Callable[[str, VoterOnMachine, str], None],
    ) -> None:
        self._outside = outside
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
            judge = partial(self._judge, victim, request)
            self._outside.call(victim.name, request, STRANGER_ANSWER_S_MAX, judge)
        else:
            epoch = victim.epoch + random.choice((0, 1, 1, 3))
            begin = BeginQuorumEpochRequest(victim.cluster_id, named.number, epoch, victim.replica)
            self._outside.call(victim.name, begin, STRANGER_ANSWER_S_MAX)
        return True

    def _judge(self, victim: VoterOnMachine, request: RaftRequest, answer: Any) -> None:
        if type(answer) is NoAnswer or answer.error == Error.INCONSISTENT_CLUSTER_ID:
            return
        what = f"{victim.name} answers {type(request).__name__} of another cluster with {answer}"
        self._violated("another cluster is answered", victim, what)


def _as_a_voter(asking: VoterOnMachine, asked: VoterOnMachine) -> list[RaftRequest]:
    """Return what the one voter might ask the other, of each kind, but for the cluster id."""
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
