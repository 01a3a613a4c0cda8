"""Changes of the voters: one at a time, each a record in the log (KIP-853).

Sets that differ by one voter have overlapping majorities.  So a change is safe if all replicas that could still act
under the set before it know that set, and no other.  Three rules keep that:

* A leader changes nothing before a record of its own epoch has committed.
* It changes nothing while the last change is not committed.
* The set counts from the append of its record on (`voters.py`).

A replica that joins must have caught up: it fetches as an observer until its log reaches the leader's.  Else nothing
would commit until it has fetched the rest, if the new majority needs it.

A leader that removes itself leads on until the removal has committed by the majority of the others.  It does not count
itself then, and resigns afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from system_under_test.kraft.raft.commitment import announced_mark, commit
from system_under_test.kraft.raft.decisions import may_change_again, may_change_voters, may_join
from system_under_test.kraft.raft.effects import VotersChangeDone
from system_under_test.kraft.raft.election import quorum_deadline, resign
from system_under_test.kraft.raft.messages import Batch, Error, ReplicaKey
from system_under_test.kraft.raft.states import FollowerProgress, Leader, PendingChange
from system_under_test.kraft.raft.voter_memory import NOT_LEADER, Voter
from system_under_test.kraft.raft.voters import VoterEntry, VoterSet

CAUGHT_UP_WITHIN_S = 5.0
"""A replica that joins has reached the leader's log at most so long ago."""


@dataclass(frozen=True, slots=True)
class AddVoter:
    entry: VoterEntry


@dataclass(frozen=True, slots=True)
class RemoveVoter:
    key: ReplicaKey


@dataclass(frozen=True, slots=True)
class UpdateVoter:
    """A voter is reached at other endpoints, or supports other versions."""

    entry: VoterEntry


VoterChange = AddVoter | RemoveVoter | UpdateVoter


def change_voters(voter: Voter, now: float, token: int, change: VoterChange) -> None:
    leader = voter.state
    if not isinstance(leader, Leader):
        voter.emit(VotersChangeDone(token, Error.NOT_LEADER_OR_FOLLOWER, NOT_LEADER))
        return
    if (refusal := _too_early(voter, leader) or _unfit(voter, leader, now, change)) is not None:
        voter.emit(VotersChangeDone(token, *refusal))
        return
    offset = voter.end_offset
    leader.changes.append(PendingChange(token, offset))
    voter.append([Batch(offset, voter.epoch, 1, _changed(voter.history.latest, change))])
    leader.news_at = now
    commit(voter, leader)


def settle(voter: Voter, now: float) -> None:
    """After each step of a leader: answer what is committed, and resign if its own removal is."""
    leader = voter.state
    if not isinstance(leader, Leader) or not voter.history.may_change:
        return
    if voter.alone:
        leader.quorum_deadline = math.inf
    elif leader.quorum_deadline == math.inf:
        leader.quorum_deadline = quorum_deadline(voter, now)
    mark = announced_mark(voter, leader)
    if mark is None:
        return
    for pending in [each for each in leader.changes if each.offset < mark]:
        leader.changes.remove(pending)
        voter.emit(VotersChangeDone(pending.token, Error.NONE))
    if voter.observes and voter.history.latest_offset < mark:
        resign(voter, now)


def _too_early(voter: Voter, leader: Leader) -> tuple[Error, str] | None:
    """Why the voters cannot change now, in Kafka's order; None if they can."""
    mark = announced_mark(voter, leader)
    if not may_change_voters(mark, voter.bugs):
        return Error.REQUEST_TIMED_OUT, "the leader has not committed a record of its epoch yet"
    if not voter.history.may_change:
        return Error.UNSUPPORTED_VERSION, "the voters cannot change: kraft.version is 0"
    if not may_change_again(voter.history.latest_offset, voter.high_watermark, voter.bugs):
        return Error.REQUEST_TIMED_OUT, "another change of the voters is not committed yet"
    return None


def _unfit(voter: Voter, leader: Leader, now: float, change: VoterChange) -> tuple[Error, str] | None:
    """Why this change cannot be made of the voters in force; None if it can."""
    voters = voter.history.latest
    match change:
        case AddVoter(entry) if voters.entry(entry.key.id) is not None:
            return Error.DUPLICATE_VOTER, f"{entry.key.id} is the id of a voter already"
        case AddVoter(entry):
            progress = leader.observers.get(entry.key, FollowerProgress())
            if not may_join(now - progress.caught_up_at, CAUGHT_UP_WITHIN_S, voter.bugs):
                return Error.REQUEST_TIMED_OUT, f"the log of replica {entry.key.id} has not caught up with the leader's"
        case RemoveVoter(key) if not _is_exactly(voters, key):
            return Error.VOTER_NOT_FOUND, f"no voter has the id {key.id} and this directory"
        case RemoveVoter() if len(voters.entries) == 1:
            return Error.INVALID_REQUEST, "the last voter cannot be removed"
        case UpdateVoter(entry) if not _is_exactly(voters, entry.key):
            return Error.VOTER_NOT_FOUND, f"no voter has the id {entry.key.id} and this directory"
    return None


def _is_exactly(voters: VoterSet, key: ReplicaKey) -> bool:
    entry = voters.entry(key.id)
    return entry is not None and entry.key == key


def _changed(voters: VoterSet, change: VoterChange) -> VoterSet:
    match change:
        case AddVoter(entry) | UpdateVoter(entry):
            return voters.with_entry(entry)
        case RemoveVoter(key):
            return voters.without(key.id)
