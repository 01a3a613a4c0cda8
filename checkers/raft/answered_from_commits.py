"""Checkers that answers of clients rest on committed entries: on all that were known, and on none that were not.

*All that was known.*  An answer reflects everything that any node knew to be committed when its operation was invoked.

KIP-595 and Ongaro & Ousterhout 2014, section 8: a leader confirms that it still leads before it answers from its state.
Suppose that a node reported a mark before an operation was invoked.  Then a leader that can still confirm holds
everything below that mark, and the answer must rest on a log that begins with it.  So a value that an entry below the
mark overwrote is stale, unless a later entry writes it again and is committed before the answer arrives.

Clients alone see less.  A write without an answer excuses many stale answers, and where values repeat it excuses nearly
all.  Here the log settles what the register held.

The rule compares times in traces with times in the history, which is sound only on one monotonic clock: a mark is
stamped when it is known, and an invocation before it is sent.  The log is that of one node: the one whose own mark is
the largest, among those whose final copy reaches it.  An answer that may rest on later entries is not judged.

A recorder whose clock runs faster or slower than the nodes' would blame them for hundreds of answers.  Two things show
it, and then this and all else that rests on times is unknown.  No write can be committed before it is invoked, if it is
the only write of its value.  And no system acknowledges its writes ever earlier before they are committed, from the
first tenth of a run to its last.

One part.  Memory: 100 bytes a row of the history, and as much for each entry and mark.

*Nothing uncommitted.*  The answering node knew of the commit before its answer arrived.

A write may be acknowledged only when the answering node's high watermark covers its entry.  A read may return only a
value whose entry lies below that mark (KIP-595).  Both rules compare a time in a trace with a time in the history. That
is sound only on one monotonic clock.  There, the row of a mark is stamped before it is written, the answer leaves
afterwards, and the harness stamps the answer after it has arrived.  So a mark that covers the entry has a time at or
before the completion's.

Not applicable where the servers do not share the harness' clock: another backend than those of one machine, or a Docker
engine in a virtual machine, whose traces have times outside of the test.  On the harness' own kernel such times cannot
be right, so the verdict is unknown.  Nor is it applicable where clients write a value twice, because then no value
names its entry.  A value that stands at several offsets, or at none in the answering node's final log, is left to
other checkers.

A part is one node and some of the keys: one reading of the node's final log and of the history, a chunk at a time.
Memory: 100 bytes for each entry of those keys, and 20 bytes for each mark of the node.  The history's length does not
matter, and a longer log is split into more parts.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools, Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.clocks import one_clock, one_kernel
from checkers.base.history import NEMESIS, Type
from checkers.base.run_evidence import (
    conclude,
    gaps,
    log_groups,
    log_rows,
    numbers,
    present,
    read_entries,
    read_trace,
)
from checkers.base.stored_run import StoredRun, by_number, node_files
from checkers.base.values import span_in_words
from checkers.base.verdict import DOUBTED, Validity, Verdict, Witness
from checkers.raft.client_writes import (
    SIZE_BYTES_PER_NAME,
    WRITES,
    Entries,
    WantedNames,
    function_is,
    offset_ranges,
)
from checkers.raft.reading import nothing_of
from checkers.raft.trace_row import WITNESSES_PER_PART
from checkers.sealing.codes import Words, dictionary_codes
from checkers.sealing.history_rows import chunks_of_groups, read_rows

ROW_SIZE_BYTES = 100
WRITES_IN_TENTH_MIN = 10
"""Writes in each tenth of a run without which no pace is measured."""
DRIFT_NS_MIN = 10_000_000
_COLUMNS = ("time_ns", "process", "type", "f", "key", "value")
_SHOWN = ("index", "time_ns", "process", "type", "f", "key", "value", "node")


@dataclass(frozen=True, slots=True)
class StaleFinding:
    """answered: reads and writes of one value that were answered.  answers: how many of them were judged.

    strangers: nodes whose traces have times outside of the test.
    other_pace: what shows that the recorder's clock does not run as fast as theirs, "" if nothing does."""

    witnesses: tuple[Witness, ...] = ()
    answered: int = 0
    answers: int = 0
    violations: int = 0
    strangers: tuple[str, ...] = ()
    unknown: str = ""
    other_pace: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """Reads and writes of one value that were answered.  invoked, answered: their times.  row: of the answer.
    only_write: whether it is the only write of its value to its key that was invoked."""

    key: Int64
    value: Int64
    invoked: Int64
    answered: Int64
    row: Int64
    invoke_row: Int64
    only_write: Bools


@dataclass(frozen=True, slots=True)
class LargestMarks:
    """The largest mark that any node had reported by a time.  time_ns ascends.  epoch: of the row that reported it."""

    time_ns: Int64
    largest: Int64
    epoch: Int64

    def by(self, time_ns: Int64) -> Int64:
        return np.append(self.largest, 0)[np.searchsorted(self.time_ns, time_ns, side="right") - 1]


def _split(run: StoredRun) -> list[Part]:
    traces, logs = node_files(run.trace), node_files(run.log)
    final = [c for c in run.copies if c["when"] == "final" and not c["error"] and c["node"] in traces]
    if not one_clock(run.header) or not run.history.exists() or not traces:
        return []
    copies = [{name: c[name] for name in ("node", "copy", "log_end", "trace_seq")} for c in final if c["node"] in logs]
    return [Part((str(run.history), *traces.values()), {"nodes": list(traces), "logs": logs, "copies": copies})]


def _judge(part: Part, budget: Budget) -> StaleFinding:
    history, *traces = part.paths
    tables = dict(zip(part.params["nodes"], (_marks_of(path) for path in traces), strict=True))
    entries = sum(copy["log_end"] for copy in part.params["copies"])
    rows = pq.read_metadata(history).num_rows + sum(map(len, tables.values())) + entries
    if rows * ROW_SIZE_BYTES > budget.size_bytes:
        return StaleFinding(unknown=f"{rows} rows are beyond the budget of {budget.size_bytes} bytes")
    keys = Words()
    answers, ended_ns = _answers(history, keys)
    strangers = tuple(node for node, marks in tables.items() if out_of_test(numbers(marks, "time_ns"), ended_ns))
    if strangers or not len(answers.row):
        return StaleFinding(strangers=strangers)
    whole = [copy for copy in part.params["copies"] if _begins_at_0(part.params["logs"][copy["node"]], copy["copy"])]
    chosen = _reference(whole, tables)
    if chosen is None:
        return StaleFinding(
            answered=len(answers.row),
            unknown="no final log reaches from offset 0 to what its node knew to be committed",
        )
    copy, end = chosen
    log, epochs = _entries(part.params["logs"][copy["node"]], copy["copy"], end, keys)
    marks = _joined(list(tables.values()))
    other_pace = "" if _two_led(traces) else other_pace_of_recorder(answers, marks, log, epochs)
    if other_pace:
        return StaleFinding(answered=len(answers.row), other_pace=other_pace)
    judged, stale = stale_answers(answers, marks, log, end)
    shown = np.flatnonzero(stale)[:WITNESSES_PER_PART].tolist()
    held = [_held(answers, at, marks, log, end, tables) for at in shown]
    writers = _writers(history, keys, {(h.key, h.value) for h in held if h.value is not None}) if shown else {}
    witnesses = []
    for at, overwriting in zip(shown, held, strict=True):
        answer = [int(answers.invoke_row[at]), int(answers.row[at])]
        writer = writers.get((overwriting.key, overwriting.value), [])
        rows = read_rows(Path(history), [*writer, *answer], _SHOWN)
        entry = log_rows(part.params["logs"][copy["node"]], copy["copy"], [overwriting.offset])
        witnesses.append(_witness(rows[-2], rows[-1], rows[:-2], entry, overwriting))
    return StaleFinding(tuple(witnesses), len(answers.row), int(judged.sum()), int(stale.sum()))


@dataclass(frozen=True, slots=True)
class Held:
    """Value that a key held for certain when a stale answer's operation was invoked.

    key: its code.  value: None if it was removed.  offset: of the entry, -1 if no entry is known to be committed.
    mark: everything below it was committed.  node, known_ns: who had first reported that this entry is committed.
    """

    key: int
    value: int | None
    offset: int
    mark: int
    node: str
    known_ns: int


def _held(answers: Answers, at: int, marks: LargestMarks, log: Entries, end: int, tables: dict[str, pa.Table]) -> Held:
    key, mark = int(answers.key[at]), min(int(marks.by(answers.invoked[[at]])[0]), end)
    below = np.flatnonzero((log.key == key) & (log.offset < mark))
    if not len(below):
        return Held(key, None, -1, mark, "", -1)
    last = int(below[np.argmax(log.offset[below])])
    offset = int(log.offset[last])
    knew = []
    for node, table in tables.items():
        times = numbers(table, "time_ns")[numbers(table, "offset") > offset]
        if len(times):
            knew.append((int(times.min()), node))
    known_ns, node = min(knew, default=(-1, ""))
    return Held(key, int(log.value[last]) if log.has_value[last] else None, offset, mark, node, known_ns)


def _writers(history: str, keys: Words, wanted: set[tuple[int, int | None]]) -> dict[tuple[int, int | None], list[int]]:
    """(key, value) -> rows of the one write of it, its invoke and its answer; left out where several wrote it."""
    with pq.ParquetFile(history, read_dictionary=["key"]) as file:
        rows = file.read(list(_COLUMNS), use_threads=False)
    key = np.asarray(keys.codes(rows["key"]), np.int64)
    value, process, kind = (numbers(rows, name) for name in ("value", "process", "type"))
    invoked = np.flatnonzero(np.asarray(function_is(rows, "write")) & (kind == Type.INVOKE) & present(rows, "value"))
    out = {}
    for name in wanted:
        mine = invoked[(key[invoked] == name[0]) & (value[invoked] == name[1])]
        if len(mine) == 1:
            later = np.flatnonzero(process[mine[0] + 1 :] == process[mine[0]])
            out[name] = [int(mine[0]), *(int(mine[0]) + 1 + later[:1]).tolist()]
    return out


def stale_answers(answers: Answers, marks: LargestMarks, log: Entries, end: int) -> tuple[Bools, Bools]:
    """Return (which answers can be judged, which of them are stale).  log: the committed entries below `end`."""
    size = end + 1
    since = np.minimum(marks.by(answers.invoked), end)
    until = marks.by(answers.answered)
    key = log.key.astype(np.int64)
    order = np.argsort(key * size + log.offset)
    places = (key * size + log.offset)[order]
    before = np.searchsorted(places, answers.key * size + since) - 1
    at = order[np.maximum(before, 0)] if len(order) else np.zeros(len(answers.key), np.int64)
    holds = np.zeros(len(answers.key), np.bool_)
    if len(order):
        holds = (before >= 0) & (key[at] == answers.key) & log.has_value[at] & (log.value[at] == answers.value)
    again = _written_between(answers, log, since, np.minimum(until, end), size)
    judged = holds | again | (until <= end)
    return judged, judged & ~holds & ~again


def other_pace_of_recorder(answers: Answers, marks: LargestMarks, log: Entries, epochs: Int64) -> str:
    """Return what shows that the clock of the history does not run as fast as that of the traces; "" if nothing.

    epochs: of the entries of `log`.  A mark of an earlier epoch covered another entry at that offset: the system lost
    what was committed, and nothing follows for a clock."""
    mine, theirs = np.flatnonzero(answers.only_write), np.flatnonzero(log.has_value)
    names = np.concatenate([_names(log.key[theirs], log.value[theirs]), _names(answers.key[mine], answers.value[mine])])
    _, number, count = np.unique(names, axis=0, return_inverse=True, return_counts=True)
    number = number.reshape(-1)
    entry_of = np.full(len(count), -1, np.int64)
    entry_of[number[: len(theirs)]] = theirs
    entry = entry_of[number[len(theirs) :]]
    once = (count[number[len(theirs) :]] == 2) & (entry >= 0)
    mine, entry = mine[once], entry[once]
    place = np.searchsorted(marks.largest, log.offset[entry], side="right")
    covered = np.append(marks.epoch, -1)[place] >= epochs[entry]
    mine, place = mine[covered], place[covered]
    committed, invoked, answered = marks.time_ns[place], answers.invoked[mine], answers.answered[mine]
    if early := int(np.sum(committed < invoked)):
        most_ms = int((invoked - committed).max()) / 1e6
        return (
            f"{early} of {len(mine)} writes were committed up to {most_ms:.0f} ms before they were invoked: the clock "
            "of the recorder runs ahead of the nodes'"
        )
    ahead = [
        float(np.median(tenth))
        for tenth in np.array_split((answered - committed)[np.argsort(answered)], 10)
        if len(tenth) >= WRITES_IN_TENTH_MIN
    ]
    rises = int(np.sum(np.diff(ahead) >= 0))
    if len(ahead) < 10 or rises > 1 or ahead[-1] >= 0 or ahead[0] - ahead[-1] < DRIFT_NS_MIN:
        return ""
    return (
        f"writes were acknowledged ever earlier before they were committed, at last by {-ahead[-1] / 1e6:.0f} ms: the "
        "clock of the recorder runs slower than the nodes'"
    )


def _names(key: Any, value: Int64) -> Int64:
    return np.stack([np.asarray(key, np.int64), np.asarray(value, np.int64)], axis=1)


def _written_between(answers: Answers, log: Entries, since: Int64, until: Int64, size: int) -> Bools:
    """Return whether an entry at or above `since` and below `until` writes the answer's value to its key."""
    kept = np.flatnonzero(log.has_value)
    if len(kept) == 0:
        return np.zeros(len(answers.key), np.bool_)
    names = np.stack([np.append(log.key[kept], answers.key), np.append(log.value[kept], answers.value)])
    _, number = np.unique(names, axis=1, return_inverse=True)
    number = number.reshape(-1).astype(np.int64)
    places = np.sort(number[: len(kept)] * size + log.offset[kept])
    wanted = number[len(kept) :] * size
    found = np.append(places, np.iinfo(np.int64).max)[np.searchsorted(places, wanted + since)]
    return np.asarray(found < wanted + until)


def _answers(history: str, keys: Words) -> tuple[Answers, int]:
    """Return (the answers, the time of the last row)."""
    with pq.ParquetFile(history, read_dictionary=["key"]) as file:
        rows = file.read(list(_COLUMNS), use_threads=False)
    key = np.asarray(keys.codes(rows["key"]), np.int64)
    time_ns, process, kind = (numbers(rows, name) for name in ("time_ns", "process", "type"))
    order = np.lexsort((np.arange(len(rows)), process))
    invoke_of = np.full(len(rows), -1, np.int64)
    invoke_of[order[1:]] = order[:-1]
    wanted = (kind == Type.OK) & (process != NEMESIS) & (key >= 0) & present(rows, "value")
    at = np.flatnonzero(wanted & np.asarray(function_is(rows, "read", "write")) & (invoke_of >= 0))
    at = at[(kind[invoke_of[at]] == Type.INVOKE) & (process[invoke_of[at]] == process[at])]
    first = invoke_of[at]
    value, writes = numbers(rows, "value"), np.asarray(function_is(rows, "write"))
    tries = np.flatnonzero(writes & (kind == Type.INVOKE) & present(rows, "value"))
    names = np.concatenate([_names(key[tries], value[tries]), _names(key[at], value[at])])
    _, number = np.unique(names, axis=0, return_inverse=True)
    number = number.reshape(-1)
    once = np.bincount(number[: len(tries)], minlength=len(names))[number[len(tries) :]] == 1
    answers = Answers(key[at], value[at], time_ns[first], time_ns[at], at, first, writes[at] & once)
    return answers, int(time_ns.max(initial=0))


def _two_led(traces: Sequence[str]) -> bool:
    """Return whether two nodes led one epoch: then offset and epoch name no entry."""
    led = [read_trace(path, ("role",), ("epoch", "role")) for path in traces]
    epochs = [set(numbers(rows.filter(pc.equal(rows["role"], "leader")), "epoch").tolist()) for rows in led]
    return sum(map(len, epochs)) > len(set().union(*epochs))


def _marks_of(path: str) -> pa.Table:
    return read_trace(path, ("high-watermark",), ("offset", "time_ns", "epoch"))


def _joined(tables: Sequence[pa.Table]) -> LargestMarks:
    columns = (np.concatenate([numbers(table, name) for table in tables]) for name in ("time_ns", "offset", "epoch"))
    time_ns, offset, epoch = columns
    order = np.argsort(time_ns, kind="stable")
    largest = np.maximum.accumulate(offset[order])
    reported = np.maximum.accumulate(np.where(offset[order] == largest, np.arange(len(order)), 0))
    return LargestMarks(time_ns[order], largest, epoch[order][reported])


def _reference(copies: Sequence[dict[str, Any]], marks: dict[str, pa.Table]) -> tuple[dict[str, Any], int] | None:
    """The final copy with the largest mark of its own node that it reaches, and this mark."""
    found = []
    for number, copy in enumerate(copies):
        table = marks[copy["node"]]
        known = numbers(table, "offset")[numbers(table, "seq") <= copy["trace_seq"]]
        if len(known) and copy["log_end"] >= known.max():
            found.append((int(known.max()), -number))
    return (copies[-max(found)[1]], max(found)[0]) if found else None


def _begins_at_0(log: str, copy: int) -> bool:
    return min((group.first for group in log_groups(pq.read_metadata(log), copy)), default=0) == 0


def _entries(log: str, copy: int, end: int, keys: Words) -> tuple[Entries, Int64]:
    """(the entries below `end`, the epoch of each)."""
    rows = read_entries(log, copy, 0, ("offset", "key", "value", "epoch"), end)
    entries = Entries.of(rows, keys)
    return entries, numbers(rows, "epoch")[np.searchsorted(numbers(rows, "offset"), entries.offset)]


def _witness(
    invoke: dict[str, Any],
    answer: dict[str, Any],
    writer: Sequence[dict[str, Any]],
    entry: Sequence[dict[str, Any]],
    held: Held,
) -> Witness:
    node, key, value = answer["node"], answer["key"], answer["value"]
    read = answer["f"] == "read"
    what = f"answered a read of {key} with {value}" if read else f"acknowledged {value} for {key}"
    new = "no value" if held.value is None else f"{held.value}"
    if held.offset < 0:
        clause = f"although no write of {value} was committed by then"
        why = f"No entry below offset {held.mark} writes to {key}, and none that was committed before the answer does."
    else:
        before = f"{span_in_words(invoke['time_ns'] - held.known_ns)} before it was invoked"
        clause = (
            f"although {held.node} had reported {before} that {new} is committed"
            if read
            else f"but no entry from {new} to the answer writes it; {held.node} reported {new} as committed {before}"
        )
        why = (
            f"The log holds {new} for {key} at offset {held.offset}. {held.node} reported at "
            f"{held.known_ns / 1e9:.3f} s that this entry is committed, and the operation was invoked at "
            f"{invoke['time_ns'] / 1e9:.3f} s."
        )
    letters = {str(row["index"]): letter for row, letter in zip([*writer[:1], invoke], "AB"[not writer :], strict=True)}
    return Witness(
        kind="answer from the past",
        summary=f"At {answer['time_ns'] / 1e9:.3f} s {node} {what}, {clause}.",
        events=tuple({"table": "history", **event} for event in (*writer, invoke, answer)),
        rows=tuple(entry),
        facts={
            "nodes": [node],
            "epoch": None,
            "offset": held.offset if held.offset >= 0 else held.mark - 1,
            "key": key,
            "value": value,
            "letters": letters,
            "culprit": "B",
            "why": [why, f"No entry from there to the answer writes {value} to {key} again."],
            "expected": f"an answer of {new}, or of a later write"
            if held.offset >= 0 and read
            else "a leader that still leads answers from all that was committed before the invocation",
        },
    )


def _combine(run: StoredRun, findings: Sequence[StaleFinding]) -> Verdict:
    strangers = sorted({node for f in findings for node in f.strangers})
    if (verdict := other_clock(run, strangers)) is not None:
        return verdict
    paces = [f.other_pace for f in findings if f.other_pace]
    unknown = [*paces, *(f.unknown for f in findings if f.unknown), *gaps(run, "logs", "traces")]
    if findings and not any(f.answered for f in findings) and not unknown:
        reason = "no read or write of a single value was answered"
        return Verdict(Validity.NOT_APPLICABLE, reason=reason)
    looked_at = {"answers": sum(f.answers for f in findings)}
    if violations := sum(f.violations for f in findings):
        looked_at["violations"] = violations
    unknown += [] if paces else nothing_of(looked_at, "answers")
    details = {DOUBTED: {"times": paces[0]}} if paces else None
    return conclude([w for f in findings for w in f.witnesses], looked_at, unknown, details)


ANSWERED_FROM_COMMITS = Checker(
    name="answers-from-commits",
    title="Answers reflect what was committed",
    question="Did every answer reflect all that any node knew to be committed when the operation was invoked?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"history", "logs", "traces", "kraft-steps"}),
    rests_on=frozenset({"times", "answerers"}),
)


ENTRIES_PER_PART = 1 << 22


_SLACK_NS = 120_000_000_000
"""The longest time between the last row of the history and the collection of traces."""


@dataclass(frozen=True, slots=True)
class AnswersFinding:
    """answers: of this node that could be judged.  foreign_clock: its trace has times outside of the test."""

    node: str
    witnesses: tuple[Witness, ...] = ()
    answers: int = 0
    foreign_clock: bool = False
    unknown: str = ""


def _split_by_keys(run: StoredRun) -> list[Part]:
    traces, logs = node_files(run.trace), node_files(run.log)
    final = {c["node"]: c["copy"] for c in run.copies if c["when"] == "final" and not c["error"]}
    if not one_clock(run.header) or not run.history.exists():
        return []
    parts = []
    for node, path in traces.items():
        if node in logs and node in final:
            metadata = pq.read_metadata(logs[node])
            groups = log_groups(metadata, final[node])
            entries = sum(metadata.row_group(group.number).num_rows for group in groups)
            count = -(-max(1, entries) // ENTRIES_PER_PART)
            params = {"node": node, "copy": final[node], "count": count}
            parts += [Part((str(run.history), path, logs[node]), {**params, "number": n}) for n in range(count)]
    return parts


def _judge_node(part: Part, budget: Budget) -> AnswersFinding:
    (history, trace, log), node = part.paths, part.params["node"]
    marks = read_trace(trace, ("high-watermark",), ("offset", "time_ns"))
    names, offset = _once(log, part)
    needed_bytes = len(names) * SIZE_BYTES_PER_NAME + len(marks) * 20
    if needed_bytes > budget.size_bytes:
        return AnswersFinding(
            node, unknown=f"{log}: {needed_bytes} bytes exceed the budget of {budget.size_bytes} bytes"
        )
    times = numbers(marks, "time_ns")
    covered = _covered_at(numbers(marks, "offset"), times, offset)
    early: list[tuple[int, int, int]] = []  # time of the answer, its row, offset
    first_row = answers = ended_ns = 0
    for rows in chunks_of_groups(history, ("time_ns", "process", "type", "f", "key", "value", "node")):
        answered = numbers(rows, "time_ns")
        ended_ns = max(ended_ns, int(answered.max()))
        number = names.number(rows, _is_answer(rows, node))
        at = np.flatnonzero(number >= 0)
        at = at[offset[number[at]] >= 0]
        name = number[at]
        answers += len(at)
        wrong = covered[name] > answered[at]
        found = zip(answered[at[wrong]], first_row + at[wrong], offset[name[wrong]], strict=True)
        early = sorted([*early, *((int(t), int(r), int(o)) for t, r, o in found)])[:WITNESSES_PER_PART]
        first_row += len(rows)
    if out_of_test(times, ended_ns):
        return AnswersFinding(node, foreign_clock=True)
    events = read_rows(Path(history), [row for _, row, _ in early], _SHOWN) if early else []
    witnesses = [
        _early_answer(node, {"table": "history", **event, "offset": offset})
        for event, (_, _, offset) in zip(events, early, strict=True)
    ]
    return AnswersFinding(node, tuple(witnesses), answers)


def out_of_test(times_ns: Int64, ended_ns: int) -> bool:
    """Return whether these times of a trace cannot be of the harness' clock.  ended_ns: the last row of the history."""
    return bool(len(times_ns) and (times_ns.min() < 0 or times_ns.max() > ended_ns + _SLACK_NS))


def other_clock(run: StoredRun, strangers: Sequence[str]) -> Verdict | None:
    """Return the verdict if times cannot be compared.  strangers: nodes with times outside of the test."""
    if strangers and one_kernel(run.header):
        reason = f"times in the trace of {', '.join(strangers)} lie outside of the test, and there is only one clock"
        return Verdict(Validity.UNKNOWN, reason=reason)
    if strangers or not one_clock(run.header):
        return Verdict(Validity.NOT_APPLICABLE, reason="the servers do not share a monotonic clock with the harness")
    return None


def _is_answer(rows: pa.Table, node: str) -> Bools:
    """Return which rows are reads and writes of one value that this node answered."""
    nodes, words = dictionary_codes(rows["node"])
    mine = (nodes == words.index(node)) if node in words else np.zeros(len(rows), np.bool_)
    mine &= (numbers(rows, "type") == Type.OK) & (numbers(rows, "process") != NEMESIS)
    return np.asarray(mine & present(rows, "key") & present(rows, "value") & function_is(rows, "read", *WRITES))


def _once(log: str, part: Part) -> tuple[WantedNames, Int64]:
    """Return (the values that entries of the part's keys set, the offset of each or -1 if it has several)."""
    keys = Words()
    pieces = []
    for first, end in offset_ranges([log]):
        rows = read_entries(log, part.params["copy"], first, ("key", "value"), end)
        entries = Entries.of(rows, keys)
        mine = np.array([zlib.crc32(key.encode()) % part.params["count"] for key in keys.words], np.int64)
        pieces.append(entries.taken(np.flatnonzero((mine[entries.key] == part.params["number"]) & entries.has_value)))
    names, name_of = WantedNames.of(pieces, keys)
    offset, times = np.full(len(names), -1, np.int64), np.zeros(len(names), np.int64)
    for entries, name in zip(pieces, name_of, strict=True):
        offset[name] = entries.offset
        times += np.bincount(name, minlength=len(names))
    return names, np.where(times == 1, offset, -1)


def _covered_at(marks: Int64, times: Int64, offsets: Int64) -> Int64:
    """Return when the node first reported a mark above each offset; the largest int64 if it never did."""
    never = np.iinfo(np.int64).max
    order = np.argsort(marks, kind="stable")
    first = np.append(np.minimum.accumulate(times[order][::-1])[::-1], never)
    return np.asarray(first[np.searchsorted(marks[order], offsets, side="right")], np.int64)


def _early_answer(node: str, answer: dict[str, Any]) -> Witness:
    what = "acknowledged a write of" if answer["f"] in WRITES else "answered a read with"
    why = (
        f"{node} {what} {answer['value']} to {answer['key']} before it reported that offset {answer['offset']}, "
        "where that value stands, is committed."
    )
    return Witness(
        kind="acknowledged before it was committed" if answer["f"] in WRITES else "read of an uncommitted value",
        summary=why,
        events=(answer,),
        facts={
            "nodes": [node],
            "epoch": None,
            "offset": answer["offset"],
            "key": answer["key"],
            "value": answer["value"],
            "why": [why],
            "expected": "an answer leaves after the node's mark covers the entry that it rests on",
        },
    )


def _combine_nodes(run: StoredRun, findings: Sequence[AnswersFinding]) -> Verdict:
    strangers = sorted({f.node for f in findings if f.foreign_clock}, key=by_number)
    if (verdict := other_clock(run, strangers)) is not None:
        return verdict
    looked_at = {"nodes": len({f.node for f in findings}), "answers": sum(f.answers for f in findings)}
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "logs", "traces")
    unknown += nothing_of(looked_at, "answers")
    return conclude([w for f in findings for w in f.witnesses], looked_at, unknown)


ANSWERED_AFTER_COMMIT = Checker(
    name="answers-after-commit",
    title="Answers rest on committed entries",
    question="Did every answering node know that the entry was committed before its answer arrived?",
    split=_split_by_keys,
    judge=_judge_node,
    combine=_combine_nodes,
    needs=frozenset({"history", "logs", "traces", "unique-values", "client-records"}),
    rests_on=frozenset({"times", "answerers"}),
)
