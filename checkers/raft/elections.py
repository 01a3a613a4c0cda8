"""Steps of elections: votes, and changes of role.

Steps of committing: high watermarks, and the states after committed entries.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from checkers.raft.quorum import (
    EMPTY,
    Answer,
    Blocked,
    Branch,
    ModelVoter,
    Quorum,
    Unexplained,
    malformed,
)
from checkers.raft.trace_row import TraceRow, hash_words


class EpochChange(Enum):
    """Ways in which a change of role may change the epoch."""

    SAME = "the same epoch"
    HIGHER = "a higher epoch"
    NOT_LOWER = "the same or a higher epoch"


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
"""(role before, role after) -> permitted change of the epoch; every other change of role is impossible."""

ROLES_AFTER_START = frozenset({"unattached", "follower", "candidate", "resigned"})


def vote(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """A node votes, once in an epoch, for itself or for a log at least as up to date as its own."""
    peer, epoch = row.peer, row.epoch
    if peer not in quorum.voters:
        return Unexplained("vote for a stranger", f"{peer} is no voter", "votes go to voters")
    given = voter.votes.get(epoch)
    if given is not None and epoch <= voter.epoch:
        if given == peer and epoch == voter.epoch:
            return None  # the same vote, reported again
        return Unexplained(
            "voted twice in one epoch", f"it voted for {given} in epoch {epoch} before", "one vote in an epoch"
        )
    if peer == voter.name:
        if voter.role != "prospective" or epoch != voter.epoch + 1:
            why = f"it was {voter.role or 'starting'} in epoch {voter.epoch}"
            return Unexplained("vote out of turn", why, "a prospective node votes for itself in the next epoch")
        if voter.flushed < voter.log.end:
            why = f"its log ended at {voter.log.end} and was durable up to {voter.flushed}"
            return malformed(f"{why}, and the log of a candidate is durable before it asks for votes")
        _stand(quorum, voter, epoch)
        voter.epoch, voter.must_run = epoch, True
        return None
    if voter.role not in ("unattached", "prospective") or epoch != voter.epoch or voter.leader is not None:
        why = f"it was {voter.role or 'starting'} in epoch {voter.epoch}, its leader {voter.leader}"
        return Unexplained("vote out of turn", why, "a node votes in its own epoch, while it knows no leader")
    log = quorum.candidacies.get((epoch, peer))
    if log is None:
        return Blocked(f"that {peer} was a candidate of epoch {epoch}", (peer,))
    if log < voter.log:
        return Unexplained(
            "vote for a log that is behind",
            f"the log of {peer} ended at {log.end} in epoch {log.epoch}, its own at {voter.log.end} "
            f"in epoch {voter.log.epoch}",
            "a vote goes only to a log at least as up to date as the voter's own (Raft, section 5.4.1)",
        )
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
    """Check quorum-state: the epoch and vote of the node in its file.

    It may contain a vote that the last process was killed before reporting.
    """
    given = voter.votes.get(row.epoch)
    if given is not None and row.peer != given:
        holds = f"a vote for {row.peer}" if row.peer else "no vote"
        return Unexplained(
            "vote not kept", f"it had voted for {given}, and holds {holds}", "a vote lasts as its epoch does"
        )
    if voter.role == "":
        if row.epoch != voter.epoch or (voter.reports_state and not voter.must_report_state):
            return malformed(f"its process had just started in epoch {voter.epoch}, and reports this once")
        voter.reports_state, voter.must_report_state = True, False
        return None
    if not voter.reports_state:
        return malformed("its process did not report at its start what its quorum-state holds")
    if row.epoch < voter.epoch:
        return Unexplained("epoch went back", f"it was in epoch {voter.epoch} before", "an epoch never goes back")
    voter.stored_epoch = row.epoch
    return None


def role(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """A node changes its role, and its epoch with it."""
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
        if role in ROLES_AFTER_START and epoch == voter.epoch:
            return None
        why = f"its process had just started in epoch {voter.epoch}"
        return Unexplained("impossible change of role", why, f"one of {', '.join(sorted(ROLES_AFTER_START))}")
    change = ROLE_CHANGES.get((voter.role, role))
    same = change in (EpochChange.SAME, EpochChange.NOT_LOWER) and epoch == voter.epoch
    higher = change in (EpochChange.HIGHER, EpochChange.NOT_LOWER) and epoch > voter.epoch
    if not same and not higher:
        why = f"it was {voter.role} in epoch {voter.epoch} before"
        return Unexplained("impossible change of role", why, change.value if change else "another role")
    alone = (voter.role, role) == ("resigned", "unattached") and epoch == voter.epoch + 1
    if higher and not alone and epoch not in quorum.epochs:
        return Blocked(f"that any node entered epoch {epoch}", quorum.others(voter))
    return None


def _has_stored(voter: ModelVoter, row: TraceRow) -> Answer:
    """Check that a node stores a new epoch, and a leader that it learns of, before it acts on them."""
    learns = row.role in ("leader", "follower") and row.peer != voter.leader
    if voter.role == "" or not voter.reports_state or not (row.epoch > voter.epoch or learns):
        return None
    if voter.stored_epoch == row.epoch:
        return None
    return malformed("its quorum-state holds an epoch and a leader before it acts on them, and no row reports that")


def _become_leader(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    epoch = row.epoch
    if (branch := quorum.branches.get(epoch)) is not None:
        return Unexplained("two leaders in one epoch", f"{branch.leader} led epoch {epoch}", "one leader an epoch")
    if row.peer != voter.name or row.offset != voter.log.end:
        return malformed(f"its log ended at {voter.log.end}, where its epoch begins")
    return _win(quorum, voter, epoch)


def _win(quorum: Quorum, voter: ModelVoter, epoch: int) -> Answer:
    """Begin a new branch, if a majority voted."""
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
        return Unexplained(
            "two leaders in one epoch",
            f"{branch.leader} led epoch {row.epoch}, and it follows {row.peer}",
            "one leader an epoch",
        )
    return None


def _become_candidate(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    if row.epoch == 0:
        why = "nodes begin in epoch 0, and a candidate raises its epoch"
        return Unexplained("candidate without its own vote", "no node has voted in epoch 0", why)
    led = row.epoch in quorum.branches and quorum.branches[row.epoch].leader == voter.name
    if voter.role == "" and led:
        return Unexplained("impossible change of role", "it had led this epoch", "a restarted leader resigns")
    if voter.role == "" and voter.votes.get(row.epoch, voter.name) == voter.name:
        # the previous process voted for itself and was killed before it reported the vote
        _stand(quorum, voter, row.epoch)
    if voter.votes.get(row.epoch) != voter.name:
        return Unexplained("candidate without its own vote", "it has not voted for itself", "its own vote first")
    return None


def _become_resigned(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    if voter.role == "" and voter.votes.get(row.epoch, voter.name) != voter.name:
        return Unexplained("impossible change of role", "it voted for another", "only a leader resigns")
    if row.peer is not None:
        return malformed("a resigned node names no leader")
    branch = quorum.branches.get(row.epoch)
    if branch is None:  # the previous process won and was killed before it reported that
        return _win(quorum, voter, row.epoch)
    if branch.leader != voter.name:
        return Unexplained("impossible change of role", f"{branch.leader} led that epoch", "only a leader resigns")
    return None


def _become_unattached(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    if voter.role == "" and voter.votes.get(row.epoch) == voter.name:
        return Unexplained("vote not kept", "it had voted for itself", "a vote survives a restart")
    return None if row.peer is None else malformed("an unattached node names no leader")


def _become_prospective(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    return None if row.peer == voter.leader else malformed(f"its leader was {voter.leader}")


_ROLES: dict[str, Callable[[Quorum, ModelVoter, TraceRow], Answer]] = {
    "unattached": _become_unattached,
    "prospective": _become_prospective,
    "candidate": _become_candidate,
    "leader": _become_leader,
    "follower": _become_follower,
    "resigned": _become_resigned,
}


SLICE = 500
"""Number of committed records that the bundled KRaft applies before its loop gets its turn; a batch is never split."""

REPORTED_EACH = 5_000
"""With at most this number to replay, it reports the state after every batch."""


def high_watermark(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """A leader calls offsets committed, or a follower repeats it."""
    if row.offset is None:
        return None  # not known yet
    mark, branch = row.offset, quorum.branches.get(voter.epoch)
    if row.epoch != voter.epoch or voter.role not in ("leader", "follower") or branch is None:
        why = f"it was {voter.role or 'starting'} in epoch {voter.epoch}"
        return Unexplained("mark out of turn", why, "a leader and its followers advance a mark")
    if mark < voter.mark:
        return Unexplained("high watermark went back", f"it was {voter.mark} before", "a mark only rises")
    if mark > voter.log.end:
        return Unexplained("mark beyond the log", f"its log ended at {voter.log.end}", "a mark in the log")
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
    """Return the offset up to which a node applies entries before it does anything else; 0 if other rows may come
    first.

    A node applies a slice, serves its loop, and continues.  So the rest of a long replay comes among other rows, and
    entries added by a later mark follow it.  A very long replay does not report each of its states.
    """
    replays = voter.applied < voter.mark
    if replays or not voter.applied < mark <= voter.applied + REPORTED_EACH:
        return 0
    return min(mark, voter.applied + SLICE)


def _may_commit(leader: ModelVoter, branch: Branch, mark: int) -> Answer:
    if mark <= branch.start:
        return Unexplained(
            "mark without an entry of its epoch",
            f"its epoch began at offset {branch.start}",
            "a leader commits older entries only together with one of its own (Raft, figure 8)",
        )
    with_it = {name for name, end in branch.reached.items() if end >= mark and name in leader.members}
    if (lacking := leader.majority - len(with_it)) <= 0:
        return None
    held = f"only {' and '.join(sorted(with_it))} held it durably" if with_it else "no node held it durably"
    others = tuple(sorted(leader.members - with_it))
    return Blocked(f"that a majority held everything below {mark}", others, lacking, held)


def _may_follow(quorum: Quorum, voter: ModelVoter, branch: Branch, mark: int) -> Answer:
    if not quorum.holds(voter.epoch, voter.log):
        why = f"its log and {branch.leader}'s differ from offset {quorum.common(voter.epoch, voter.log)} on"
        return Unexplained("mark over another log than the leader's", why, "the leader's log, or a prefix of it")
    if branch.mark < mark and (voter.name, mark) not in quorum.snapshots:  # what a snapshot holds was committed
        return Blocked(f"that {branch.leader} called offset {mark - 1} committed", (branch.leader,))
    return None


def applied(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """A node applies the next committed batch, or has loaded the state of a snapshot."""
    if row.offset is None or row.hash is None or row.epoch != voter.epoch:
        return malformed(f"it was in epoch {voter.epoch}")
    end = row.offset
    if voter.must_load:
        if end != voter.must_load:
            return malformed(f"it had a snapshot that ends at {voter.must_load}, and loads its state next")
        if quorum.states.setdefault(end, row.hash) != row.hash:
            return _states_differ(quorum, end)
        voter.applied, voter.must_load = end, 0
        return None
    if end == voter.applied and quorum.states.get(end) == row.hash:
        return None  # the same state, reported again
    if end <= voter.applied or end > voter.mark:
        why = f"it had applied {voter.applied}, and its mark was {voter.mark}"
        return Unexplained("applied out of order", why, "committed entries, each once, in order")
    is_sparse = voter.mark > voter.applied + REPORTED_EACH  # so the batch may begin behind what it reported before
    if not is_sparse and (start := quorum.batch_starts.setdefault(end, voter.applied)) != voter.applied:
        return Unexplained(
            "batch skipped or split",
            f"it had applied up to {voter.applied}, and the batch that ends at {end} began at {start} before",
            "every node applies the same batches, one after another",
        )
    if quorum.states.setdefault(end, row.hash) != row.hash:
        return _states_differ(quorum, end)
    voter.applied = end
    voter.must_apply = 0 if end >= voter.must_apply else voter.must_apply
    return None


def _states_differ(quorum: Quorum, end: int) -> Unexplained:
    why = f"the state at offset {end} has hash {hash_words(quorum.states[end])} elsewhere"
    return Unexplained("applied states differ", why, "the same entries lead to the same state")


def snapshot(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """A node has a snapshot: it took one, fetched one, or found one when it started."""
    if row.offset is None or row.hash is None or row.epoch != voter.epoch:
        return malformed(f"it was in epoch {voter.epoch}")
    if row.peer is None:
        answer = _took(voter, row.offset)
    elif row.peer == voter.name:
        answer = _found(quorum, voter, row.offset)
    else:
        answer = _fetched(quorum, voter, row.peer, row.offset)
    if answer is None and quorum.states.setdefault(row.offset, row.hash) != row.hash:
        why = f"the state at offset {row.offset} has hash {hash_words(quorum.states[row.offset])} elsewhere"
        answer = Unexplained("snapshot differs from its prefix", why, "a snapshot is the state at its end")
    if answer is None:
        quorum.snapshots.add((voter.name, row.offset))
        if row.peer is not None:
            voter.must_load = row.offset
        if row.peer not in (None, voter.name):
            voter.log = quorum.position(voter.epoch, row.offset)
            voter.flushed, voter.unflushed = row.offset, []
            quorum.note_reach(voter)
    return answer


def _took(voter: ModelVoter, end: int) -> Answer:
    if end <= voter.applied:
        return None
    why = f"it had applied {voter.applied}"
    return Unexplained("snapshot beyond what was applied", why, "a snapshot holds committed and applied entries only")


def _found(quorum: Quorum, voter: ModelVoter, end: int) -> Answer:
    """Handle a snapshot found at start, which the last process may have been killed before reporting."""
    if voter.role != "":
        return malformed("it finds a snapshot only when it starts")
    if end > voter.log.end:
        return Unexplained("log ends below its snapshot", f"its log ended at {voter.log.end}", "a log that goes on")
    if max(branch.mark for branch in quorum.branches.values()) < end:
        return Blocked(f"that any leader called offset {end - 1} committed", tuple(quorum.voters))
    return None


def _fetched(quorum: Quorum, voter: ModelVoter, peer: str, end: int) -> Answer:
    if voter.role != "follower" or voter.leader != peer:
        why = f"it was {voter.role or 'starting'} in epoch {voter.epoch}, its leader {voter.leader}"
        return Unexplained("snapshot out of turn", why, "a follower fetches the snapshot of its leader")
    if end < voter.mark or end < voter.applied:
        why = f"its high watermark was {voter.mark}"
        return Unexplained("snapshot below the high watermark", why, "a snapshot that brings a follower further")
    if (peer, end) not in quorum.snapshots:
        return Blocked(f"that {peer} had a snapshot that ends at {end}", (peer,))
    return None
