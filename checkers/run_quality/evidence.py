"""Is the evidence whole?  Nothing on which a verdict depends may be missing, cut short or changed after the run.

Three kinds of proof are used:

* The journal (`record/journal.py`).  Its last event counts all rows of the history.  The count does not fit if the
  history was cut short, lost a row or gained one.
* The manifest (`sealing/manifest.py`).  It binds the size and the hash of every primary file, and it is signed.
* Agreement of what different hands recorded (`contradictions.py`).

A difference makes the run *unknown*, never invalid: damaged evidence shows nothing about the system.  The other
checkers go on with the remaining evidence.

The history is read in parts, a few columns at a time, so its length does not matter.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Ground, Part
from checkers.base.clocks import one_clock
from checkers.base.history import MalformedHistory, Type
from checkers.base.run_evidence import conclude, numbers
from checkers.base.stored_run import StoredRun, before_heal
from checkers.base.verdict import DOUBTED, Verdict
from checkers.record.files import BrokenFile
from checkers.record.journal import FINAL_READS, FORMAT, JOURNAL, MAIN, PHASES, Begun
from checkers.record.outcome import RunOutcome
from checkers.record.reading import TEST
from checkers.run_quality import contradictions
from checkers.sealing.codes import dictionary_codes
from checkers.sealing.history_rows import parts_of_history, read_rows
from checkers.sealing.manifest import SEALED, STREAM, broken_bonds

SHOWN = 8
"""Differences of one kind that are named; the rest are counted."""
CLOCK_ERROR_NS_MAX = 5_000_000_000
"""A clock of another machine that is known less well cannot be compared.  Readings differ by a round trip."""

ROUNDED_NS, ROWS_TO_SEE_ROUNDING = 10_000_000, 20
"""Times that are all multiples of this were rounded."""
COPIES_OF = "copies of "
HISTORY_ITSELF = "the history"
"""It differs from the manifest, so what its rows show need not have happened."""

_COPY_OF = re.compile(r"copy \d+ of (\S+) cannot be right")
_COLUMNS = ["time_ns", "type", "f", "node"]


@dataclass(frozen=True, slots=True)
class HistoryFinding:
    """The findings on some rows of the history.  step_ns: the greatest number of ns that divides all their times.

    counts: rows by function and type.  first_ns, last_ns: time of the first and the last row.  backwards: number of the
    first row that is earlier than the row before it, -1 if there is none.  answered: the nodes that answered clients.
    """

    rows: int
    counts: Mapping[tuple[str, int], int]
    first_ns: int
    last_ns: int
    backwards: int
    answered: frozenset[str]
    step_ns: int


def split(run: StoredRun) -> list[Part]:
    """One part for each run of consecutive row groups.  Raises MalformedHistory if the history is not sealed."""
    if not run.history.exists():
        raise MalformedHistory(f"{run.root}: the history is not sealed, there is no {run.history.name}")
    return parts_of_history(run.history, {})


def judge(part: Part, budget: Budget) -> HistoryFinding:
    counts: Counter[tuple[str, int]] = Counter()
    times: list[tuple[int, int]] = []
    answered: set[str] = set()
    at, backwards, step_ns = part.params["row"], -1, 0
    with pq.ParquetFile(part.paths[0]) as file:
        for group in range(part.params["first"], part.params["end"]):
            table = file.read_row_group(group, _COLUMNS, use_threads=False)
            if not len(table):
                continue
            functions, names = dictionary_codes(table["f"])
            types = numbers(table, "type")
            code = functions.astype(np.int64) * 256 + types
            for value, count in zip(*np.unique(code, return_counts=True), strict=True):
                counts[names[int(value) // 256], int(value) % 256] += int(count)
            time_ns = numbers(table, "time_ns")
            step_ns = int(np.gcd.reduce(time_ns, initial=step_ns))
            falls = np.flatnonzero(np.diff(time_ns) < 0)
            if backwards < 0 and (len(falls) or (times and time_ns[0] < times[-1][1])):
                backwards = at + (int(falls[0]) + 1 if len(falls) else 0)
            times.append((int(time_ns[0]), int(time_ns[-1])))
            nodes, node_names = dictionary_codes(table["node"])
            answered |= {node_names[int(code)] for code in np.unique(nodes[types == int(Type.OK)])}
            at += len(table)
    first, last = (times[0][0], times[-1][1]) if times else (0, 0)
    return HistoryFinding(at - part.params["row"], counts, first, last, backwards, frozenset(answered), step_ns)


def combine(run: StoredRun, findings: Sequence[HistoryFinding]) -> Verdict:
    kept = _joined(findings)
    try:
        looked_at = {"rows": kept.rows, "journal entries": len(run.record.journal)}
        if run.record.journal and run.record.outcome is None:
            words = (
                "the harness was ended before the run was over: its last records are missing, and nothing confirms them"
            )
            return conclude((), looked_at, [words])
    except BrokenFile as problem:
        return conclude((), {"rows": kept.rows}, list(dict.fromkeys([str(problem), *_few(broken_bonds(run.root))])))
    questions = [f"row {kept.backwards} is earlier than the row before it"] if kept.backwards >= 0 else []
    doubted: dict[str, str] = {}
    for compare in COMPARISONS:
        try:
            clauses = compare(run, kept)
            questions += _few(clauses)
            if clauses and compare.ground:
                doubted.setdefault(compare.ground, clauses[0])
            for clause in clauses:
                if (found := _COPY_OF.match(clause)) is not None:
                    doubted.setdefault(COPIES_OF + found[1], clause)
                if compare is BONDS and clause.startswith((f"{STREAM} ", f"{SEALED} ")):
                    doubted.setdefault(HISTORY_ITSELF, clause)
        except BrokenFile as problem:
            questions.append(str(problem))
        except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError) as problem:
            questions.append(f"{compare.name} cannot be compared ({type(problem).__name__}: {problem})")
    return conclude((), looked_at, list(dict.fromkeys(questions)), {DOUBTED: doubted} if doubted else None)


def _joined(findings: Sequence[HistoryFinding]) -> HistoryFinding:
    counts: Counter[tuple[str, int]] = Counter()
    total, last_ns, backwards = 0, -1, -1
    for finding in findings:
        counts.update(finding.counts)
        if backwards < 0:
            fell = finding.rows > 0 and finding.first_ns < last_ns
            backwards = total if fell else finding.backwards
        total += finding.rows
        last_ns = finding.last_ns if finding.rows else last_ns
    answered = frozenset().union(*(finding.answered for finding in findings))
    step_ns = math.gcd(*(finding.step_ns for finding in findings))
    return HistoryFinding(total, counts, 0, last_ns, backwards, answered, step_ns)


def _journal(run: StoredRun, kept: HistoryFinding) -> list[str]:
    """Check that the journal is that of this run, whole and in order, and counts the rows of the history."""
    record = run.record
    clauses = [] if record.header is not None else [f"{TEST} is missing"]
    if not record.journal:
        return [*clauses, f"{JOURNAL} is missing: nothing shows what the harness did"]
    if record.begun is None or (record.header and record.begun != Begun(FORMAT, record.header.run_id)):
        clauses.append(f"{JOURNAL} is not that of {TEST}, or lacks its beginning")
    if any(a.time_ns > b.time_ns or a.row > b.row for a, b in pairwise(record.journal)):
        clauses.append(f"the times in {JOURNAL} fall")
    if record.ended is None:
        return [*clauses, f"{JOURNAL} was cut short: its last line is not its end"]
    if record.ended.rows != kept.rows:
        clauses.append(f"the history holds {kept.rows} rows, and {JOURNAL} counts {record.ended.rows}")
    return clauses


def _phases_ran(run: StoredRun) -> list[str]:
    """Check that every phase began and ended, in order."""
    ran = [phase.name for phase in run.outcome.phases if phase.end_ns >= 0 and not phase.broken_off]
    if ran == list(PHASES):
        return []
    lacking = next((name for name, there in zip(PHASES, [*ran, *PHASES], strict=False) if name != there), "")
    return [f"the journal does not show that phase {lacking!r} began and ended" if lacking else "a phase ran twice"]


def _cut_short(outcome: RunOutcome) -> bool:
    """Return whether the run ended before its time."""
    return any(phase.broken_off for phase in outcome.phases) or outcome.stopped is not None or outcome.interrupted


def _faults(run: StoredRun) -> list[str]:
    """Check that every card that was dealt left a record, if only that it was skipped."""
    header, outcome = run.record.header, run.outcome
    if header is None or _cut_short(outcome):
        return []
    played = {(record.card.number, record.card.kind, record.card.name) for record in run.faults}
    return [
        f"{TEST} deals fault {card.number} ({card.kind} {card.name}), and the journal has no record of it"
        for card in header.schedule or ()
        if (card.number, card.kind, card.name) not in played
    ]


def _answering_nodes(run: StoredRun, kept: HistoryFinding) -> list[str]:
    """Check that every answer that names a node names a server of the run."""
    if not run.demands.nodes:
        return []
    return [
        f"the history names {node!r:.40} as the node of an answer, and the run has no such server"
        for node in sorted(kept.answered - {"", *run.demands.servers})
    ]


def _deaths(run: StoredRun) -> list[str]:
    """Verify that every death that faults or traces show is listed, and that an order explains each ordered one."""
    return contradictions.not_listed(run) + contradictions.without_order(run) if run.demands.nodes else []


HELD_S_MIN = 3.5
"""A fault that was to hold for so long must have a copy before its heal.  The harness copies from a second less on."""


def _copies(run: StoredRun) -> list[str]:
    """Check that every copy covers every server, and that none was left out before a heal.

    Final copies that are not there are missed by `vacuity`, files of a copy by all checkers of logs."""
    copied: dict[int, set[str]] = {}
    for copy in run.copies_index:
        copied.setdefault(copy.copy, set()).add(copy.node)
    there = {copy.when for copy in run.copies_index}
    main = run.outcome.phase(MAIN)
    wanted = [
        before_heal(fault)
        for fault in run.faults
        if main is not None and run.demands.logs and not _cut_short(run.outcome)
        if fault.carried_out and fault.healed and not fault.card.until
        if fault.card.heal_s - (fault.injected_ns - main.start_ns) / 1e9 >= HELD_S_MIN
    ]
    return [
        f"copy {number} was not taken of {node}"
        for number, nodes in sorted(copied.items())
        for node in sorted(set(run.demands.servers) - nodes)
    ] + [f"no copy was taken {when}, although there was time for it" for when in wanted if when not in there]


def _resolution(run: StoredRun, kept: HistoryFinding) -> list[str]:
    """Check that the times of the history are not rounded: then they order nothing beside the times of traces."""
    if kept.rows < ROWS_TO_SEE_ROUNDING or kept.step_ns < ROUNDED_NS:
        return []
    return [f"all times of the history are multiples of {kept.step_ns / 1e6:g} ms: the recorder rounded them"]


def _set_up(run: StoredRun, kept: HistoryFinding) -> list[str]:
    """Check that set-up created the objects: every request that it had to make was ok."""
    wanted = Counter(run.demands.set_up)
    return [
        f"set-up shows {kept.counts.get((f, int(Type.OK)), 0)} ok {f}, and {times} are needed"
        for f, times in sorted(wanted.items())
        if kept.counts.get((f, int(Type.OK)), 0) < times
    ]


def _final_reads(run: StoredRun, kept: HistoryFinding) -> list[str]:
    """Check that the history shows the final reads that the harness calls ok."""
    phase = run.outcome.phase(FINAL_READS)
    end = phase.end_row if phase is not None and 0 <= phase.end_row < kept.rows else kept.rows
    rows = range(phase.first_row, end) if phase is not None else range(0)
    there = read_rows(run.history, rows, ("type", "f", "key"))
    ok = {(row["f"], row["key"]) for row in there if row["type"] == Type.OK} & set(run.demands.final_reads)
    stated = {key for key, why in run.outcome.final_reads.items() if why == "ok"}
    if {str(key) for _, key in ok} == stated:
        return []
    return [f"the harness calls {len(stated)} final reads ok, the history shows {len(ok)}"]


def _clocks(run: StoredRun) -> list[str]:
    """Check that test.json says how far the clock of every server is ahead that does not share the harness' own."""
    header = run.record.header
    if one_clock(header) or header is None:
        return []
    known = {node for node, clock in header.clocks.items() if 0 <= clock.error_ns <= CLOCK_ERROR_NS_MAX}
    return [
        f"{TEST} does not say how far the clock of {node} is ahead, within {CLOCK_ERROR_NS_MAX / 1e9:g} s"
        for node in run.demands.servers
        if node not in known
    ]


@dataclass(frozen=True, slots=True)
class EvidenceComparison:
    """One comparison of what different hands recorded: a sentence for each difference.

    name: of what is compared.  of_run: needs the files of the run; of_rows: needs the rows of the history, too.
    ground: what is doubted where it fails."""

    name: str
    of_run: Callable[[StoredRun], list[str]] | None = None
    of_rows: Callable[[StoredRun, HistoryFinding], list[str]] | None = None
    ground: Ground | None = None

    def __call__(self, run: StoredRun, kept: HistoryFinding) -> list[str]:
        clauses = self.of_run(run) if self.of_run is not None else []
        return clauses + (self.of_rows(run, kept) if self.of_rows is not None else [])


BONDS = EvidenceComparison("the manifest", lambda run: broken_bonds(run.root))

COMPARISONS = (
    EvidenceComparison("the journal", of_rows=_journal),
    EvidenceComparison("the order of phases", _phases_ran),
    BONDS,
    EvidenceComparison("the set-up", of_rows=_set_up),
    EvidenceComparison("the records of faults", _faults),
    EvidenceComparison("a measured state", contradictions.rows_while_held, ground="times"),
    EvidenceComparison("the times of traces", contradictions.times_fall, ground="times"),
    EvidenceComparison("a measured state or link", contradictions.answers_while_held, ground="answerers"),
    EvidenceComparison("a node that answered", of_rows=_answering_nodes, ground="answerers"),
    EvidenceComparison("the deaths of servers", _deaths),
    EvidenceComparison("the copies", _copies),
    EvidenceComparison("the traces at the copies", contradictions.at_another_length, ground="times"),
    EvidenceComparison("the logs at the copies", contradictions.behind_trace),
    EvidenceComparison("the times of the history", of_rows=_resolution, ground="times"),
    EvidenceComparison("the final reads", of_rows=_final_reads),
    EvidenceComparison("the clocks of test.json", _clocks),
)


def _few(clauses: Sequence[str]) -> list[str]:
    more = len(clauses) - SHOWN
    return [*clauses[:SHOWN], f"and {more} more of this kind"] if more > 0 else list(clauses)


EVIDENCE = Checker(
    name="evidence",
    title="Is the evidence whole?",
    question="Is everything that the run recorded still there and unchanged, and does it agree?",
    split=split,
    judge=judge,
    combine=combine,
    about_the_run=True,
)
