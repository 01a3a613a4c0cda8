"""Is the evidence whole?  Nothing on which a verdict depends may be missing, cut short or changed after the run.

Three kinds of proof are used:

* The ledger (`base/ledger.py`).  The last row of a history, its end mark, counts all rows before it.  The count does
  not fit if the history was cut short, lost a row or gained one.
* The manifest (`sealing/manifest.py`).  It binds the size and the hash of every primary file, and it is signed.
* Agreement.  test.json, outcome.json, faults.json and copies.json have counterparts in the history: phases, faults,
  copies and final reads.  Each file must agree with the history.

A difference makes the run *unknown*, never invalid: damaged evidence shows nothing about the system.  The other
checkers go on with the remaining evidence.

The history is read in parts, a few columns at a time, so its length does not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from checkers.base import ledger
from checkers.base.checker import Budget, Checker, Part
from checkers.base.clocks import one_clock
from checkers.base.history import NEMESIS, MalformedHistory, Type
from checkers.base.run_evidence import conclude, numbers
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.record.files import BrokenFile
from checkers.record.reading import COPIES_INDEX, FAULTS, OUTCOME, TEST, WHOLE_SINCE
from checkers.run_quality.cross_checks import (
    copies_taken,
    dealt_operations,
    deaths_listed,
    logs_at_copies,
    quorum_states_at_copies,
    traces_at_copies,
)
from checkers.run_quality.cross_checks.answers_while_held import answers_while_held
from checkers.run_quality.cross_checks.fault_rows import (
    differences,
    measured_backwards,
    not_played,
    orders_differ,
    times_differ,
)
from checkers.run_quality.cross_checks.rows_while_held import rows_while_held
from checkers.run_quality.cross_checks.trace_times import times_fall
from checkers.sealing.codes import dictionary_codes
from checkers.sealing.history_rows import parts_of_history, read_rows
from checkers.sealing.manifest import broken_bonds

PHASES = ("set-up", "main", "recovery", ledger.FINAL_READS, "collection")
SHOWN = 8
"""Differences of one kind that are named; the rest are counted."""
CLOCK_ERROR_NS_MAX = 5_000_000_000
"""A clock of another machine that is known less well cannot be compared.  Readings differ by a round trip."""

_COLUMNS = ["time_ns", "process", "type", "f", "payload", "node"]
_LEDGER_COLUMNS = _COLUMNS[:-1]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PartFinding:
    """The findings on some row groups.  counts: rows by function and type.  ledger: rows of process -1.
    first_ns, last_ns: time of the first and the last row.  backwards: number of the first row that is earlier than the
    row before it, -1 if there is none.  answered: the nodes that answered clients, as the history names them."""

    rows: int
    counts: Mapping[tuple[str, int], int]
    ledger: tuple[dict[str, Any], ...]
    first_ns: int
    last_ns: int
    backwards: int
    answered: frozenset[str]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The findings of all parts, in order of the history."""

    rows: tuple[dict[str, Any], ...]
    total: int
    counts: Mapping[tuple[str, int], int]
    backwards: int
    answered: frozenset[str]

    def of(self, f: str, type_: Type) -> list[Row]:
        return ledger.of(self.rows, f, type_)


def split(run: StoredRun) -> list[Part]:
    """One part for each run of consecutive row groups.  Raises MalformedHistory if the history is not sealed."""
    if not run.history.exists():
        raise MalformedHistory(f"{run.root}: the history is not sealed, there is no {run.history.name}")
    return parts_of_history(run.history, {})


def judge(part: Part, budget: Budget) -> PartFinding:
    counts: Counter[tuple[str, int]] = Counter()
    found: list[dict[str, Any]] = []
    times: list[tuple[int, int]] = []
    answered: set[str] = set()
    at, backwards = part.params["row"], -1
    with pq.ParquetFile(part.paths[0]) as file:
        for group in range(part.params["first"], part.params["end"]):
            table = file.read_row_group(group, _COLUMNS, use_threads=False)
            if not len(table):
                continue
            functions, names = dictionary_codes(table["f"])
            code = functions.astype(np.int64) * 256 + numbers(table, "type")
            for value, count in zip(*np.unique(code, return_counts=True), strict=True):
                counts[names[int(value) // 256], int(value) % 256] += int(count)
            time_ns = numbers(table, "time_ns")
            falls = np.flatnonzero(np.diff(time_ns) < 0)
            if backwards < 0 and (len(falls) or (times and time_ns[0] < times[-1][1])):
                backwards = at + (int(falls[0]) + 1 if len(falls) else 0)
            times.append((int(time_ns[0]), int(time_ns[-1])))
            process = numbers(table, "process")
            nodes, node_names = dictionary_codes(table["node"])
            of_clients = (process != NEMESIS) & (numbers(table, "type") == int(Type.OK))
            answered |= {node_names[int(code)] for code in np.unique(nodes[of_clients])}
            for i in np.flatnonzero(process == NEMESIS).tolist():
                row = table.select(_LEDGER_COLUMNS).slice(i, 1)
                found.append({**row.to_pylist()[0], "row": at + i})
            at += len(table)
    first, last = (times[0][0], times[-1][1]) if times else (0, 0)
    return PartFinding(at - part.params["row"], counts, tuple(found), first, last, backwards, frozenset(answered))


def combine(run: StoredRun, findings: Sequence[PartFinding]) -> Verdict:
    kept = _joined(findings)
    begun = any(row["f"] in (ledger.BEGIN, ledger.END) for row in kept.rows)
    if begun and not (run.root / OUTCOME).exists() and not any(row["f"] == ledger.END for row in kept.rows):
        words = "the harness was ended before the run was over: its last records are missing, and nothing confirms them"
        return conclude((), {"rows": kept.total, "bookkeeping rows": len(kept.rows)}, [words])
    if not begun and not run.demands.ledger:
        return Verdict(Validity.NOT_APPLICABLE, reason="the run was recorded before histories had a ledger")
    looked_at = {"rows": kept.total, "bookkeeping rows": len(kept.rows)}
    if not begun:
        words = "the history has no ledger: an older version recorded it (analyze --trust-old-format), or it was cut"
        return conclude((), looked_at, [words, *_few(broken_bonds(run.root))])
    questions = [f"row {kept.backwards} is earlier than the row before it"] if kept.backwards >= 0 else []
    for agree in _NAMES:
        try:
            questions += _few(agree(run, kept))
        except BrokenFile as problem:
            questions.append(str(problem))
        except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError) as problem:
            questions.append(
                f"{_NAMES[agree]} cannot be compared with the history ({type(problem).__name__}: {problem})"
            )
    return conclude((), looked_at, list(dict.fromkeys(questions)))


def _joined(findings: Sequence[PartFinding]) -> Ledger:
    counts: Counter[tuple[str, int]] = Counter()
    rows: list[dict[str, Any]] = []
    total, last_ns, backwards = 0, None, -1
    for finding in findings:
        counts.update(finding.counts)
        rows += finding.ledger
        if backwards < 0:
            fell = last_ns is not None and finding.rows > 0 and finding.first_ns < last_ns
            backwards = total if fell else finding.backwards
        total += finding.rows
        last_ns = finding.last_ns if finding.rows else last_ns
    answered = frozenset().union(*(finding.answered for finding in findings))
    return Ledger(tuple(rows), total, counts, backwards, answered)


# The ledger itself.


def _ends(run: StoredRun, kept: Ledger) -> list[str]:
    """Check that the history begins and ends as it must, and holds as many rows as its end mark counts."""
    begin, end = kept.rows[0], kept.rows[-1]
    clauses = []
    if begin["f"] != ledger.BEGIN or begin["row"] != 0:
        clauses.append("the history does not begin with its first row")
    else:
        clauses += _format(run, ledger.stated(begin).get("format"))
    if end["f"] != ledger.END or end["row"] != kept.total - 1:
        return [*clauses, f"the history was cut short: row {kept.total - 1}, its last, is not its end mark"]
    stated = ledger.stated(end)
    before = Counter(kept.counts)
    before[ledger.END, int(Type.OK)] -= 1
    if stated.get("rows") != kept.total - 1:
        rows = stated.get("rows")
        clauses.append(f"the history holds {kept.total - 1} rows before its end mark, which counts {rows}")
    here, there = ledger.counted(+before), ledger.object_of(stated.get("by_function"))
    clauses += [
        f"the end mark counts {there.get(f)} rows of {f} (invoke, ok, fail, info), the history holds {here.get(f)}"
        for f in sorted(here.keys() | there.keys())
        if here.get(f) != there.get(f)
    ]
    counted = {
        "phases": len(kept.of(ledger.PHASE, Type.INVOKE)),
        "faults": len(run.faults),
        "copies": len(run.copies_index),
        "final_reads": len(_read_at_the_end(run, kept)),
    }
    clauses += [
        f"the end mark counts {stated.get(n)} {n}, there are {count}"
        for n, count in counted.items()
        if stated.get(n) != count
    ]
    return clauses


def _format(run: StoredRun, stated: Any) -> list[str]:
    """Check that the history and test.json name one format, and that it is the demanded one."""
    clauses = [] if stated == run.record.format else [f"{TEST} and the history name different formats"]
    if stated == max(run.demands.format, 1):
        return clauses
    if type(stated) is not int or not 0 < stated < ledger.FORMAT:
        return [*clauses, f"the history is of format {stated!r:.20}, and not of format {run.demands.format}"]
    words = f"the run is of format {stated}, and runs of format {ledger.FORMAT} record more"
    return [*clauses, f"{words}: an older version recorded it (analyze --trust-old-format), or something was removed"]


def _phases_ran(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether every phase began and ended, in order."""
    rows = [(ledger.payload(row), Type(row["type"])) for row in kept.rows if row["f"] == ledger.PHASE]
    wanted = [(name, type_) for name in PHASES for type_ in (Type.INVOKE, Type.OK)]
    if rows == wanted:
        return []
    at = next((i for i, (a, b) in enumerate(zip(rows, wanted, strict=False)) if a != b), min(len(rows), len(wanted)))
    if at == len(wanted):
        return ["the ledger holds more phases than a run has"]
    return [f"the ledger does not show that phase {wanted[at][0]!r} {'began' if at % 2 == 0 else 'ended'}"]


# The files of the run, against the ledger and the history.


def _bonds(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether every primary file has the size and hash of the manifest, and the manifest is the one that was signed."""
    return broken_bonds(run.root)


def _files(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether every small file is there and holds every field that runs of its format record.  Raises BrokenFile."""
    record = run.record
    there = {TEST: record.header, OUTCOME: record.outcome, FAULTS: record.faults, COPIES_INDEX: record.copies}
    wanted = [name for name in there if name != COPIES_INDEX or run.demands.logs]
    clauses = [f"{name} is missing" for name in wanted if not (run.root / name).exists()]
    begun = ledger.stated(kept.rows[0])
    header = record.header
    if header is None or begun.get("spec") != header.spec or begun.get("run_id") != header.run_id:
        clauses.append("test.json is not that of this history")
    return clauses


def _phases(run: StoredRun, kept: Ledger) -> list[str]:
    shown = []
    for row in kept.rows:
        if row["f"] == ledger.PHASE and row["type"] == Type.INVOKE:
            shown.append([ledger.payload(row), row["time_ns"], -1])
        elif row["f"] == ledger.PHASE and shown:
            shown[-1][2] = row["time_ns"]
    stated = [[phase.name, phase.start_ns, phase.end_ns] for phase in run.outcome.phases]
    return [] if shown == stated else ["the phases of outcome.json are not those of the history"]


def _faults(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether the history shows exactly the faults of faults.json, at their times, and all were played.

    If a phase was broken off, faults in force were healed without rows.  Then only the orders are compared.
    """
    if kept.of(ledger.PHASE, Type.INFO):
        return orders_differ(run.faults, kept.rows)
    clauses = differences(run.faults, kept.rows) or times_differ(run.faults, kept.rows)
    header, ended_early = run.record.header, run.outcome.stopped is not None or run.outcome.interrupted
    cards = None if header is None or ended_early else header.schedule
    return clauses + measured_backwards(run.faults) + not_played(cards or (), run.faults)


def _silences(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether nodes wrote no row of their traces while they were measured dead or stopped, and all in order of time."""
    return rows_while_held(run) + times_fall(run)


def _answers(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether no server answered clients while it was measured dead, stopped or cut off from them."""
    return answers_while_held(run)


def _answering_nodes(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether every answer that names a node names a server of the run."""
    if not run.demands.nodes:
        return []
    return [
        f"the history names {node!r:.40} as the node of an answer, and the run has no such server"
        for node in sorted(kept.answered - {"", *run.demands.servers})
    ]


def _deaths(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether outcome.json lists every death that faults and traces show, at its time, and each ordered one was
    ordered."""
    if not run.demands.nodes:
        return []
    listed = deaths_listed.not_listed(run)
    return (listed or deaths_listed.at_another_time(run)) + deaths_listed.without_order(run)


def _copies(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether every copy covers every server, stands in copies.json and has its folder, and none is missing."""
    clauses = copies_taken.differences(run, kept.rows)
    broken_off = bool(kept.of(ledger.PHASE, Type.INFO))
    return clauses if broken_off or not run.demands.logs else clauses + copies_taken.lacking(run, kept.rows)


def _moments(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether each copy was taken when copies.json says, and holds of trace and log what there was at that time."""
    if not run.demands.logs:
        return []
    clauses = traces_at_copies.taken_outside(run, kept.rows) + traces_at_copies.at_another_length(run, kept.rows)
    clauses += logs_at_copies.ahead_of_trace(run) + logs_at_copies.behind_trace(run)
    return clauses + quorum_states_at_copies.differ(run)


def _dealt(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether each thread invoked what the seed deals to it."""
    return dealt_operations.differences(run, kept.rows)


def _set_up(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether set-up created the objects: every request that it had to make was ok."""
    wanted = Counter(run.demands.set_up)
    return [
        f"set-up shows {kept.counts.get((f, int(Type.OK)), 0)} ok {f}, and {times} are needed"
        for f, times in sorted(wanted.items())
        if kept.counts.get((f, int(Type.OK)), 0) < times
    ]


def _final_reads(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether outcome.json and the history agree on which final reads were ok."""
    shown = {str(key) for _, key in _read_at_the_end(run, kept)}
    stated = {key for key, why in run.outcome.final_reads.items() if why == "ok"}
    if shown == stated:
        return []
    return [f"outcome.json calls {len(stated)} final reads ok, the history shows {len(shown)}"]


def _read_at_the_end(run: StoredRun, kept: Ledger) -> set[tuple[str, str | None]]:
    """The demanded final reads that were ok in the phase of final reads."""
    bounds = [row["row"] for row in kept.rows if row["f"] == ledger.PHASE and ledger.payload(row) == ledger.FINAL_READS]
    if not bounds:
        return set()
    rows = range(bounds[0], bounds[1] if len(bounds) > 1 else kept.total)
    there = read_rows(run.history, rows, ("process", "type", "f", "key"))
    ok = {(row["f"], row["key"]) for row in there if row["process"] != NEMESIS and row["type"] == Type.OK}
    return ok & set(run.demands.final_reads)


def _clocks(run: StoredRun, kept: Ledger) -> list[str]:
    """Whether test.json says how far the clock of every server is ahead that does not share the harness' own."""
    header = run.record.header
    if run.record.format < WHOLE_SINCE or one_clock(run.header) or header is None:
        return []
    known = {node for node, clock in header.clocks.items() if 0 <= clock.error_ns <= CLOCK_ERROR_NS_MAX}
    return [
        f"{TEST} does not say how far the clock of {node} is ahead, within {CLOCK_ERROR_NS_MAX / 1e9:g} s"
        for node in run.demands.servers
        if node not in known
    ]


Agree = Callable[[StoredRun, Ledger], list[str]]

_NAMES: Mapping[Agree, str] = {
    _ends: "the end mark",
    _phases_ran: "the order of phases",
    _bonds: "the manifest",
    _files: "a small file",
    _phases: "the phases of outcome.json",
    _set_up: "the set-up",
    _dealt: "what the seed deals",
    _faults: "faults.json",
    _silences: "a measured state",
    _answers: "a measured state or link",
    _answering_nodes: "a node that answered",
    _deaths: "the deaths of outcome.json",
    _copies: "copies.json",
    _moments: "the traces at the copies",
    _final_reads: "the final reads of outcome.json",
    _clocks: "the clocks of test.json",
}


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
