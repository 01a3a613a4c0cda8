"""Replays the traces of all nodes through an executable model of KRaft, merged by cause and effect.

The model covers voters, epochs, votes, logs and marks (Ongaro & Ousterhout 2014; KIP-595, fetch; KIP-996, pre-vote).
It takes one trace row at a time.  `QuorumModel.step` answers

    None         the row is a step of the protocol, and the model has taken it
    Blocked      the row needs a fact that other nodes have not yet reported
    Unexplained  the protocol allows no step that writes this row, no matter what other nodes record later

The state is in `quorum.py`.  The steps are functions over it: `lives.py`, `elections.py`, `log_steps.py` and
`commit_steps.py`.  Facts are only ever added (a vote, a leader, how far a log reached), so a row that can be explained
stays explainable.  The order in which nodes are replayed therefore changes nothing, and no clock is compared.

Each node's rows are taken one after another until one needs a fact that another node has not yet reported.  Then the
next node goes on.  When no node can go on, the rows at which they stand have no explanation.

Which row is to blame?  A row that waits only for nodes that stand still themselves may follow from what is wrong there.
It is left out.  If all rows wait like this, those that wait for a majority are to blame: the others follow a leader.

Cost: linear in the rows, about 3 us each in Python; memory: one row group of each trace, and 300 bytes an offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from checkers.raft.model import commit_steps, elections, lives, log_steps
from checkers.raft.model.answers import Answer, Blocked, NotModelled, Unexplained
from checkers.raft.model.quorum import ModelVoter, Quorum
from checkers.raft.trace_row import TraceRow


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
    "sessions": log_steps.of_brokers,
    "broker": log_steps.of_brokers,
    "fatal": lives.end_of_process,
    "stop": lives.end_of_process,
}


@dataclass(frozen=True, slots=True)
class Stop:
    """A row that no step explains."""

    node: str
    row: TraceRow
    answer: Blocked | Unexplained


@dataclass(frozen=True, slots=True)
class Replayed:
    """stops: the rows to blame, the lowest epoch first.  unknown: why some rows were not replayed; then
    only rows that nothing could explain are to blame."""

    model: QuorumModel
    rows: int = 0
    stops: tuple[Stop, ...] = ()
    unknown: tuple[str, ...] = ()


class _TraceReader:
    """One node's rows, and the row that comes next."""

    def __init__(self, node: str, rows: Iterator[TraceRow]) -> None:
        self.node = node
        self.taken = 0
        self.answer: Blocked | Unexplained | None = None
        self.unknown = ""
        self._rows = rows
        self.next = next(rows, None)

    def advance(self, model: QuorumModel) -> bool:
        """Take rows until one is not explained; whether at least one was taken."""
        before = self.taken
        while self.next is not None and not self.unknown and not isinstance(self.answer, Unexplained):
            if self.next.seq != self.taken:
                self.unknown = f"{self.node}: seq {self.next.seq} comes where seq {self.taken} is missing"
                break
            try:
                self.answer = model.step(self.node, self.next)
            except NotModelled as problem:
                self.unknown = str(problem)
                break
            if self.answer is not None:
                break
            self.taken += 1
            self.next = next(self._rows, None)
        return self.taken > before


def replay(traces: Mapping[str, Iterator[TraceRow]], until: Mapping[str, int]) -> Replayed:
    """traces: of every voter.  until: node -> the last seq whose causes are all in the traces; beyond it a row that
    waits is not judged."""
    model = QuorumModel(list(traces))
    readers = [_TraceReader(node, rows) for node, rows in traces.items()]
    moved = True
    while moved:
        moved = False
        for reader in readers:
            moved |= reader.advance(model)
    unknown = tuple(reader.unknown for reader in readers if reader.unknown)
    standing = {r.node: Stop(r.node, r.next, r.answer) for r in readers if r.next and r.answer}
    if unknown:  # a row that waits may wait for what could not be replayed
        standing = {node: stop for node, stop in standing.items() if isinstance(stop.answer, Unexplained)}
    return Replayed(model, sum(reader.taken for reader in readers), _to_blame(standing, until), unknown)


def _to_blame(standing: Mapping[str, Stop], until: Mapping[str, int]) -> tuple[Stop, ...]:
    judged = {
        node: stop
        for node, stop in standing.items()
        if isinstance(stop.answer, Unexplained) or stop.row.seq <= until.get(node, -1)
    }
    roots = [stop for stop in judged.values() if not _may_follow_from(stop, judged)]
    together = [s for s in judged.values() if isinstance(s.answer, Blocked) and len(s.answer.suppliers) > 1]
    ranked = roots or together or list(judged.values())
    return tuple(sorted(ranked, key=lambda s: (isinstance(s.answer, Blocked), s.row.epoch, s.node)))


def _may_follow_from(stop: Stop, standing: Mapping[str, Stop]) -> bool:
    """Whether nodes that stand still themselves could still report what this row waits for."""
    answer = stop.answer
    if isinstance(answer, Unexplained):
        return False
    return sum(node in standing for node in answer.suppliers) >= answer.needed
