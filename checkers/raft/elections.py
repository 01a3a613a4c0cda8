"""The steps of elections (votes, changes of role) and of commits (high watermarks, applied states, snapshots)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from checkers.raft.quorum import EMPTY, Answer, Blocked, Branch, ModelVoter, Quorum, Unexplained, malformed
from checkers.raft.rules import TraceRow, hash_words


class EpochChange(Enum):
    """Ways in which a change of role may change the epoch."""

    SAME, HIGHER, NOT_LOWER = range(3)


ROLE_CHANGES: dict[tuple[str, str], EpochChange] = {
    ("unattached", "unattached"): EpochChange.HIGHER,
    ("unattached", "prospective"): EpochChange.SAME,
    ("unattached", "follower"): EpochChange.NOT_LOWER,
    ("prospective", "candidate"): EpochChange.SAME,  # the vote for itself has already raised the epoch
    ("prospective", "follower"): EpochChange.NOT_LOWER,
    ("prospective", "unattached"): EpochChange.NOT_LOWER,
    ("candidate", "leader"): EpochChange.SAME,
    ("candidate", "prospective"): EpochChange.SAME,
    ("candidate", "follower"): EpochChange.NOT_LOWER,
    ("candidate", "unattached"): EpochChange.HIGHER,
    ("leader", "resigned"): EpochChange.SAME,
    ("leader", "follower"): EpochChange.HIGHER,
    ("leader", "unattached"): EpochChange.HIGHER,
    ("follower", "prospective"): EpochChange.SAME,
    ("follower", "follower"): EpochChange.HIGHER,
    ("follower", "unattached"): EpochChange.HIGHER,
    ("resigned", "unattached"): EpochChange.HIGHER,
    ("resigned", "follower"): EpochChange.HIGHER,
}
"""(role before, role after) -> permitted change of the epoch.  A change of role that is not listed is impossible."""

ROLES_AFTER_START = frozenset({"unattached", "follower", "candidate", "resigned"})


def vote(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process a vote.

    A node votes at most once per epoch: for itself, or for a candidate whose log is at least as up to date as its own.
    """
    peer, epoch = row.peer, row.epoch
    if peer not in quorum.voters:
        return Unexplained("vote for a stranger")
    given = voter.votes.get(epoch)
    if given is not None and epoch <= voter.epoch:
        if given == peer and epoch == voter.epoch:
            return None  # the same vote, reported again
        return Unexplained("voted twice in one epoch", f"it voted for {given} in epoch {epoch} before")
    if peer == voter.name:
        if voter.role != "prospective" or epoch != voter.epoch + 1:
            return Unexplained("vote out of turn")
        if voter.flushed < voter.log.end:
            return malformed("the log of a candidate is durable before it asks for votes")
        _stand(quorum, voter, epoch)
        voter.epoch, voter.must_run = epoch, True
        return None
    if voter.role not in ("unattached", "prospective") or epoch != voter.epoch or voter.leader is not None:
        return Unexplained("vote out of turn")
    log = quorum.candidacies.get((epoch, peer))
    if log is None:
        return Blocked(f"that {peer} was a candidate of epoch {epoch}", (peer,))
    if log < voter.log:
        why = f"the log of {peer} ended at {log.end} with epoch {log.epoch}, its own with epoch {voter.log.epoch}"
        return Unexplained("vote for a log that is behind", why)
    voter.votes[epoch] = peer
    quorum.granted[epoch, peer].add(voter.name)
    return None


def _stand(quorum: Quorum, voter: ModelVoter, epoch: int) -> None:
    quorum.epochs.add(epoch)
    voter.votes[epoch] = voter.name
    quorum.granted[epoch, voter.name].add(voter.name)
    known = quorum.candidacies.get((epoch, voter.name), EMPTY)
    quorum.candidacies[epoch, voter.name] = max(known, voter.log)


def quorum_state(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process a report of quorum-state, the file with the epoch and the vote of a node.

    The file may contain a vote that the previous process could not report because it was killed.
    """
    given = voter.votes.get(row.epoch)
    if given is not None and row.peer != given:
        return Unexplained("vote not kept", f"it had voted for {given}")
    if voter.role == "":
        if row.epoch != voter.epoch or (voter.reports_state and not voter.must_report_state):
            return malformed("its process had just started, and reports this once")
        voter.reports_state, voter.must_report_state = True, False
        return None
    if not voter.reports_state:
        return malformed("its process did not report at its start what its quorum-state holds")
    if row.epoch < voter.epoch:
        return Unexplained("epoch went back")
    voter.stored_epoch = row.epoch
    return None


def role(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process a change of role, which may change the epoch, too."""
    role, epoch = str(row.role), row.epoch
    answer = _may_become(quorum, voter, role, epoch) or _has_stored(voter, row) or _ROLES[role](quorum, voter, row)
    if answer is not None:
        return answer
    quorum.epochs.add(epoch)
    voter.role, voter.epoch, voter.leader, voter.must_run = role, epoch, row.peer, False
    voter.stored_epoch = None
    quorum.note_reach(voter)
    return None


def _may_become(quorum: Quorum, voter: ModelVoter, role: str, epoch: int) -> Answer:
    if role not in _ROLES:
        return malformed(f"there is no role {role}")
    if voter.role == "":
        may = role in ROLES_AFTER_START and epoch == voter.epoch
        return None if may else Unexplained("impossible change of role")
    change = ROLE_CHANGES.get((voter.role, role))
    same = change in (EpochChange.SAME, EpochChange.NOT_LOWER) and epoch == voter.epoch
    higher = change in (EpochChange.HIGHER, EpochChange.NOT_LOWER) and epoch > voter.epoch
    if not same and not higher:
        return Unexplained("impossible change of role")
    alone = (voter.role, role) == ("resigned", "unattached") and epoch == voter.epoch + 1
    if higher and not alone and epoch not in quorum.epochs:
        return Blocked(f"that any node entered epoch {epoch}", quorum.others(voter))
    return None


def _has_stored(voter: ModelVoter, row: TraceRow) -> Answer:
    """Verify that a node stores a new epoch and a new leader in quorum-state before it acts on them."""
    learns = row.role in ("leader", "follower") and row.peer != voter.leader
    if voter.role == "" or not voter.reports_state or not (row.epoch > voter.epoch or learns):
        return None
    if voter.stored_epoch == row.epoch:
        return None
    return malformed("its quorum-state holds an epoch and a leader before it acts on them, and no row reports that")


def _become_leader(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    epoch = row.epoch
    if (branch := quorum.branches.get(epoch)) is not None:
        return Unexplained("two leaders in one epoch", f"{branch.leader} led epoch {epoch}")
    if row.peer != voter.name or row.offset != voter.log.end:
        return malformed("the epoch of a leader begins at the end of its log")
    return _win(quorum, voter, epoch)


def _win(quorum: Quorum, voter: ModelVoter, epoch: int) -> Answer:
    """Begin a new branch if a majority voted for this node."""
    hidden = {name for name in quorum.hidden_votes[epoch] if epoch not in quorum.voters[name].votes}
    granted = (quorum.granted[epoch, voter.name] | hidden) & voter.members
    if (lacking := voter.majority - len(granted)) > 0:
        voters = f"only {' and '.join(sorted(granted))} voted for it"
        others = tuple(sorted(voter.members - granted))
        return Blocked(f"that a majority voted for it in epoch {epoch}", others, lacking, voters)
    quorum.branches[epoch] = Branch(voter.name, voter.log.epoch, voter.log.end, voter.log.end)
    return None


def _become_follower(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    branch = quorum.branches.get(row.epoch)
    if row.peer is None or row.peer == voter.name or row.peer not in quorum.voters:
        return malformed(f"{row.peer} cannot be its leader")
    if branch is None:
        return Blocked(f"that {row.peer} led epoch {row.epoch}", (row.peer,))
    if branch.leader != row.peer:
        return Unexplained("two leaders in one epoch", f"{branch.leader} led epoch {row.epoch}")
    return None


def _become_candidate(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    if row.epoch == 0:
        return Unexplained("candidate without its own vote", "no node has voted in epoch 0")
    if voter.role == "":
        if row.epoch in quorum.branches and quorum.branches[row.epoch].leader == voter.name:
            return Unexplained("impossible change of role", "it had led this epoch")
        if voter.votes.get(row.epoch, voter.name) == voter.name:
            # the previous process voted for itself, and was killed before it reported this vote
            _stand(quorum, voter, row.epoch)
    if voter.votes.get(row.epoch) != voter.name:
        return Unexplained("candidate without its own vote")
    return None


def _become_resigned(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    if voter.role == "" and voter.votes.get(row.epoch, voter.name) != voter.name:
        return Unexplained("impossible change of role", "it voted for another")
    if row.peer is not None:
        return malformed("a resigned node names no leader")
    branch = quorum.branches.get(row.epoch)
    if branch is None:  # the previous process won the election, and was killed before it reported its new role
        return _win(quorum, voter, row.epoch)
    return None if branch.leader == voter.name else Unexplained("impossible change of role", "only a leader resigns")


def _become_unattached(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    if voter.role == "" and voter.votes.get(row.epoch) == voter.name:
        return Unexplained("vote not kept", "it had voted for itself")
    return None if row.peer is None else malformed("an unattached node names no leader")


def _become_prospective(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    return None if row.peer == voter.leader else malformed()


_ROLES: dict[str, Callable[[Quorum, ModelVoter, TraceRow], Answer]] = {
    "unattached": _become_unattached,
    "prospective": _become_prospective,
    "candidate": _become_candidate,
    "leader": _become_leader,
    "follower": _become_follower,
    "resigned": _become_resigned,
}


SLICE = 500
"""Number of committed records that the bundled KRaft applies at once before it returns to its event loop.

A batch is never split.
"""

REPORTED_EACH = 5_000
"""Maximum number of records to replay for which the bundled KRaft reports the state after every batch."""


def high_watermark(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process a high watermark: a leader commits entries, or a follower repeats its leader's high watermark."""
    if row.offset is None:
        return None  # the high watermark is not known yet
    mark, branch = row.offset, quorum.branches.get(voter.epoch)
    if row.epoch != voter.epoch or voter.role not in ("leader", "follower") or branch is None:
        return Unexplained("mark out of turn")
    if mark < voter.mark:
        return Unexplained("high watermark went back")
    if mark > voter.log.end:
        return Unexplained("mark beyond the log")
    leads = voter.role == "leader"
    answer = _may_commit(voter, branch, mark) if leads else _may_follow(quorum, voter, branch, mark)
    if answer is None:
        answer = quorum.prefix(quorum.position(voter.log.epoch, mark), row.hash)
    if answer is None:
        quorum.marks += 1
        branch.mark = max(branch.mark, mark) if leads else branch.mark
        voter.must_apply = _applied_at_once(voter, mark) if row.hash is not None else 0
        voter.mark = mark
    return answer


def _applied_at_once(voter: ModelVoter, mark: int) -> int:
    """Return the offset up to which the next rows of a node must apply entries; 0 if other rows may come first.

    A node applies SLICE records, returns to its event loop, and continues.  So other rows may interrupt a long replay,
    and entries of a later high watermark are applied after it.  A very long replay does not report every state.
    """
    replays = voter.applied < voter.mark
    if replays or not voter.applied < mark <= voter.applied + REPORTED_EACH:
        return 0
    return min(mark, voter.applied + SLICE)


def _may_commit(leader: ModelVoter, branch: Branch, mark: int) -> Answer:
    if mark <= branch.start:
        return Unexplained("mark without an entry of its epoch", f"its epoch began at offset {branch.start}")
    with_it = {name for name, end in branch.reached.items() if end >= mark and name in leader.members}
    if (lacking := leader.majority - len(with_it)) <= 0:
        return None
    held = f"only {' and '.join(sorted(with_it))} held it durably" if with_it else "no node held it durably"
    others = tuple(sorted(leader.members - with_it))
    return Blocked(f"that a majority held everything below {mark}", others, lacking, held)


def _may_follow(quorum: Quorum, voter: ModelVoter, branch: Branch, mark: int) -> Answer:
    if not quorum.holds(voter.epoch, voter.log):
        shared = quorum.common(voter.epoch, voter.log)
        return Unexplained("mark over another log than the leader's", f"the two logs share only {shared} entries")
    if branch.mark < mark and (voter.name, mark) not in quorum.snapshots:  # a snapshot contains only committed entries
        return Blocked(f"that {branch.leader} called offset {mark - 1} committed", (branch.leader,))
    return None


def applied(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process an applied offset: a node applied the next committed batch, or loaded the state of a snapshot."""
    if row.offset is None or row.hash is None or row.epoch != voter.epoch:
        return malformed()
    end = row.offset
    if voter.must_load:
        if end != voter.must_load:
            return malformed(f"it had a snapshot that ends at {voter.must_load}, and loads its state next")
        answer = _reaches(quorum, end, row.hash, "applied states differ")
        if answer is None:
            voter.applied, voter.must_load = end, 0
        return answer
    if end == voter.applied and quorum.states.get(end) == row.hash:
        return None  # the same state, reported again
    if end <= voter.applied or end > voter.mark:
        return Unexplained("applied out of order")
    is_sparse = voter.mark > voter.applied + REPORTED_EACH  # then the batch may begin above the last reported offset
    if not is_sparse and (start := quorum.batch_starts.setdefault(end, voter.applied)) != voter.applied:
        return Unexplained("batch skipped or split", f"elsewhere the batch that ends there begins at {start}")
    answer = _reaches(quorum, end, row.hash, "applied states differ")
    if answer is None:
        voter.applied = end
        voter.must_apply = 0 if end >= voter.must_apply else voter.must_apply
    return answer


def _reaches(quorum: Quorum, end: int, state: int, kind: str) -> Answer:
    """Verify that all nodes have the same state at one offset.

    kind: kind of the violation if the states differ
    """
    known = quorum.states.setdefault(end, state)
    return None if known == state else Unexplained(kind, f"the state there has hash {hash_words(known)} elsewhere")


def snapshot(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """Process a snapshot that a node took, fetched, or found when it started."""
    if row.offset is None or row.hash is None or row.epoch != voter.epoch:
        return malformed()
    if row.peer == voter.name:
        answer = _found(quorum, voter, row.offset)
    elif row.peer is not None:
        answer = _fetched(quorum, voter, row.peer, row.offset)
    else:
        answer = Unexplained("snapshot beyond what was applied") if row.offset > voter.applied else None
    answer = answer or _reaches(quorum, row.offset, row.hash, "snapshot differs from its prefix")
    if answer is None:
        quorum.snapshots.add((voter.name, row.offset))
        if row.peer is not None:
            voter.must_load = row.offset
        if row.peer not in (None, voter.name):
            voter.log = quorum.position(voter.epoch, row.offset)
            voter.flushed, voter.unflushed = row.offset, []
            quorum.note_reach(voter)
    return answer


def _found(quorum: Quorum, voter: ModelVoter, end: int) -> Answer:
    """Process a snapshot that a node found when it started.

    The previous process may have been killed before it reported this snapshot.
    """
    if voter.role != "":
        return malformed("it finds a snapshot only when it starts")
    if end > voter.log.end:
        return Unexplained("log ends below its snapshot")
    if max(branch.mark for branch in quorum.branches.values()) < end:
        return Blocked(f"that any leader called offset {end - 1} committed", tuple(quorum.voters))
    return None


def _fetched(quorum: Quorum, voter: ModelVoter, peer: str, end: int) -> Answer:
    if voter.role != "follower" or voter.leader != peer:
        return Unexplained("snapshot out of turn")
    if end < voter.mark or end < voter.applied:
        return Unexplained("snapshot below the high watermark")
    if (peer, end) not in quorum.snapshots:
        return Blocked(f"that {peer} had a snapshot that ends at {end}", (peer,))
    return None
