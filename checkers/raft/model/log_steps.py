"""Steps of a log: what is appended, flushed and truncated."""

from __future__ import annotations

from checkers.raft.model.answers import Answer, Blocked, Unexplained, malformed
from checkers.raft.model.quorum import ModelVoter, Position, Quorum
from checkers.raft.trace_row import TraceRow


def append(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """A leader writes an entry, or a follower takes entries of its leader."""
    if row.offset is None or row.offset <= voter.log.end:
        return malformed(f"its log ended at {voter.log.end} before")
    answer = _append(quorum, voter, row, row.offset)
    if answer is None:
        voter.unflushed.append(row.offset)
    return answer


def _append(quorum: Quorum, voter: ModelVoter, row: TraceRow, end: int) -> Answer:
    if voter.role == "leader":
        return _write(quorum, voter, row, end)
    if voter.role != "follower":
        why = f"it was {voter.role or 'starting'} in epoch {voter.epoch}"
        return Unexplained("append out of turn", why, "only a leader and its followers append")
    branch = quorum.branches[voter.epoch]
    if not quorum.holds(voter.epoch, voter.log):
        return Unexplained(
            "append to another log than the leader's",
            f"its log shares only {quorum.common(voter.epoch, voter.log)} of {voter.log.end} entries with "
            f"{branch.leader}'s",
            "a follower appends only where its log is equal to the leader's up to there",
        )
    if branch.end < end:
        return Blocked(f"that {branch.leader} wrote offset {end - 1} in epoch {voter.epoch}", (branch.leader,))
    log = quorum.position(voter.epoch, end)
    if log.epoch != row.epoch:
        why = f"{branch.leader}'s entry at offset {end - 1} is of epoch {log.epoch}"
        return Unexplained("entry of another epoch", why, "a follower holds what its leader holds")
    voter.log = log
    return None


def _write(quorum: Quorum, voter: ModelVoter, row: TraceRow, end: int) -> Answer:
    """A leader appends at the end of its own branch; its first entry is one LeaderChange.

    The first leader of a cluster whose voters can change appends two more with it: `kraft.version`, and the voters."""
    branch = quorum.branches[voter.epoch]
    opening = (1, 3) if voter.names_voters else (1,)
    if row.epoch != voter.epoch or (branch.end == branch.start and end - branch.start not in opening):
        return malformed(f"its branch of epoch {voter.epoch} began at {branch.start} and ended at {branch.end}")
    branch.end = end
    voter.log = Position(voter.epoch, end)
    return None


def flush(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """The log of a node is durable up to an offset.  What it appended while the flush went on is not."""
    if row.epoch != voter.epoch or row.offset is None or row.offset not in (voter.flushed, *voter.unflushed):
        return malformed(
            f"its log ended at {voter.log.end} and was durable up to {voter.flushed}, in epoch {voter.epoch}"
        )
    voter.flushed = row.offset
    voter.unflushed = [end for end in voter.unflushed if end > row.offset]
    quorum.note_reach(voter)
    return None


def truncate(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """A follower removes what differs from the log of its leader."""
    if row.offset is None or row.epoch != voter.epoch or not 0 <= row.offset < voter.log.end:
        return malformed(f"its log ended at {voter.log.end}, in epoch {voter.epoch}")
    if voter.role != "follower":
        why = f"it was {voter.role or 'starting'} in epoch {voter.epoch}"
        return Unexplained("truncation out of turn", why, "only a follower truncates")
    if row.offset < voter.mark:
        why = f"its high watermark was {voter.mark}"
        return Unexplained("truncation below the high watermark", why, "committed entries are never removed")
    shared = quorum.common(voter.epoch, voter.log)
    if row.offset < shared:
        return Unexplained(
            "truncation of what the leader holds",
            f"its log and {voter.leader}'s are equal below offset {shared}",
            "a follower removes only what differs from its leader's log",
        )
    voter.log = quorum.position(voter.log.epoch, row.offset)
    voter.must_name = voter.named_at is not None and voter.named_at >= row.offset
    voter.flushed = min(voter.flushed, row.offset)
    voter.unflushed = [end for end in voter.unflushed if end < row.offset]
    if row.offset > voter.flushed:
        voter.unflushed.append(row.offset)
    quorum.note_reach(voter)
    return None


def voters(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """The log of a node names other voters than before.  They count at once."""
    members = frozenset((row.detail or "").split())
    voter.names_voters = row.offset is None
    voter.must_name = False
    if row.offset is None and members <= quorum.voters.keys():
        voter.members, voter.named_at = members, None  # those of the configuration
        return None
    if (
        row.offset is None
        or row.epoch != voter.epoch
        or not 0 <= row.offset < voter.log.end
        or not members <= quorum.voters.keys()
    ):
        return malformed(f"its log ended at {voter.log.end}, in epoch {voter.epoch}")
    entry = (quorum.position(voter.log.epoch, row.offset + 1).epoch, row.offset)
    known = quorum.named.setdefault(entry, members)
    if known != members:
        why = f"elsewhere the entry at offset {row.offset} names {', '.join(sorted(known))}"
        return Unexplained("other voters in one entry", why, "equal entries name equal voters")
    voter.members, voter.named_at = members, row.offset
    return None


def refused(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """A node takes nothing of what another one sent damaged."""
    return None


def of_brokers(quorum: Quorum, voter: ModelVoter, row: TraceRow) -> Answer:
    """What a node reports of brokers is no step of the quorum."""
    return None
