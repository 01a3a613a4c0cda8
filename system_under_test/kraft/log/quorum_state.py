"""The quorum-state file: epoch, leader and vote, one line of JSON, never in place.

Version 0 of Kafka's QuorumStateData is what a quorum of static voters writes (KIP-595); it names the voted replica by
id alone.  Where voters can change it is version 1, with the directory id of the vote and without the voters (KIP-853).
A node reads both: the file of an upgraded cluster is of version 0 until the node stores something again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from system_under_test.kraft.log import atomic
from system_under_test.kraft.log.meta_properties import kafka_uuid, parse_uuid
from system_under_test.kraft.ports import Disk
from system_under_test.kraft.raft.messages import QuorumState, ReplicaKey

NAME = "quorum-state"


class UnreadableQuorumState(ValueError):
    """The file cannot be understood.  A node that forgot its vote must not vote again, so it must not start."""


class QuorumStateFile:
    """voters: those of the configuration; None where they can change from the first leader on."""

    def __init__(self, disk: Disk, folder: str, cluster_id: str, voters: Sequence[int] | None) -> None:
        self._disk = disk
        self._path = f"{folder}/{NAME}"
        self._cluster_id = cluster_id
        self._voters = None if voters is None else sorted(voters)

    def load(self) -> QuorumState:
        """Return what was stored last; epoch 0 and no vote if nothing ever was.

        Raises UnreadableQuorumState, also for a leader or a vote that is none of the voters that the file names.
        """
        data = atomic.read(self._disk, self._path)
        if data is None:
            return QuorumState()
        state, names_voters = _read(data)
        for what, voter in (("leader", state.leader_id), ("vote", state.voted and state.voted.id)):
            if voter is not None and names_voters and self._voters is not None and voter not in self._voters:
                raise UnreadableQuorumState(f"{NAME} holds the {what} {voter}, but the voters are {self._voters}")
        return state

    def store(self, state: QuorumState, *, voters_in_log: bool = False) -> None:
        """The state is durable on return.

        voters_in_log: the log names the voters; those of the configuration do not count."""
        voters = None if voters_in_log else self._voters
        atomic.replace(self._disk, self._path, encode(state, self._cluster_id, voters))


def encode(state: QuorumState, cluster_id: str, voters: Sequence[int] | None) -> bytes:
    fields: dict[str, Any] = {
        "leaderId": -1 if state.leader_id is None else state.leader_id,
        "leaderEpoch": state.epoch,
        "votedId": -1 if state.voted is None else state.voted.id,
    }
    if voters is None:
        directory = kafka_uuid((state.voted and state.voted.directory) or UUID(int=0))
        fields |= {"votedDirectoryId": directory, "data_version": 1}
    else:
        listed = [{"voterId": voter} for voter in voters]
        # Kafka writes appliedOffset and never reads it.
        fields = {"clusterId": cluster_id, **fields, "appliedOffset": 0, "currentVoters": listed, "data_version": 0}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(data: bytes) -> QuorumState:
    """Raises UnreadableQuorumState with what is wrong."""
    return _read(data)[0]


def _read(data: bytes) -> tuple[QuorumState, bool]:
    """(the state, whether the file names voters)."""
    try:
        fields: dict[str, Any] = json.loads(data)
        version = int(fields["data_version"])
        epoch, leader, voted = (int(fields[name]) for name in ("leaderEpoch", "leaderId", "votedId"))
    except (ValueError, KeyError, TypeError) as problem:
        raise UnreadableQuorumState(f"{NAME} holds {data[:120]!r}: {problem!r}") from None
    if version not in (0, 1):
        raise UnreadableQuorumState(f"{NAME} is of data_version {version}; this node knows versions 0 and 1")
    if epoch < 0 or leader < -1 or voted < -1:
        raise UnreadableQuorumState(f"{NAME} holds epoch {epoch}, leader {leader}, vote {voted}")
    directory = None
    try:
        if version == 1 and (found := parse_uuid(fields["votedDirectoryId"])) != UUID(int=0):
            directory = found
    except (ValueError, KeyError, TypeError) as problem:
        raise UnreadableQuorumState(f"{NAME} holds {data[:120]!r}: {problem!r}") from None
    vote = None if voted < 0 else ReplicaKey(voted, directory)
    return QuorumState(epoch, None if leader < 0 else leader, vote), version == 0
