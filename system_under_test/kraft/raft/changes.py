"""Changes of the voter set: one at a time, each a record in the log (KIP-853).

Majorities of two sets that differ by one voter overlap.  So a change is safe as long as replicas use only the previous
set and the new one.  Three rules guarantee this:

* A leader changes the voters only after a record of its own epoch is committed.
* A leader changes the voters only after the previous change is committed.
* A replica uses a new set as soon as it appends the record of that set (`voters.py`).

A replica joins only after it has caught up: it fetches as an observer until it reaches the leader's log end.
Otherwise, if the new majority needed this replica, nothing could commit until it had fetched the missing entries.

A leader that removes itself leads on, without counting its own log, until a majority of the others has committed the
removal.  Then it resigns.

A replica that does not know whether its own removal is committed may hold entries that the others lack.  So it still
campaigns if it hears of no leader (`voter_memory.Voter.may_be_needed`).

Upgrade.  While `kraft.version` is 0, the log names no voters, and the voters of the configuration are in force.  Each
voter reports its directory, endpoints and versions to every new leader, which keeps the reports in memory.  Once all
voters have reported, the leader can raise the version to 1: it appends a record of the version and a record of the same
voters.  A voter that lacks the record of the voters trusts only the voters of its configuration.  So the leader adds no
replica until every voter holds this record.
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
"""Maximum seconds since a joining replica last reached the leader's log end."""


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
    """A change of `kraft.version`.

    validates_only: True to report whether the version can be set, without setting it
    """

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
    """Answer the requests whose changes are now committed, and resign if the leader's own removal is committed.  Called
    after each step of a leader.
    """
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
    """Return the reason why the voters cannot change now, or None if they can.  The checks come in Kafka's order."""
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
    """Return the reason why this change cannot be applied to the voters in force, or None if it can."""
    voters = voter.history.latest
    match change:
        case RaiseVersion(version):
            return _not_raised(voter, leader, version)
        case UpdateVoter(entry) if not voter.history.may_change:
            known = voters.holds(entry.key)
            return None if known else (Error.VOTER_NOT_FOUND, f"no voter has the id {entry.key.id} and this directory")
        case AddVoter() if not _all_hold_the_version(voter, leader):
            return Error.REQUEST_TIMED_OUT, "not every voter holds the record that raised kraft.version yet"
        case AddVoter(entry) if voters.entry(entry.key.id) is not None:
            return Error.DUPLICATE_VOTER, f"a voter with the id {entry.key.id} exists already"
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
    """Return the reason why `kraft.version` cannot be set to this level.  None if it can, or if it has this level
    already.
    """
    present = int(voter.history.may_change)
    if version == present:
        return None
    if version < present or version > max(KRAFT_VERSIONS):
        return Error.INVALID_UPDATE_VERSION, f"kraft.version is {present} and cannot become {version}"
    silent = [peer for peer in voter.others if not _supports(leader.announced.get(peer), version)]
    if silent:
        names = ", ".join(map(str, silent))
        return Error.INVALID_UPDATE_VERSION, f"voters without reported support for kraft.version {version}: {names}"
    return None


def _supports(announced: VoterEntry | None, version: int) -> bool:
    return (
        announced is not None
        and announced.key.directory is not None
        and announced.kraft_versions[0] <= version <= announced.kraft_versions[1]
    )


def _all_hold_the_version(voter: Voter, leader: Leader) -> bool:
    """Return whether every voter holds the record that raised `kraft.version`.  Always True if the configuration makes
    the voters dynamic.
    """
    raised_at = voter.history.raised_at
    return voter.identity.dynamic or all(leader.followers[peer].end_offset > raised_at for peer in voter.others)


def _bodies(voter: Voter, leader: Leader, change: VoterChange) -> list[KRaftVersion | VoterSet]:
    """Return the bodies of the records that a change appends, the voters last.  The list is empty if the change does
    not affect the log.
    """
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
