"""Steps of committing: high watermarks, and the states that committed entries lead to."""

from __future__ import annotations

from checkers.raft.model.quorum import (
    Answer,
    Blocked,
    Branch,
    ModelVoter,
    Quorum,
    Unexplained,
    malformed,
)
from checkers.raft.trace_row import TraceRow, hash_words

SLICE = 500
"""The bundled KRaft applies so many committed records before its loop gets its turn; one batch is never parted."""

REPORTED_EACH = 5_000
"""With at most these to replay, it reports the state behind every batch."""


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
    """The offset up to which a node applies entries before it does anything else; 0 if other rows may come first.

    A node applies a slice, serves its loop, and goes on.  So the rest of a long replay comes among other rows, and what
    a later mark adds to it comes behind it.  A very long replay does not report each of its states."""
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
    if branch.mark < mark:
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
    start = quorum.batch_starts.setdefault(end, voter.applied)
    if start != voter.applied:
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
    """The last process may have been killed before it reported this snapshot."""
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
