"""Trace validation: KRaft allows the traces of all nodes together.

An executable model of the protocol replays all traces together, in an order in which causes precede effects.  The first
row that no step of the model explains is the witness.  Other checkers test single rules over the same rows: one leader
in an epoch, one vote, rising marks.  The model decides whether each row was possible after the earlier rows of its own
node and of the other nodes.

The traces of all voters are needed, because a missing row could be the cause of any other row.  If a trace is missing,
the verdict is unknown.  A row that waits for a cause is judged only if it was written before its node's last copy was
taken, because all traces were collected after this copy.

There is only one part, because the replay needs all nodes at once.  Budget: ROWS_MAX rows.

The model covers voters, epochs, votes, logs and marks (Ongaro & Ousterhout 2014; KIP-595, fetch; KIP-996, pre-vote).
It processes one trace row at a time.  `QuorumModel.step` returns

    None         the row is a step of the protocol, and the model has processed the row
    Blocked      the row needs a fact that other nodes have not yet reported
    Unexplained  the protocol allows no step that writes this row, no matter what other nodes record later

`quorum.py` defines the state; `quorum.py` and `elections.py` define the steps as functions over this state.  Facts are
only ever added (a vote, a leader, an offset that a log reached), so a row that can be explained stays explainable.
Therefore the order in which nodes are replayed changes nothing, and no clocks are compared.

The rows of a node are replayed one after another until a row needs a fact that another node has not yet reported.  Then
the next node continues.  When no node can continue, the current rows of the nodes have no explanation.

Then the rows to blame are selected.  A row that waits only for nodes that wait, too, may follow from an error at these
nodes, so it is not reported.  If this applies to all rows, the rows that wait for a majority are reported, because all
other nodes follow a leader.

Cost: linear in the rows, about 3 us each in Python.  Memory: one row group of each trace, and 300 bytes per offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq

from checkers.base.checker import BeyondBudget, Budget, Checker, Part
from checkers.base.stored_rows import trace_row
from checkers.base.stored_run import StoredRun, gaps, node_files
from checkers.base.verdict import Verdict, Witness, conclude
from checkers.raft import elections, quorum
from checkers.raft.quorum import Answer, Blocked, ModelVoter, NotModelled, Quorum, Unexplained
from checkers.raft.reading import nothing_of, read_rows
from checkers.raft.rules import LACKING_LEADER, TraceRow, in_trace


class QuorumModel:
    """An executable model of KRaft.

    names: names of all voters
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.quorum = Quorum(names)

    def step(self, name: str, row: TraceRow) -> Answer:
        """Process one row of a node.  Raises NotModelled."""
        voter = self.quorum.voters[name]
        answer = None if row.event in _OF_A_START else quorum.in_order(voter, row)
        answer = answer or _STEPS[row.event](self.quorum, voter, row)
        if answer is None:
            voter.seq = row.seq
        return answer

    def lost(self) -> tuple[int, int, int] | None:
        """Check leader completeness after the last row was processed.

        Returns (epoch, mark of that epoch, later epoch whose leader lacked the mark) or None.
        """
        epoch, mark = 0, 0
        for later in sorted(self.quorum.branches):
            branch = self.quorum.branches[later]
            committed = self.quorum.position(epoch, mark)
            if mark > 0 and not (branch.start >= mark and self.quorum.holds(later, committed)):
                return epoch, mark, later
            if branch.mark > mark:
                epoch, mark = later, branch.mark
        return None


_OF_A_START = ("disk", "start")
_STEPS: dict[str, Callable[[Quorum, ModelVoter, TraceRow], Answer]] = {
    "disk": quorum.disk,
    "start": quorum.start,
    "vote": elections.vote,
    "quorum-state": elections.quorum_state,
    "role": elections.role,
    "append": quorum.append,
    "flush": quorum.flush,
    "truncate": quorum.truncate,
    "high-watermark": elections.high_watermark,
    "applied": elections.applied,
    "snapshot": elections.snapshot,
    "voters": quorum.voters,
    "refused": quorum.no_step,
    "sessions": quorum.no_step,
    "broker": quorum.no_step,
    "fatal": quorum.end_of_process,
    "stop": quorum.end_of_process,
}


@dataclass(frozen=True, slots=True)
class Stop:
    """A row that no step explains."""

    node: str
    row: TraceRow
    answer: Blocked | Unexplained


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of a replay.

    rows: number of rows that the model explained
    stops: the rows to blame, the lowest epoch first
    unknown: reasons if some rows were not replayed; then only rows that are `Unexplained` are to blame
    """

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
        """Process rows until the model cannot explain one; return True if at least one row was processed."""
        before = self.taken
        while self.next is not None and not self.unknown and not isinstance(self.answer, Unexplained):
            if self.next.seq != self.taken:
                self.unknown = f"{self.node}: the trace has seq {self.next.seq} where seq {self.taken} is expected"
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
    """Replay the traces of all voters.

    traces: node -> its rows
    until: node -> the last seq whose causes are certainly in the traces; a later row that waits is not judged
    """
    model = QuorumModel(list(traces))
    readers = [_TraceReader(node, rows) for node, rows in traces.items()]
    moved = True
    while moved:
        moved = False
        for reader in readers:
            moved |= reader.advance(model)
    unknown = tuple(reader.unknown for reader in readers if reader.unknown)
    standing = {r.node: Stop(r.node, r.next, r.answer) for r in readers if r.next and r.answer}
    if unknown:  # a blocked row may depend on a row that could not be replayed
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
    """Return True if nodes that wait, too, could still report the fact for which this row waits."""
    answer = stop.answer
    if isinstance(answer, Unexplained):
        return False
    return sum(node in standing for node in answer.suppliers) >= answer.needed


ROWS_MAX = 20_000_000


@dataclass(frozen=True, slots=True)
class ReplayFinding:
    """Finding of the replay.

    looked_at: numbers of rows, leaders and high watermarks that the replay processed
    unknown: reasons if some rows were not replayed
    """

    witnesses: Sequence[Witness]
    looked_at: Mapping[str, int]
    unknown: Sequence[str]


def _split(run: StoredRun) -> list[Part]:
    traces = node_files(run.trace)
    if not traces or set(run.servers) - set(traces):
        return []
    return [Part(tuple(traces.values()), {"nodes": list(traces), "until": run.copied_seqs})]


def _judge(part: Part, budget: Budget) -> ReplayFinding:
    paths = dict(zip(part.params["nodes"], part.paths, strict=True))
    rows = sum(pq.read_metadata(path).num_rows for path in part.paths)
    if rows > (most := min(ROWS_MAX, budget.steps)):
        raise BeyondBudget(f"{rows} trace rows are beyond the budget of {most}")
    replayed = replay({node: read_rows(path) for node, path in paths.items()}, part.params["until"])
    model = replayed.model
    witnesses = [_witness(stop, paths[stop.node], model.quorum.voters[stop.node]) for stop in replayed.stops]
    if not witnesses and not replayed.unknown and (lost := model.lost()) is not None:
        witnesses.append(_lost(*lost, model.quorum.branches[lost[2]].leader))
    counts = {
        "rows explained": replayed.rows,
        "leaders": len(model.quorum.branches) - 1,
        "high watermarks": model.quorum.marks,
    }
    return ReplayFinding(witnesses, counts, replayed.unknown)


def _witness(stop: Stop, path: str, voter: ModelVoter) -> Witness:
    """Return the witness of a row that no step explains.

    voter: state of the node before this row
    """
    row, answer = stop.row, stop.answer
    rows = [trace_row(path, seq) for seq in (row.seq - 1, row.seq) if seq >= 0]
    what = f"{_words(stop)} ({in_trace(rows[-1])})."
    before = f"Before this row {voter.in_words}."
    if isinstance(answer, Blocked):
        kind, expected = "row without a cause", f"a trace of another node shows {answer.missing}"
        why = f"No trace shows {answer.missing}{': ' if answer.shown else ''}{answer.shown}."
    else:
        kind, expected = answer.kind, "a row that some step of the protocol writes"
        why = f"{answer.why[0].upper()}{answer.why[1:]}." if answer.why else before
    return Witness.of(
        kind,
        f"{what} {why}",
        rows,
        nodes=[stop.node],
        epoch=row.epoch,
        offset=row.offset,
        why=[what, *dict.fromkeys((why, before))],
        expected=expected,
    )


_WORDS = {
    "vote": "voted for {row.peer} in epoch {row.epoch}",
    "quorum-state": "held {vote} of epoch {row.epoch} on its disk",
    "role": "became {row.role}{of} in epoch {row.epoch}",
    "high-watermark": "reported in epoch {row.epoch} that everything below offset {row.offset} is committed",
    "disk": "started with the disk {row.detail}",
    "start": "started in epoch {row.epoch} with a log that ends at offset {row.offset}",
    "snapshot": "reported a snapshot{of} that ends at offset {row.offset} in epoch {row.epoch}",
    "append": "reported an append up to offset {row.offset} in epoch {row.epoch}",
    "flush": "reported a flush up to offset {row.offset} in epoch {row.epoch}",
    "truncate": "truncated its log to offset {row.offset} in epoch {row.epoch}",
    "applied": "had applied everything below offset {row.offset} in epoch {row.epoch}",
}
"""Event -> clause that describes its row.

of: " of " and the name of the other node in the row, or ""
vote: the vote in the row, in words
"""


def _words(stop: Stop) -> str:
    row, node = stop.row, stop.node
    names = row.role == "follower" or (row.event == "snapshot" and row.peer not in (None, node))
    words = _WORDS.get(row.event, 'reported "{row.event}" in epoch {row.epoch}')
    vote = f"a vote for {row.peer}" if row.peer else "no vote"
    return f"{node} {words.format(row=row, of=f' of {row.peer}' if names else '', vote=vote)}"


def _lost(epoch: int, mark: int, later: int, leader: str) -> Witness:
    return Witness.of(
        LACKING_LEADER,
        f"Everything below offset {mark} was committed in epoch {epoch}, but {leader}, leader of epoch {later}, did "
        "not hold it.",
        nodes=[leader],
        epoch=later,
        offset=mark - 1,
        why=[f"The log of {leader} in epoch {later} does not begin with what was committed in epoch {epoch}."],
        expected="a leader holds every entry committed in an earlier epoch",
    )


def _combine(run: StoredRun, findings: Sequence[ReplayFinding]) -> Verdict:
    looked_at = {"nodes": len(node_files(run.trace)), **{k: v for f in findings for k, v in f.looked_at.items()}}
    unknown = [words for f in findings for words in f.unknown] + gaps(run, "traces")
    witnesses = [w for f in findings for w in f.witnesses]
    if not witnesses:  # rows after the first unexplained row of an epoch are not checked
        unknown += nothing_of(looked_at, "rows explained", "leaders", "high watermarks")
    return conclude(witnesses, looked_at, unknown)


TRACE_VALIDATION = Checker(
    name="trace-validation",
    title="Every step in the traces is one that KRaft allows",
    question="Does a step of the protocol explain every row of every node's trace?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"traces", "kraft-steps"}),
)
