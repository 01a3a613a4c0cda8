"""The life of a process: what a restart finds again, and which rows may follow one another.

A row is written after its effect, so a kill can hide the last effect of a process: an epoch or a vote on disk, an
append, a truncation, a fetched snapshot.  A start row shows the log and the epoch that were found again.  The model
accepts what one hidden effect can explain, and a hidden vote counts for every candidate of its epoch.

A start on a disk that replaced another one finds nothing: the node is another replica (`raft/rules.py`).
What the replica before it voted and held stays a fact: the row of a leader that is replayed later may need it.
"""

from __future__ import annotations

from checkers.raft.model.answers import Answer, Blocked, NotModelled, Unexplained, malformed
from checkers.raft.model.quorum import EMPTY, ModelVoter, Position, Quorum
from checkers.raft.trace_row import TraceRow


def disk(voter: ModelVoter, row: TraceRow) -> Answer:
    """A process names its disk, right before its start row; a kill may have come between the two."""
    if row.incarnation <= voter.incarnation or not row.detail:
        return malformed(f"incarnation {row.incarnation} follows incarnation {voter.incarnation}")
    if voter.disk not in ("", row.detail):
        voter.epoch, voter.log, voter.flushed, voter.unflushed = 0, EMPTY, 0, []
        voter.role, voter.leader, voter.votes = "", None, {}
    voter.disk, voter.incarnation, voter.ended = row.detail, row.incarnation - 1, True
    return None


def start(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """A process starts, and finds again what the last one had made durable.  Raises NotModelled."""
    if row.incarnation != voter.incarnation + 1 or row.offset is None:
        return malformed(f"incarnation {row.incarnation} follows incarnation {voter.incarnation}")
    if voter.incarnation < 0 and row.offset > 0:
        raise NotModelled(f"{voter.name}: its trace begins with a log of {row.offset} entries")
    if row.epoch < voter.epoch:
        return Unexplained("epoch went back", f"it was in epoch {voter.epoch} before", "an epoch never goes back")
    if row.epoch > voter.epoch + 1 and row.epoch not in quorum.epochs:
        return Blocked(f"that any node entered epoch {row.epoch}", quorum.others(voter))
    log = _recovered(quorum, voter, row.offset, row.hash)
    if not isinstance(log, Position):
        return log
    if (wrong := quorum.prefix(log, row.hash)) is not None:
        return wrong
    quorum.epochs.add(row.epoch)
    if row.epoch not in voter.votes:
        quorum.hidden_votes[row.epoch].add(voter.name)
    voter.incarnation, voter.ended, voter.role, voter.leader = row.incarnation, False, "", None
    voter.epoch, voter.log, voter.flushed, voter.unflushed = row.epoch, log, log.end, []
    voter.mark, voter.applied, voter.must_run, voter.must_apply, voter.must_load = -1, 0, False, 0, 0
    voter.must_report_state, voter.stored_epoch = voter.reports_state, None
    voter.named_at, voter.must_name = None, False
    return None


def _recovered(quorum: Quorum, voter: ModelVoter, end: int, prefix_hash: int | None) -> Position | Answer:
    """The log that a restart found, or why it cannot be."""
    following = voter.role == "follower" and voter.epoch in quorum.branches
    if following and (voter.leader, end) in quorum.snapshots:  # it may have fetched that snapshot without reporting it
        behind = quorum.position(voter.epoch, end)
        if quorum.prefixes.get(behind) == prefix_hash:
            return behind
    if end > voter.log.end:
        if voter.role == "leader":
            branch = quorum.branches[voter.epoch]
            branch.end = max(branch.end, end)
            return Position(voter.epoch, end)
        if following and quorum.holds(voter.epoch, voter.log):
            if end > quorum.branches[voter.epoch].end:
                return Blocked(f"that {voter.leader} wrote offset {end - 1}", (str(voter.leader),))
            return quorum.position(voter.epoch, end)
        if following:
            return Blocked(f"that {voter.leader} had a snapshot that ends at {end}", (str(voter.leader),))
        return Unexplained(
            "more recovered than written",
            f"its log ended at {voter.log.end}, and a {voter.role or 'starting'} node appends nothing",
            "a restart finds what was written",
        )
    was_cut = following and not quorum.holds(voter.epoch, voter.log) and end >= quorum.common(voter.epoch, voter.log)
    if end < voter.flushed and not was_cut:
        return Unexplained(
            "flushed entries lost",
            f"everything below offset {voter.flushed} was flushed before",
            "a restart finds what was flushed",
        )
    return quorum.position(voter.log.epoch, end)


def end_of_process(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """A process ends, and reports it."""
    voter.ended = True
    return None


def in_order(voter: ModelVoter, row: TraceRow) -> Answer:
    """What must come first, before rows of any kind."""
    if voter.ended or row.incarnation != voter.incarnation:
        return malformed(
            f"the process of incarnation {voter.incarnation} had {'ended' if voter.ended else 'not ended'}"
        )
    if voter.must_load and row.event not in ("applied", "fatal"):
        return malformed(f"it had a snapshot that ends at {voter.must_load}, and had not loaded its state")
    if voter.role == "" and row.event not in ("role", "flush", "quorum-state", "snapshot", "applied", "fatal"):
        return malformed("its process had started, and had not reported a role")
    if voter.must_report_state and row.event not in ("quorum-state", "fatal"):
        return malformed("its process had started, and had not reported what its quorum-state holds")
    if voter.must_name and row.event not in ("voters", "fatal"):
        return malformed(
            f"the entry at offset {voter.named_at} that named voters was removed, and who votes comes next"
        )
    acts = (row.event, row.epoch) == ("role", voter.stored_epoch)
    if voter.stored_epoch is not None and not acts and row.event != "fatal":
        return malformed(f"it had stored epoch {voter.stored_epoch}, and a role in that epoch comes next")
    if voter.must_run and (row.event, row.role) != ("role", "candidate") and row.event not in ("vote", "fatal"):
        return malformed("it had voted for itself, and a candidate's role comes next")
    again = row.event == "high-watermark" and row.offset == voter.mark
    if voter.must_apply and row.event not in ("applied", "fatal") and not again:
        return malformed(f"it had applied {voter.applied} of the {voter.mark} entries that it knew committed")
    return None
