"""Changes of the voters: one at a time, each a record in the log (KIP-853).

Sets that differ by one voter have overlapping majorities.  So a change is safe if all replicas that could still act
under the previous set know that set, and no other.  Three rules keep that:

* A leader changes nothing before a record of its own epoch has committed.
* It changes nothing while the last change is not committed.
* The set counts from the append of its record (`voters.py`).

A replica that joins must have caught up: it fetches as an observer until its log reaches the leader's.  Otherwise
nothing would commit until it has fetched the rest, if the new majority needs it.

A leader that removes itself continues to lead until the majority of the others has committed the removal.  It does not
count itself then, and resigns afterwards.

A replica whose log removes it, but does not say that this is committed, may hold entries that the others lack.  So it
still campaigns if it hears of no leader (`voter_memory.Voter.may_be_needed`).

Upgrade.  While `kraft.version` is 0, the log names no voters, and those of the configuration are in force.  Each voter
reports its directory, endpoints and versions to every new leader, which keeps them in memory.  Once all voters have
done so, the leader can raise the version to 1: it appends the version, and the same voters as a record.  A voter that
lacks this record trusts only the voters of its configuration.  So no replica is added until every voter holds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from system_under_test.kraft.raft import decisions
from system_under_test.kraft.raft.effects import VotersChangeDone
from system_under_test.kraft.raft.election import quorum_deadline, resign
from system_under_test.kraft.raft.leadership import announced_mark, commit
from system_under_test.kraft.raft.messages import Batch, Error, ReplicaKey
from system_under_test.kraft.raft.states import FollowerProgress, Leader, PendingChange
from system_under_test.kraft.raft.voter_memory import NOT_LEADER, Voter
from system_under_test.kraft.raft.voters import KRaftVersion, VoterEntry, VoterSet, voter_set

KRAFT_VERSIONS = (0, 1)
"""Levels of `kraft.version` that this software supports."""

CAUGHT_UP_WITHIN_S = 5.0
"""Maximum seconds since a joining replica has reached the leader's log."""


@dataclass(frozen=True, slots=True)
class AddVoter:
    entry: VoterEntry


@dataclass(frozen=True, slots=True)
class RemoveVoter:
    key: ReplicaKey


@dataclass(frozen=True, slots=True)
class UpdateVoter:
    """A change of a voter's endpoints or supported versions."""

    entry: VoterEntry


@dataclass(frozen=True, slots=True)
class RaiseVersion:
    """Set `kraft.version`. validates_only: answer whether that is possible, and change nothing."""

    version: int
    validates_only: bool = False


VoterChange = AddVoter | RemoveVoter | UpdateVoter | RaiseVersion


def change_voters(voter: Voter, now: float, token: int, change: VoterChange) -> None:
    leader = voter.state
    if not isinstance(leader, Leader):
        voter.emit(VotersChangeDone(token, Error.NOT_LEADER_OR_FOLLOWER, NOT_LEADER))
        return
    if (refusal := _too_early(voter, leader, change) or _unfit(voter, leader, now, change)) is not None:
        voter.emit(VotersChangeDone(token, *refusal))
        return
    bodies = _bodies(voter, leader, change)
    if isinstance(change, UpdateVoter) and not voter.history.may_change:
        leader.announced[change.entry.key.id] = change.entry
    if not bodies:
        voter.emit(VotersChangeDone(token, Error.NONE))
        return
    first = voter.end_offset
    leader.changes.append(PendingChange(token, first + len(bodies) - 1))
    voter.append([Batch(offset, voter.epoch, 1, body) for offset, body in enumerate(bodies, first)])
    leader.news_at = now
    commit(voter, leader)


def settle(voter: Voter, now: float) -> None:
    """Answer committed changes after each step of a leader, and resign if its own removal is committed."""
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


def _too_early(voter: Voter, leader: Leader, change: VoterChange) -> tuple[Error, str] | None:
    """Return the reason why the voters cannot change now, in Kafka's order of checks; None if they can."""
    mark = announced_mark(voter, leader)
    if not decisions.may_change_voters(mark, voter.bugs):
        return Error.REQUEST_TIMED_OUT, "the leader has not committed a record of its epoch yet"
    if not voter.history.may_change:
        if isinstance(change, AddVoter | RemoveVoter):
            return Error.UNSUPPORTED_VERSION, "the voters cannot change: kraft.version is 0"
        return None
    if not decisions.may_change_again(voter.history.latest_offset, voter.high_watermark, voter.bugs):
        return Error.REQUEST_TIMED_OUT, "another change of the voters is not committed yet"
    return None


def _unfit(voter: Voter, leader: Leader, now: float, change: VoterChange) -> tuple[Error, str] | None:
    """Return the reason why this change of the voters in force is impossible; None if it is possible."""
    voters = voter.history.latest
    match change:
        case RaiseVersion(version):
            return _not_raised(voter, leader, version)
        case UpdateVoter(entry) if not voter.history.may_change:
            known = voters.holds(entry.key)
            return None if known else (Error.VOTER_NOT_FOUND, f"replica {entry.key.id} is no voter with this directory")
        case AddVoter() if not _all_hold_the_version(voter, leader):
            return Error.REQUEST_TIMED_OUT, "not every voter holds the record yet that raised kraft.version"
        case AddVoter(entry) if voters.entry(entry.key.id) is not None:
            return Error.DUPLICATE_VOTER, f"{entry.key.id} is the id of a voter already"
        case AddVoter(entry):
            progress = leader.observers.get(entry.key, FollowerProgress())
            if not decisions.may_join(now - progress.caught_up_at, CAUGHT_UP_WITHIN_S, voter.bugs):
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


def _not_raised(voter: Voter, leader: Leader, version: int) -> tuple[Error, str] | None:
    """Return the reason why `kraft.version` cannot be set to this level; None if it can, or already is."""
    present = int(voter.history.may_change)
    if version == present:
        return None
    if version < present or version > max(KRAFT_VERSIONS):
        return Error.INVALID_UPDATE_VERSION, f"kraft.version is {present} and cannot become {version}"
    silent = [peer for peer in voter.others if not _supports(leader.announced.get(peer), version)]
    if silent:
        names = ", ".join(map(str, silent))
        return Error.INVALID_UPDATE_VERSION, f"not all voters have reported that they support {version}: {names} lack"
    return None


def _supports(announced: VoterEntry | None, version: int) -> bool:
    return (
        announced is not None
        and announced.key.directory is not None
        and announced.kraft_versions[0] <= version <= announced.kraft_versions[1]
    )


def _all_hold_the_version(voter: Voter, leader: Leader) -> bool:
    """Return whether every voter holds the record, which is always so if the configuration says that voters can
    change.
    """
    raised_at = voter.history.raised_at
    return voter.identity.dynamic or all(leader.followers[peer].end_offset > raised_at for peer in voter.others)


def _bodies(voter: Voter, leader: Leader, change: VoterChange) -> list[KRaftVersion | VoterSet]:
    """Return the bodies that a change appends, the voters last; nothing if it does not change the log."""
    voters = voter.history.latest
    match change:
        case AddVoter(entry):
            return [voters.with_entry(entry)]
        case UpdateVoter(entry):
            return [voters.with_entry(entry)] if voter.history.may_change else []
        case RemoveVoter(key):
            return [voters.without(key.id)]
        case RaiseVersion(version, validates_only):
            if validates_only or version == int(voter.history.may_change):
                return []
            own = [replace(entry, key=voter.identity.me) for entry in voters if entry.key.id == voter.me]
            return [KRaftVersion(version), voter_set([*own, *(leader.announced[peer] for peer in voter.others)])]
