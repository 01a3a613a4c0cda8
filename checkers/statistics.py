"""Statistics: how often each operation was asked and how it ended, how long it took, with and without faults.

Not a property of the system, but of the test: where an operation was asked and never once succeeded, everything said
about it is empty, so the verdict is *unknown*.  Time is the harness' own clock, of one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from checkers.checker import Budget, Checker, Part, RunFiles
from checkers.history import MalformedHistory, Type
from checkers.json_file import read_objects
from checkers.kernels.jit import kernel
from checkers.kernels.operations import Int8, Int64
from checkers.seal import dense_processes, dictionary_codes
from checkers.verdict import Validity, Verdict

QUANTILES = (0.5, 0.95, 0.99, 1.0)
SIZE_BYTES_PER_EVENT = 80

Spans = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FunctionCount:
    """One f: how many were asked, and how they ended (open = never completed); `latency` as in results.json."""

    f: str
    asked: int
    ok: int
    fail: int
    info: int
    open: int
    latency: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class HistoryCount:
    """functions in alphabetical order; span_s: from the first client event to the last; fault_s: of it under faults."""

    functions: tuple[FunctionCount, ...]
    span_s: float
    fault_s: float
    over_budget: str = ""


def split(files: RunFiles) -> Sequence[Part]:
    """The whole history as one part, with the spans of time in which a fault was in place."""
    if not files.history.exists():
        raise MalformedHistory(f"{files.root}: the history is not sealed, there is no {files.history.name}")
    return [Part((str(files.history),), {"faults": _fault_spans(files)})]


def judge(part: Part, budget: Budget) -> HistoryCount:
    path = part.paths[0]
    needed_bytes = pq.read_metadata(path).num_rows * SIZE_BYTES_PER_EVENT
    if needed_bytes > budget.size_bytes:
        return HistoryCount((), 0.0, 0.0, f"the history needs {needed_bytes} bytes, the budget is {budget.size_bytes}")
    table = pq.read_table(path, columns=["time_ns", "process", "type", "f"])
    process = np.asarray(table.column("process").combine_chunks())
    clients = np.flatnonzero(process >= 0)
    function, names = dictionary_codes(table.column("f"))
    time_ns = np.asarray(table.column("time_ns").combine_chunks())[clients]
    dense, process_count = dense_processes(process[clients])
    type_ = np.asarray(table.column("type").combine_chunks())[clients]
    faults = np.array(part.params["faults"], np.int64).reshape(-1, 2)
    asked_ns, ended_ns, ended_as, asked_for = _pair(time_ns, dense, type_, function[clients], process_count)
    faulty = _overlaps(asked_ns, np.where(ended_ns < 0, asked_ns, ended_ns), faults)
    order = sorted(set(asked_for.tolist()), key=lambda code: names[code])
    functions = tuple(_count(names[f], asked_for == f, asked_ns, ended_ns, ended_as, faulty) for f in order)
    if not len(time_ns):
        return HistoryCount((), 0.0, 0.0)
    first, last = int(time_ns.min()), int(time_ns.max())
    in_faults = sum(max(0, min(end, last) - max(start, first)) for start, end in _merged(part.params["faults"]))
    return HistoryCount(functions, (last - first) / 1e9, in_faults / 1e9)


def combine(files: RunFiles, findings: Sequence[HistoryCount]) -> Verdict:
    [count] = findings
    if count.over_budget:
        return Verdict(Validity.UNKNOWN, {}, count.over_budget)
    if not count.functions:
        return Verdict(Validity.NOT_APPLICABLE, reason="no client asked anything")
    looked_at: dict[str, int | float | str] = {"operations": sum(f.asked for f in count.functions)}
    for type_ in ("ok", "fail", "info", "open"):
        looked_at[type_] = sum(getattr(f, type_) for f in count.functions)
    looked_at["seconds"] = round(count.span_s, 3)
    looked_at["seconds_under_faults"] = round(count.fault_s, 3)
    if count.span_s > 0:
        looked_at["ok_per_second"] = round(int(looked_at["ok"]) / count.span_s, 2)
    details: dict[str, Any] = {"functions": {}}
    for f in count.functions:
        counts = {"asked": f.asked, "ok": f.ok, "fail": f.fail, "info": f.info, "open": f.open}
        details["functions"][f.f] = {**counts, "latency_ms": f.latency}
    never = [f.f for f in count.functions if not f.ok]
    if never:
        reason = f"no {' and no '.join(never)} ever succeeded, so the run says nothing about it"
        return Verdict(Validity.UNKNOWN, looked_at, reason, details=details)
    return Verdict(Validity.VALID, looked_at, details=details)


def _fault_spans(files: RunFiles) -> Spans:
    """When faults were in place, in ns; one that never healed lasts for ever.  No file means no faults."""
    spans = []
    for record in read_objects(files.faults):
        start, end = record.get("injected_ns", -1), record.get("healed_ns", -1)
        if start >= 0:
            spans.append((start, end if end >= 0 else 2**63 - 1))
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
def _pair(
    time_ns: Int64,
    process: npt.NDArray[np.int32],
    type_: npt.NDArray[np.int8],
    f: npt.NDArray[np.int32],
    processes: int,
) -> tuple[Int64, Int64, npt.NDArray[np.int8], npt.NDArray[np.int32]]:
    """Per operation in order of invoke: asked at, ended at (-1 if never), `Type` of its end (INVOKE if never), f."""
    count = 0
    for row in range(type_.shape[0]):
        count += type_[row] == 0
    asked_ns = np.empty(count, np.int64)
    ended_ns = np.full(count, -1, np.int64)
    ended_as = np.zeros(count, np.int8)
    asked_for = np.empty(count, np.int32)
    operation_of = np.full(processes, -1, np.int64)
    at = 0
    for row in range(type_.shape[0]):
        if type_[row] == 0:
            asked_ns[at] = time_ns[row]
            asked_for[at] = f[row]
            operation_of[process[row]] = at
            at += 1
        else:
            ended_ns[operation_of[process[row]]] = time_ns[row]
            ended_as[operation_of[process[row]]] = type_[row]
    return asked_ns, ended_ns, ended_as, asked_for


def _overlaps(start: Int64, end: Int64, spans: Int64) -> npt.NDArray[np.bool_]:
    """Whether each interval touches one of the spans."""
    touched = np.zeros(len(start), np.bool_)
    for span_start, span_end in spans:
        touched |= (start <= span_end) & (end >= span_start)
    return touched


def _count(
    name: str,
    mine: npt.NDArray[np.bool_],
    asked_ns: Int64,
    ended_ns: Int64,
    ended_as: Int8,
    faulty: npt.NDArray[np.bool_],
) -> FunctionCount:
    ended = {type_: int(((ended_as == type_) & mine).sum()) for type_ in (Type.OK, Type.FAIL, Type.INFO, Type.INVOKE)}
    ok = mine & (ended_as == Type.OK)
    latency = {}
    for when, chosen in (("without faults", ok & ~faulty), ("under faults", ok & faulty)):
        if chosen.any():
            took_ms = (ended_ns[chosen] - asked_ns[chosen]) / 1e6
            at = {_quantile_name(q): round(float(np.quantile(took_ms, q)), 3) for q in QUANTILES}
            latency[when] = {"count": int(chosen.sum()), **at}
    return FunctionCount(
        name, int(mine.sum()), ended[Type.OK], ended[Type.FAIL], ended[Type.INFO], ended[Type.INVOKE], latency
    )


def _quantile_name(q: float) -> str:
    return "max" if q == 1.0 else f"p{q * 100:g}"


STATISTICS = Checker(
    name="statistics",
    title="Statistics",
    question="How often did each operation succeed, and how long did it take?",
    split=split,
    judge=judge,
    combine=combine,
)
