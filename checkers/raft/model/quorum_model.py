"""An executable model of KRaft that replays what nodes report: voters, epochs, votes, logs and marks.

Ongaro & Ousterhout 2014; KIP-595 (fetch), KIP-996 (pre-vote).  The model takes one trace row at a time.  `step` answers

    None         the row is a step of the protocol, and the model has taken it
    Blocked      the row needs a fact that other nodes have not yet reported
    Unexplained  the protocol allows no step that writes this row, whatever other nodes record later

Facts are only ever added (a vote, a leader, how far a log reached), so a row that can be explained stays explainable.
The order in which nodes are replayed therefore changes nothing, and no clock is compared (`trace_replay.py`).

The state is in `quorum.py`.  The steps are functions over it: `lives.py`, `elections.py`, `log_steps.py` and
`commit_steps.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from checkers.raft.model import commit_steps, elections, lives, log_steps
from checkers.raft.model.quorum import ModelVoter, Quorum
from checkers.raft.model.trace_row import Answer, TraceRow


class QuorumModel:
    """names: every voter."""

    def __init__(self, names: Sequence[str]) -> None:
        self.quorum = Quorum(names)

    def step(self, name: str, row: TraceRow) -> Answer:
        """Take one row of a node.  Raises NotModelled."""
        voter = self.quorum.voters[name]
        if row.event == "disk":
            answer = lives.disk(voter, row)
        elif row.event == "start":
            answer = lives.start(self.quorum, voter, row)
        else:
            answer = lives.in_order(voter, row) or _STEPS[row.event](self.quorum, voter, row)
        if answer is None:
            voter.seq = row.seq
        return answer

    def lost(self) -> tuple[int, int, int] | None:
        """Leader completeness, once all rows are taken: (epoch, mark, later epoch whose leader lacked it) or None."""
        epoch, mark = 0, 0
        for later in sorted(self.quorum.branches):
            branch = self.quorum.branches[later]
            committed = self.quorum.position(epoch, mark)
            if mark > 0 and not (branch.start >= mark and self.quorum.holds(later, committed)):
                return epoch, mark, later
            if branch.mark > mark:
                epoch, mark = later, branch.mark
        return None


_STEPS: dict[str, Callable[[Quorum, ModelVoter, TraceRow], Answer]] = {
    "vote": elections.vote,
    "quorum-state": elections.quorum_state,
    "role": elections.role,
    "append": log_steps.append,
    "flush": log_steps.flush,
    "truncate": log_steps.truncate,
    "high-watermark": commit_steps.high_watermark,
    "applied": commit_steps.applied,
    "snapshot": commit_steps.snapshot,
    "voters": log_steps.voters,
    "refused": log_steps.refused,
    "fatal": lives.end_of_process,
    "stop": lives.end_of_process,
}
