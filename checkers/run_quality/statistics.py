"""Counts how often each operation was invoked, how it ended and how long it took, with and without faults.

This judges the test and not the system.  If a function was invoked and never succeeded, nothing can be concluded about
it, so the verdict is *unknown*.  All times are of the clock of the harness.

Client nodes measure by their own clocks, too, what each operation took.  A recorder that notes invokes early, or
completions late, widens every operation and hides stale answers.  So medians that differ by more than the harness' own
loop explains make the verdict unknown.

The history is judged in parts of consecutive rows, so its length does not matter.  An operation may begin in one part
and end in a later one.  So a part returns its open operations, and the completions whose invoke it does not hold.
`combine` joins them.  Errors are counted by their text without its numbers, the most frequent first.  Latencies are
counted by value, in microseconds with 17 significant bits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools, Int8, Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.history import CREATE, MalformedHistory, Type
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.kernels.jit import kernel
from checkers.run_quality.minimums import END_OF_TIME
from checkers.sealing.codes import dense_processes, dictionary_codes
from checkers.sealing.history_rows import parts_of_history

RECORDED_LATE_MS = 250.0
LATE_LOOPS = 4
"""An operation may take so much longer by the harness, and so many times the median delay of its loop in addition."""
QUANTILES = (0.5, 0.95, 0.99, 1.0)
SIZE_BYTES_PER_EVENT = 80
_SIGNIFICANT_BITS = 17
_ERROR_CHARACTERS = 150
ERRORS_MAX = 20
"""Different errors that are listed; a part of a history lists no more either."""
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d{4,}|\d+\.\d+")
"""Differences between two texts of one error: addresses, ports, times."""
REFUSED_CONNECTION = "ConnectionRefusedError"
"""Beginning of the error of a refused connection, as a client of one's own reports it."""
_UNSUCCESSFUL = (int(Type.FAIL), int(Type.INFO))
_WHEN = ("without faults", "under faults")

Spans = list[tuple[int, int]]
Latencies = Counter[int]
"""Latency in microseconds -> number of operations that had it."""


@dataclass(slots=True)
class FunctionCount:
    """One function: how many operations were invoked, how many ended in each way, and how long the ok ones took,
    without faults and under faults."""

    invoked: int = 0
    ended: Counter[int] = field(default_factory=Counter)
    latencies: tuple[Latencies, Latencies] = field(default_factory=lambda: (Counter(), Counter()))

    def add(self, other: FunctionCount) -> None:
        self.invoked += other.invoked
        self.ended.update(other.ended)
        for mine, theirs in zip(self.latencies, other.latencies, strict=True):
            mine.update(theirs)


@dataclass(frozen=True, slots=True)
class PartCount:
    """functions: by name, of the operations that were invoked here.  left_open: process -> (function, time of invoke).
    orphans: (process, type, time) of completions whose invoke stands in an earlier part, in order.
    first_ns, last_ns: of client events; first_ns is -1 if there are none.  over_budget: why nothing was counted.
    last_errors: function -> why its last operation that did not succeed here did not.
    refused_connections: how many operations are of unknown outcome although a connection was refused.
    errors: (type, error without its numbers) -> how many operations ended so."""

    functions: Mapping[str, FunctionCount]
    left_open: Mapping[int, tuple[str, int]]
    orphans: tuple[tuple[int, int, int], ...]
    first_ns: int = -1
    last_ns: int = -1
    over_budget: str = ""
    last_errors: Mapping[str, str] = field(default_factory=dict)
    refused_connections: int = 0
    errors: Mapping[tuple[int, str], int] = field(default_factory=dict)


def split(files: StoredRun) -> Sequence[Part]:
    """One part for each run of consecutive row groups, with the spans of time in which a fault was in place.

    Raises MalformedHistory if the history is not sealed."""
    if not files.history.exists():
        raise MalformedHistory(f"{files.root}: the history is not sealed, there is no {files.history.name}")
    return parts_of_history(files.history, {"faults": _fault_spans(files)})


def judge(part: Part, budget: Budget) -> PartCount:
    groups = list(range(part.params["first"], part.params["end"]))
    with pq.ParquetFile(part.paths[0]) as file:
        needed_bytes = sum(file.metadata.row_group(g).num_rows for g in groups) * SIZE_BYTES_PER_EVENT
        if needed_bytes > budget.size_bytes:
            words = f"a part of the history needs {needed_bytes} bytes, the budget is {budget.size_bytes}"
            return PartCount({}, {}, (), over_budget=words)
        table = file.read_row_groups(groups, ["time_ns", "process", "type", "f", "error"], use_threads=False)
    process = np.asarray(table.column("process").combine_chunks())
    clients = np.flatnonzero(process >= 0)
    if not len(clients):
        return PartCount({}, {}, ())
    codes, names = dictionary_codes(table.column("f"))
    codes, process = codes[clients], process[clients]
    time_ns = np.asarray(table.column("time_ns").combine_chunks())[clients]
    type_ = np.asarray(table.column("type").combine_chunks())[clients]
    invoked, ended_at, orphans = _pair(*dense_processes(process), type_)
    invoked_ns, ended_ns = time_ns[invoked], np.where(ended_at < 0, -1, time_ns[ended_at])
    ended_as = np.where(ended_at < 0, int(Type.INVOKE), type_[ended_at]).astype(np.int8)
    faults = np.array(part.params["faults"], np.int64).reshape(-1, 2)
    faulty = _overlaps(invoked_ns, np.where(ended_ns < 0, invoked_ns, ended_ns), faults)
    code_of = codes[invoked]
    functions = {
        names[f]: _count(code_of == f, invoked_ns, ended_ns, ended_as, faulty) for f in np.unique(code_of).tolist()
    }
    rows = invoked[ended_at < 0].tolist()
    left_open = {int(process[row]): (names[codes[row]], int(time_ns[row])) for row in rows}
    strays = tuple((int(process[row]), int(type_[row]), int(time_ns[row])) for row in orphans.tolist())
    unsuccessful = {
        names[f]: clients[(codes == f) & np.isin(type_, _UNSUCCESSFUL)][-1:] for f in np.unique(codes).tolist()
    }
    errors = {
        f: str(table.column("error")[row].as_py() or "") for f, rows in unsuccessful.items() for row in rows.tolist()
    }
    first_ns, last_ns, refused = int(time_ns.min()), int(time_ns.max()), _refused_connections(table)
    found = _errors(table.take(pa.array(clients)))
    return PartCount(functions, left_open, strays, first_ns, last_ns, "", errors, refused, found)


def combine(files: StoredRun, findings: Sequence[PartCount]) -> Verdict:
    if over := next((finding.over_budget for finding in findings if finding.over_budget), ""):
        return Verdict(Validity.UNKNOWN, {}, over)
    spans = _fault_spans(files)
    functions = _joined(findings, spans)
    if not functions:
        return Verdict(Validity.NOT_APPLICABLE, reason="no client invoked anything")
    first = min(finding.first_ns for finding in findings if finding.first_ns >= 0)
    last = max(finding.last_ns for finding in findings)
    in_faults_ns = sum(max(0, min(end, last) - max(start, first)) for start, end in _merged(spans))
    looked_at: dict[str, int | float | str] = {"operations": sum(f.invoked for f in functions.values())}
    details: dict[str, Any] = {"functions": {}}
    if refused := sum(finding.refused_connections for finding in findings):
        details["refused_connections"] = refused
    if frequent := _most_frequent(findings):
        details["errors"] = frequent
    for name, f in sorted(functions.items()):
        ended = {"ok": f.ended[Type.OK], "fail": f.ended[Type.FAIL], "info": f.ended[Type.INFO]}
        counts = {"invoked": f.invoked, **ended, "open": f.invoked - sum(ended.values())}
        latency = {when: _quantiles(took) for when, took in zip(_WHEN, f.latencies, strict=True) if took}
        details["functions"][name] = {**counts, "latency_ms": latency}
    for ending in ("ok", "fail", "info", "open"):
        looked_at[ending] = sum(f[ending] for f in details["functions"].values())
    looked_at["seconds"] = round((last - first) / 1e9, 3)
    looked_at["seconds_under_faults"] = round(in_faults_ns / 1e9, 3)
    if last > first:
        looked_at["ok_per_second"] = round(int(looked_at["ok"]) / ((last - first) / 1e9), 2)
    late = [words for name, f in sorted(functions.items()) if (words := _recorded_late(files, name, f))]
    never = [name for name, f in sorted(functions.items()) if not f.ended[Type.OK]]
    if never:
        errors = {f: error for finding in findings for f, error in finding.last_errors.items() if f in never and error}
        reason = f"no {' and no '.join(never)} ever succeeded, so the run shows nothing about it"
        reason += "".join(f"; the last {f} ended with {error[:_ERROR_CHARACTERS]}" for f, error in errors.items())
        return Verdict(Validity.UNKNOWN, looked_at, "; ".join([reason, *late]), details=details)
    if late:
        return Verdict(Validity.UNKNOWN, looked_at, "; ".join(late), details=details)
    return Verdict(Validity.VALID, looked_at, details=details)


def _recorded_late(files: StoredRun, name: str, counted: FunctionCount) -> str:
    """Return why the recorded times of a function cannot be right; "" if client nodes measured about the same.

    Set-up is left out: its few operations wait for clients that start, and no checker judges when they happened."""
    took, measured_ms = counted.latencies[0] + counted.latencies[1], files.outcome.took_ms.get(name)
    if not took or measured_ms is None or name == CREATE:
        return ""
    recorded_ms = _quantiles(took)["p50"]
    if recorded_ms - measured_ms <= RECORDED_LATE_MS + LATE_LOOPS * files.outcome.loop_late_ms.get("p50", 0.0):
        return ""
    words = f"{recorded_ms:.0f} ms in the history, and {measured_ms:.0f} ms by the clocks of the client nodes (medians)"
    return f"{name} took {words}: the recorder noted invokes early or answers late, which hides stale answers"


def _errors(of_clients: pa.Table) -> dict[tuple[int, str], int]:
    counted: Counter[tuple[int, str]] = Counter()
    for type_ in _UNSUCCESSFUL:
        ended = of_clients.filter(pc.equal(of_clients.column("type"), type_))
        for row in pc.value_counts(ended.column("error").cast(pa.string())).to_pylist():
            counted[type_, _VARYING.sub("#", str(row["values"] or ""))[:_ERROR_CHARACTERS]] += row["counts"]
    counted.pop((int(Type.FAIL), ""), None)
    return dict(counted.most_common(ERRORS_MAX))


def _most_frequent(findings: Sequence[PartCount]) -> list[dict[str, Any]]:
    """The most frequent errors: {"error", "fail", "info"}, how many operations ended so in each way."""
    counted: Counter[tuple[int, str]] = Counter()
    for finding in findings:
        counted.update(finding.errors)
    totals: Counter[str] = Counter()
    for (_, error), count in counted.items():
        totals[error] += count
    return [
        {"error": error, "fail": counted[int(Type.FAIL), error], "info": counted[int(Type.INFO), error]}
        for error, _ in totals.most_common(ERRORS_MAX)
        if error
    ]


def _refused_connections(table: pa.Table) -> int:
    unknown = table.filter(pc.equal(table.column("type"), int(Type.INFO))).column("error")
    refused = pc.starts_with(unknown.cast(pa.string()), REFUSED_CONNECTION)
    return pc.sum(refused).as_py() or 0


def _joined(findings: Sequence[PartCount], spans: Spans) -> dict[str, FunctionCount]:
    """The counts of all parts; operations that end in a later part than they began are completed here."""
    functions: dict[str, FunctionCount] = {}
    pending: dict[int, tuple[str, int]] = {}
    faults = np.array(spans, np.int64).reshape(-1, 2)
    for finding in findings:
        for process, type_, time_ns in finding.orphans:
            if process not in pending:
                raise MalformedHistory(f"process {process} completes an operation that it never invoked")
            name, invoked_ns = pending.pop(process)
            mine = functions[name]
            mine.ended[type_] += 1
            if type_ == Type.OK:
                faulty = _overlaps(np.array([invoked_ns]), np.array([time_ns]), faults)
                mine.latencies[int(faulty[0])].update(_latencies(np.array([time_ns - invoked_ns])))
        for name, count in finding.functions.items():
            functions.setdefault(name, FunctionCount()).add(count)
        pending.update(finding.left_open)
    return functions


def _fault_spans(files: StoredRun) -> Spans:
    """The spans (from, to) in ns in which faults were in place.  A fault that never healed lasts for ever.

    Without a journal there were no faults."""
    spans = []
    for record in files.faults:
        if record.carried_out:
            spans.append((record.injected_ns, record.end_ns(END_OF_TIME)))
    return sorted(spans)


def _merged(spans: Spans) -> Spans:
    """Spans without overlaps, in order."""
    merged: Spans = []
    for start, end in sorted(map(tuple, spans)):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


@kernel
def _pair(process: npt.NDArray[np.int32], processes: int, type_: Int8) -> tuple[Int64, Int64, Int64]:
    """Returns (rows of invokes, for each the row of its completion or -1, rows of completions without an invoke)."""
    count = 0
    for row in range(type_.shape[0]):
        count += type_[row] == 0
    invoked = np.empty(count, np.int64)
    ended_at = np.full(count, -1, np.int64)
    orphans = np.empty(type_.shape[0] - count, np.int64)
    operation_of = np.full(processes, -1, np.int64)
    at = stray = 0
    for row in range(type_.shape[0]):
        p = process[row]
        if type_[row] == 0:
            invoked[at] = row
            operation_of[p] = at
            at += 1
        elif operation_of[p] < 0:
            orphans[stray] = row
            stray += 1
        else:
            ended_at[operation_of[p]] = row
            operation_of[p] = -1
    return invoked, ended_at, orphans[:stray].copy()


def _overlaps(start: Int64, end: Int64, spans: Int64) -> npt.NDArray[np.bool_]:
    """Return whether each interval touches one of the spans."""
    touched = np.zeros(len(start), np.bool_)
    for span_start, span_end in spans:
        touched |= (start <= span_end) & (end >= span_start)
    return touched


def _count(mine: Bools, invoked_ns: Int64, ended_ns: Int64, ended_as: Int8, faulty: Bools) -> FunctionCount:
    ended = {int(t): int(((ended_as == t) & mine).sum()) for t in (Type.OK, Type.FAIL, Type.INFO)}
    ok = mine & (ended_as == Type.OK)
    calm, under = (_latencies((ended_ns - invoked_ns)[ok & chosen]) for chosen in (~faulty, faulty))
    return FunctionCount(int(mine.sum()), Counter(ended), (calm, under))


def _latencies(took_ns: Int64) -> Latencies:
    took_us = np.rint(took_ns / 1e3).astype(np.int64)
    shift = np.maximum(0, np.frexp(took_us.astype(np.float64))[1] - _SIGNIFICANT_BITS)
    values, counts = np.unique((took_us >> shift) << shift, return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))


def _quantiles(took: Latencies) -> dict[str, float]:
    """The quantiles in milliseconds, and the count of operations.  Between two values: linear interpolation."""
    values = np.array(sorted(took), np.float64)
    upto = np.cumsum([took[int(value)] for value in values])
    found: dict[str, float] = {"count": int(upto[-1])}
    for q in QUANTILES:
        place = q * (upto[-1] - 1)
        low, high = (values[np.searchsorted(upto, at, side="right")] for at in (np.floor(place), np.ceil(place)))
        found[_quantile_name(q)] = round(float(low + (high - low) * (place % 1)) / 1e3, 3)
    return found


def _quantile_name(q: float) -> str:
    return "max" if q == 1.0 else f"p{q * 100:g}"


STATISTICS = Checker(
    name="statistics",
    title="Statistics",
    question="How often did each operation succeed, and how long did it take?",
    split=split,
    judge=judge,
    combine=combine,
    about_the_run=True,
)
