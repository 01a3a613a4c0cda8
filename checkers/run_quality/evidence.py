"""The checker `evidence`: records on which a verdict depends must be complete, unchanged and free of contradictions.

Three kinds of proof are used:

* The journal (`record/run_record.py`).  Its last event counts all rows of the history.  The count does not fit if the
  history was cut short, lost a row or gained one.
* The manifest (`sealing/manifest.py`).  It binds the size and the hash of every primary file, and it is signed.
* Agreement of what different components recorded, below.

A difference makes the run *unknown*, never invalid, because corrupt evidence shows nothing about the system.  The other
checkers continue with the remaining evidence.

*Agreement.*  Records of different components must agree: measurements, traces, answers of clients, deaths, copies.

The manifest binds every file, so nobody else can have changed a file.  These comparisons find bugs of the harness, of
an agent, of a client, or of a system that reports actions that it did not perform.

* No client has an answer from a server that was measured dead or paused, or over a link that was measured cut.  Suppose
  that an operation was invoked and answered while all measurements show this.  Then another server answered, or no
  server did: the client connects to another server than it states, its library fails over or repeats requests by
  itself, or the client answers from a cache or swallows errors.  Then conclusions about single servers, such as "every
  server answered", are worthless.  The harness measured both times, so the clocks of nodes do not matter.
* No row of a trace has a time within such a stretch (`HeldWindow`).  This comparison needs one clock, so it does not
  judge nodes on other machines.  It cannot judge partitions, because a node that is cut off continues to write rows.
* Within one incarnation of a process no row of its trace is earlier than the row before.  If nodes and harness share
  one clock, no row lies outside of the run, and the rows of a trace agree with the times of copies.  A copy records the
  size of the trace.  A node stamps each row before it writes the row, and does not run while its disk is copied.  So
  the last row within the recorded size was stamped before the copy was complete, and of the later rows at most the
  first was.  If a Docker engine runs in a virtual machine, its nodes have another clock.  Then rows have times outside
  of the run, and nothing is judged.
* The journal lists each death that a fault measured, and one death for each incarnation in a trace except the last.
  `nodes-stay-up` judges only listed deaths.  An ordered death is no violation, so it needs an order: only faults and
  the phase of collection end servers.  A fault that failed may still have ended a server later.
* A copied log contains all entries that the trace reported as flushed, because flushed entries survive kills and losses
  of power.  The copy may lack them only if a truncation was in progress when the node was stopped, or if the disk lost
  flushed data:

  - If a restart found a shorter log, this is a violation of the system (`raft/quorum.py`), and the copy may be as short
    as the log that the restart found.  If a dead process was never started again, the log that it would have found is
    unknown.
  - A truncation in progress is reported in the next row about the log.  If no such row follows and the last entry has
    the node's own epoch, no truncation was in progress.  The reason is that an epoch has only one leader, and a log
    whose last entry was written by this leader is a prefix of the leader's log.

"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Int64
from checkers.base.checker import Ground, checker_of_run
from checkers.base.history import Type
from checkers.base.stored_rows import coded, numbers, read_table, read_trace, words
from checkers.base.stored_run import StoredRun, before_heal, node_files
from checkers.base.verdict import DOUBTED, Verdict, conclude
from checkers.kernels.raft import APPEND, FLUSH, OTHER, START, TRUNCATE
from checkers.raft.reading import DisksByRow, disks_by_row
from checkers.raft.rules import CURRENT_EPOCH_EVENTS
from checkers.record.faults import FaultRecord, HeldWindow, cut_links, silent_processes
from checkers.record.files import BrokenFile
from checkers.record.header_and_outcome import Death, RunOutcome, error_ns, one_clock, one_kernel
from checkers.record.run_record import FINAL_READS, FORMAT, JOURNAL, MAIN, PHASES, TEST, Begun
from checkers.run_quality.faults_installed import INSTALLED, achieved
from checkers.sealing.manifest import SEALED, STREAM, broken_bonds
from checkers.sealing.sealed_history import chunks_of_groups, history_tables, read_rows

SHOWN = 8
"""Maximum number of differences of one kind that are named; the others are counted."""
CLOCK_ERROR_NS_MAX = 5_000_000_000
"""Maximum error of another machine's clock, in ns, with which its times are compared.

The error of a reading is at most one round trip.
"""

ROUNDED_NS, ROWS_TO_SEE_ROUNDING = 10_000_000, 20
"""Times are rounded if all are multiples of this number of ns; minimum number of rows for this conclusion."""
COPIES_OF = "copies of "
HISTORY_ITSELF = "the history"
"""Name of a doubt: the history differs from the manifest, so its rows prove nothing."""

_COPY_OF = re.compile(r"copy \d+ of (\S+) cannot be right")


@dataclass(frozen=True, slots=True)
class HistoryFinding:
    """Properties of the rows of the history.

    step_ns: greatest common divisor of all their times, in ns
    ok: number of ok operations by function
    backwards: number of the first row that is earlier than the row before it; -1 if there is none
    answered: nodes that answered clients
    """

    rows: int
    ok: Mapping[str, int]
    backwards: int
    answered: frozenset[str]
    step_ns: int


def _found(run: StoredRun) -> HistoryFinding:
    with history_tables(run.history) as sql:
        ok = dict(sql.execute("SELECT f, count(*) FROM events WHERE type = 1 GROUP BY f").fetchall())
        answered = sql.execute("SELECT DISTINCT node FROM events WHERE type = 1").fetchall()
    rows, backwards, last_ns, step_ns = 0, -1, -1, 0
    for table in chunks_of_groups(run.history, ("time_ns",)):
        time_ns = numbers(table, "time_ns")
        falls = np.flatnonzero(np.diff(time_ns, prepend=last_ns) < 0)
        backwards = rows + int(falls[0]) if backwards < 0 and len(falls) else backwards
        rows, last_ns, step_ns = rows + len(table), int(time_ns[-1]), int(np.gcd.reduce(time_ns, initial=step_ns))
    return HistoryFinding(rows, ok, backwards, frozenset(node for (node,) in answered), step_ns)


def combine(run: StoredRun, _: Sequence[Any]) -> Verdict:
    kept = _found(run)
    try:
        looked_at = {"rows": kept.rows, "journal entries": len(run.record.journal)}
        if run.record.journal and run.record.outcome is None:
            words = "the harness was ended before the run was over, so nothing confirms the existing records"
            return conclude((), looked_at, [words])
    except BrokenFile as problem:
        return conclude((), {"rows": kept.rows}, list(dict.fromkeys([str(problem), *_few(broken_bonds(run.root))])))
    questions = [f"row {kept.backwards} is earlier than the row before it"] if kept.backwards >= 0 else []
    doubted: dict[str, str] = {}
    for compare in COMPARISONS:
        try:
            clauses = compare.differences(run, kept)
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


def _journal(run: StoredRun, kept: HistoryFinding) -> list[str]:
    """Check that the journal belongs to this run, is complete and in order, and counts the rows of the history."""
    record = run.record
    clauses = [] if record.header is not None else [f"{TEST} is missing"]
    if not record.journal:
        return [*clauses, f"{JOURNAL} is missing: nothing shows what the harness did"]
    if record.begun is None or (record.header and record.begun != Begun(FORMAT, record.header.run_id)):
        clauses.append(f"{JOURNAL} does not belong to {TEST}, or lacks its beginning")
    if any(a.time_ns > b.time_ns or a.row > b.row for a, b in pairwise(record.journal)):
        clauses.append(f"the times in {JOURNAL} decrease")
    if record.ended is None:
        return [*clauses, f"{JOURNAL} was cut short: its last line is not its end"]
    if record.ended.rows != kept.rows:
        clauses.append(f"the history holds {kept.rows} rows, and {JOURNAL} counts {record.ended.rows}")
    return clauses


def _phases_ran(run: StoredRun, _: HistoryFinding) -> list[str]:
    """Check that every phase began and ended, in order."""
    ran = [phase.name for phase in run.outcome.phases if phase.end_ns >= 0 and not phase.broken_off]
    if ran == list(PHASES):
        return []
    return [f"the journal shows that the phases {', '.join(ran)} ran, and a run has {', '.join(PHASES)}"]


def _cut_short(outcome: RunOutcome) -> bool:
    """Return True if the run ended early."""
    return any(phase.broken_off for phase in outcome.phases) or outcome.stopped is not None or outcome.interrupted


def _faults(run: StoredRun, _: HistoryFinding) -> list[str]:
    """Check that every planned fault (card) has a record, at least a record that it was skipped."""
    header, outcome = run.record.header, run.outcome
    if header is None or _cut_short(outcome):
        return []
    played = {(record.card.number, record.card.kind, record.card.name) for record in run.faults}
    return [
        f"{TEST} plans fault {card.number} ({card.kind} {card.name}), but the journal has no record of this fault"
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


def _deaths(run: StoredRun, _: HistoryFinding) -> list[str]:
    """Check that every death that faults or traces show is listed, and that an order explains each ordered death."""
    return not_listed(run) + without_order(run) if run.demands.nodes else []


HELD_S_MIN = 3.5
"""Minimum planned duration in seconds of a fault that must have a copy before its heal.

The harness itself already copies during faults that are one second shorter.
"""


def _copies(run: StoredRun, _: HistoryFinding) -> list[str]:
    """Check that every copy covers every server, and that no copy before a heal is missing.

    `vacuity` reports missing final copies, and all checkers of logs report missing files of a copy.
    """
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
    ] + [f"no copy was taken {when}, although there was time for a copy" for when in wanted if when not in there]


def _resolution(run: StoredRun, kept: HistoryFinding) -> list[str]:
    """Check that the times of the history are not rounded.

    Rounded times cannot be compared with the times of traces.
    """
    if kept.rows < ROWS_TO_SEE_ROUNDING or kept.step_ns < ROUNDED_NS:
        return []
    return [f"all times of the history are multiples of {kept.step_ns / 1e6:g} ms: the recorder rounded them"]


def _set_up(run: StoredRun, kept: HistoryFinding) -> list[str]:
    """Check that set-up created the objects: each of its required requests was ok."""
    wanted = Counter(run.demands.set_up)
    return [
        f"set-up shows {kept.ok.get(f, 0)} ok {f}, and {times} are needed"
        for f, times in sorted(wanted.items())
        if kept.ok.get(f, 0) < times
    ]


def _final_reads(run: StoredRun, kept: HistoryFinding) -> list[str]:
    """Check that the history contains the final reads that the harness reports as ok."""
    phase = run.outcome.phase(FINAL_READS)
    end = phase.end_row if phase is not None and 0 <= phase.end_row < kept.rows else kept.rows
    rows = range(phase.first_row, end) if phase is not None else range(0)
    there = read_rows(run.history, rows, ("type", "f", "key"))
    ok = {(row["f"], row["key"]) for row in there if row["type"] == Type.OK} & set(run.demands.final_reads)
    stated = {key for key, why in run.outcome.final_reads.items() if why == "ok"}
    if {str(key) for _, key in ok} == stated:
        return []
    return [f"the harness calls {len(stated)} final reads ok, the history shows {len(ok)}"]


def _clocks(run: StoredRun, _: HistoryFinding) -> list[str]:
    """Check that test.json contains the clock offset of every server that does not share the clock of the harness."""
    header = run.record.header
    if one_clock(header) or header is None:
        return []
    known = {node for node, clock in header.clocks.items() if 0 <= clock.error_ns <= CLOCK_ERROR_NS_MAX}
    return [
        f"{TEST} does not say how far the clock of {node} is ahead, within {CLOCK_ERROR_NS_MAX / 1e9:g} s"
        for node in run.demands.servers
        if node not in known
    ]


class EvidenceComparison(NamedTuple):
    """One comparison of what different components recorded.

    name: name of the compared records
    differences: a function that returns one sentence for each difference
    ground: records that are doubted if the comparison fails"""

    name: str
    differences: Callable[[StoredRun, HistoryFinding], list[str]]
    ground: Ground | None = None


def _few(clauses: Sequence[str]) -> list[str]:
    more = len(clauses) - SHOWN
    return [*clauses[:SHOWN], f"and {more} more of this kind"] if more > 0 else list(clauses)


DEAD = "dead"
_LATE_NS = 5_000_000_000
"""Tolerance in ns between the end of a process and the fault that ordered it.

The end may be noticed this long after the fault's heal, or be recorded this long before the order.
"""
_IN_FLIGHT = 1
"""Maximum number of rows that a stopped node has stamped but not yet written."""

_ANSWERS = """
SELECT number, count(*), arg_min(process, "index"), min(invoked_ns) FROM operations JOIN watches
ON operations.node = server AND type = 1 AND invoked_ns > from_ns AND ended_ns < to_ns
    AND (client < 0 OR process % $concurrency % $clients = client)
GROUP BY number ORDER BY number"""
"""Query for the answers during a watch.  Threads are assigned to the client nodes in turn."""


class _Watch(NamedTuple):
    """One stretch of time in which a server could not answer the clients of a node.

    fault: number of the fault's card
    client: the node of these clients, or "" for all clients"""

    fault: int
    held: HeldWindow
    server: str
    client: str


def answers_while_held(run: StoredRun) -> list[str]:
    """Return one sentence for each server or link that answered a client while a fault was measured to prevent it."""
    demands = run.demands
    watches = [watch for record in run.faults for watch in _watches(run, record)]
    if not demands.nodes or not demands.concurrency or not watches:
        return []
    rows = [
        {
            "number": number,
            "server": server,
            "client": demands.client_nodes.index(client) if client else -1,
            "from_ns": held.from_ns,
            "to_ns": held.to_ns,
        }
        for number, (_, held, server, client) in enumerate(watches)
    ]
    threads = {"concurrency": demands.concurrency, "clients": max(1, len(demands.client_nodes))}
    with history_tables(run.history) as sql:
        sql.register("watches", pa.Table.from_pylist(rows))
        return [_words(watches[number], *found) for number, *found in sql.execute(_ANSWERS, threads).fetchall()]


def _watches(run: StoredRun, record: FaultRecord) -> Iterator[_Watch]:
    servers, clients = run.demands.servers, run.demands.client_nodes
    number = record.card.number
    for held in silent_processes(record):
        if held.subject in servers:
            yield _Watch(number, held, held.subject, "")
    for held in cut_links(record):
        for server, client in (held.subject, held.subject[::-1]):
            if server in servers and client in clients:
                yield _Watch(number, held, server, client)


def _measured(number: int, held: HeldWindow) -> str:
    what = (
        f"{held.subject} as {held.what}"
        if isinstance(held.subject, str)
        else f"the link {'>'.join(held.subject)} as cut"
    )
    return f"fault {number} measured {what} from {held.from_ns / 1e9:.3f} to {held.to_ns / 1e9:.3f} s"


def _words(watch: _Watch, count: int, process: int, invoked_ns: int) -> str:
    answers = f"{count} operation{'s' if count > 1 else ''}"
    return (
        f"{_measured(watch.fault, watch.held)}, but {watch.server} answered {answers} of {watch.client or 'clients'} "
        f"meanwhile (the first of process {process}, invoked at {invoked_ns / 1e9:.3f} s): the client asks another "
        "server than it states, its library repeats requests by itself, or the client swallows errors"
    )


def rows_while_held(run: StoredRun) -> list[str]:
    """Return one sentence for each fault and node whose trace has a row while the node was measured dead or stopped."""
    if not run.demands.traces or not one_clock(run.header):
        return []
    traces, clauses = node_files(run.trace), []
    for record in run.faults:
        for held in silent_processes(record):
            if held.subject not in traces:
                continue
            within = (pc.field("time_ns") > held.from_ns) & (pc.field("time_ns") < held.to_ns)
            path = traces[held.subject]
            times = pq.read_table(path, columns=["time_ns"], filters=within, partitioning=None)["time_ns"]
            if len(times):
                at_s = times[0].as_py() / 1e9
                clauses.append(f"{_measured(record.card.number, held)}, but its trace has a row at {at_s:.3f} s")
    return clauses


def times_fall(run: StoredRun) -> list[str]:
    """Return one sentence for each node whose trace has a row that is earlier than the row before it."""
    clauses = []
    for node, path in node_files(run.trace).items() if run.demands.traces else ():
        rows = read_table(path, ("seq", "incarnation", "time_ns")).sort_by("seq")
        seq, life, time_ns = (numbers(rows, name) for name in ("seq", "incarnation", "time_ns"))
        falls = np.flatnonzero((np.diff(time_ns) < 0) & (np.diff(life) == 0)) + 1
        if len(falls):
            words = f"has a row (seq {seq[falls[0]]}) that is earlier than the row before it"
            clauses.append(f"the trace of {node} {words}")
    return clauses


def not_listed(run: StoredRun) -> list[str]:
    """Return one sentence for each death that must have happened but is not in the journal.  Raises BrokenFile."""
    listed: dict[str, list[int]] = {}
    for death in _ends(run):
        listed.setdefault(death.node, []).append(death.time_ns)
    clauses = []
    for fault in run.record.faults:
        for node in sorted(_measured_dead(fault)):
            if not any(at_ns <= fault.end_ns(at_ns) for at_ns in listed.get(node, ())):
                words = f"fault {fault.card.number} measured {node} as dead"
                clauses.append(f"{words}, but the journal lists no death of {node} before the heal")
    for node, path in node_files(run.trace).items():
        lives = len(read_trace(path, ("start",), ("seq",)))
        ends = len(listed.get(node, ()))
        if lives - 1 > ends:
            clauses.append(f"the trace of {node} shows {lives} starts, and the journal lists {ends} of its deaths")
    return clauses


def without_order(run: StoredRun) -> list[str]:
    """Return one sentence for each death that is listed as ordered although no fault and no collection ordered it.

    Returns [] if the run did not reach the collection, because then its servers may be ended at any time.  Raises
    BrokenFile.
    """
    phases = run.record.outcome.phases if run.record.outcome is not None else ()
    collected_ns = next((phase.start_ns for phase in phases if phase.name == "collection"), -1)
    if collected_ns < 0:
        return []
    clauses = []
    for node, at_ns in ((death.node, death.time_ns) for death in _ends(run) if death.ordered):
        slack_ns = _LATE_NS + error_ns(run.header, node)
        if at_ns < collected_ns - slack_ns and not any(_ordered(f, node, at_ns, slack_ns) for f in run.record.faults):
            words = f"the journal lists an ordered death of {node} at {at_ns / 1e9:.1f} s"
            clauses.append(f"{words}, but no fault ended {node} at that time")
    return clauses


def _ends(run: StoredRun) -> list[Death]:
    """Return the deaths of processes, without complaints in logs, which have no time."""
    deaths = run.record.outcome.deaths if run.record.outcome is not None else ()
    return [death for death in deaths if death.time_ns >= 0]


def _ordered(fault: FaultRecord, node: str, at_ns: int, slack_ns: int) -> bool:
    """Return True if this fault may have ended the node's server at that time."""
    if not fault.may_end(node):
        return False
    if not fault.carried_out or not fault.healed or achieved(fault).word != INSTALLED:
        return True
    return fault.began_ns - slack_ns <= at_ns <= fault.healed_ns + slack_ns


def _measured_dead(fault: FaultRecord) -> set[str]:
    shown = (item for measurement in fault.measured for item in measurement.states.items())
    return {node for node, state in shown if state == DEAD and node in fault.nodes}


_SNAPSHOT = "snapshot"
_CHANGES = {"append": APPEND, "flush": FLUSH, "truncate": TRUNCATE, "start": START}
_OF_LOGS = dict.fromkeys(("quorum-state", _SNAPSHOT, *CURRENT_EPOCH_EVENTS), OTHER) | _CHANGES


class _Flushed(NamedTuple):
    """The rows of one node that show its log, its epoch or its disk.

    event: number of the event in `kernels/raft.py`; a snapshot from another node is a TRUNCATE, because it replaces the
        log
    flushed: the log end that was durable after each row
    """

    seq: Int64
    event: Int64
    offset: Int64
    epoch: Int64
    flushed: Int64
    disks: DisksByRow


def behind_trace(run: StoredRun) -> list[str]:
    """Return one sentence for each copy of a log that lacks entries that its trace reported as flushed.

    Disks that a fault damaged are skipped.
    """
    if not (run.demands.logs and run.demands.traces):
        return []
    traces = {node: _flushed_of(node, path) for node, path in node_files(run.trace).items()}
    taken_ns = {(copy.copy, copy.node): copy.taken_ns for copy in run.copies_index}
    clauses = []
    for copy in run.copies:
        node, log_end = copy["node"], copy["log_end"]
        if copy["error"] or node not in traces:
            continue
        rows = traces[node]
        place = int(np.searchsorted(rows.seq, copy["trace_seq"], side="right"))
        if not place or rows.disks.of_copy(copy) != rows.disks.number[place - 1]:
            continue
        if rows.disks.ids == ("",) and _wiped(run, node, taken_ns.get((copy["copy"], node), -1)):
            continue
        due = _certain_end(rows, place, dead=copy["state"] == "dead")
        if log_end < due:
            words = f"its log ends at {log_end}, and its trace had reported that everything below {due} was flushed"
            clauses.append(_wrong_copy(copy, words))
    return clauses


def _wrong_copy(copy: Mapping[str, Any], words: str) -> str:
    return f"copy {copy['copy']} of {copy['node']} cannot be right: {words}"


def _flushed_of(node: str, trace: str) -> _Flushed:
    rows = read_trace(trace, _OF_LOGS, ("epoch", "offset", "peer", "detail"))
    seq, epoch, offset = (numbers(rows, name) for name in ("seq", "epoch", "offset"))
    event = coded(rows, "event", _OF_LOGS)
    fetched = coded(rows, "event", {_SNAPSHOT: 1}) == 1
    fetched &= np.array([peer not in (None, node) for peer in words(rows, "peer")], np.bool_)
    event[fetched] = TRUNCATE
    return _Flushed(seq, event, offset, epoch, _durable_ends(event, offset), disks_by_row(rows))


def _durable_ends(event: Int64, offset: Int64) -> Int64:
    """Return the log end that is certainly durable after each row: the last flushed one, or a lower one after a
    truncation.

    No kernel is used, because evidence is compared where verdicts are combined, and nothing else there needs a
    compiler.
    """
    ends = np.where(np.isin(event, (FLUSH, TRUNCATE, START)), offset, np.iinfo(np.int64).max)
    known, rank = np.unique(np.concatenate(([0], ends)), return_inverse=True)
    # each flush starts a new running minimum that lies below all earlier ones
    flushes = np.concatenate(([0], np.cumsum(event == FLUSH))) * len(known)
    return np.asarray(known[np.minimum.accumulate(rank - flushes) + flushes][1:], np.int64)


def _wiped(run: StoredRun, node: str, taken_ns: int) -> bool:
    """Return True if a fault may have wiped the disk of this node before `taken_ns` (-1: at any time)."""
    return any(
        fault.carried_out and fault.wipes_disks and node in fault.nodes and (taken_ns < 0 or fault.began_ns <= taken_ns)
        for fault in run.faults
    )


def _certain_end(rows: _Flushed, place: int, *, dead: bool) -> int:
    """Return the minimum log end that the disk can have after the first `place` rows; 0 if nothing is certain.

    dead: True if the process had ended before the copy"""
    due = int(rows.flushed[place - 1])
    later = np.flatnonzero(np.isin(rows.event[place:], (APPEND, TRUNCATE, START)))
    if len(later):
        following = place + int(later[0])
        return due if rows.event[following] == APPEND else min(due, int(rows.offset[following]))
    changes = np.flatnonzero(np.isin(rows.event[:place], (APPEND, TRUNCATE, START)))
    appends = changes[rows.event[changes] == APPEND]
    if dead or not len(appends):
        return 0
    last = int(appends[-1])
    untouched = np.all(rows.offset[changes[changes > last]] == rows.offset[last])
    starts = changes[rows.event[changes] == START]
    of_life = rows.epoch[int(starts[-1]) if len(starts) else 0 : place]
    return due if untouched and int(of_life.max()) == int(rows.epoch[last]) else 0


def at_another_length(run: StoredRun) -> list[str]:
    """Return one sentence for each copy whose recorded size of the trace contradicts the time of the copy."""
    if not (run.demands.traces and run.demands.logs and one_clock(run.header)):
        return []
    taken = {(copy.copy, copy.node): copy.taken_ns for copy in run.copies_index}
    tables = {node: read_table(path, ("seq", "time_ns")).sort_by("seq") for node, path in node_files(run.trace).items()}
    times = {node: (numbers(rows, "seq"), numbers(rows, "time_ns")) for node, rows in tables.items()}
    run_ns = run.record.journal[-1].time_ns
    spans = {node: (int(at_ns.min()), int(at_ns.max())) for node, (_, at_ns) in times.items() if len(at_ns)}
    if too_long := [node for node, (first, last) in spans.items() if last - first > run_ns]:
        return [f"the times in the trace of {', '.join(too_long)} span more than the run"]
    if foreign := [node for node, (first, last) in spans.items() if first < 0 or last > run_ns]:
        words = f"the trace of {', '.join(foreign)} has rows with times outside of the run, and there is only one clock"
        return [words] if one_kernel(run.header) else []
    clauses = []
    for copy in (*run.copies, *run.damaged_copies):
        taken_ns = taken.get((copy["copy"], copy["node"]), -1)
        if copy["error"] or copy["node"] not in times or taken_ns < 0:
            continue
        seq, time_ns = times[copy["node"]]
        behind = int(np.searchsorted(seq, copy["trace_seq"], side="right"))
        late = behind > 0 and int(time_ns[behind - 1]) > taken_ns
        early = behind + _IN_FLIGHT < len(seq) and int(time_ns[behind + _IN_FLIGHT]) < taken_ns
        if late or early:
            words = "had rows of a later time" if late else "lacked rows of an earlier time"
            clauses.append(_wrong_copy(copy, f"its trace {words} than its size shows"))
    return clauses


BONDS = EvidenceComparison("the manifest", lambda run, _: broken_bonds(run.root))

COMPARISONS = (
    EvidenceComparison("the journal", _journal),
    EvidenceComparison("the order of phases", _phases_ran),
    BONDS,
    EvidenceComparison("the set-up", _set_up),
    EvidenceComparison("the records of faults", _faults),
    EvidenceComparison("a measured state", lambda run, _: rows_while_held(run), "times"),
    EvidenceComparison("the times of traces", lambda run, _: times_fall(run), "times"),
    EvidenceComparison("a measured state or link", lambda run, _: answers_while_held(run), "answerers"),
    EvidenceComparison("a node that answered", _answering_nodes, "answerers"),
    EvidenceComparison("the deaths of servers", _deaths),
    EvidenceComparison("the copies", _copies),
    EvidenceComparison("the traces at the copies", lambda run, _: at_another_length(run), "times"),
    EvidenceComparison("the logs at the copies", lambda run, _: behind_trace(run)),
    EvidenceComparison("the times of the history", _resolution, "times"),
    EvidenceComparison("the final reads", _final_reads),
    EvidenceComparison("the clocks of test.json", _clocks),
)

EVIDENCE = checker_of_run(
    "evidence",
    "Is the evidence whole?",
    "Is all recorded evidence of the run present, unchanged and free of contradictions?",
    combine,
)
