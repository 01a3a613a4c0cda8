"""The facts of one run: its files, read once, as one small Arrow table for each table of the lake.

Nothing here judges.  What a verdict says stands in results.json; what was measured, in the record and the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from checkers.base.columns import read_history
from checkers.base.history import CREATE, MalformedHistory, Type
from checkers.base.json_file import number, real
from checkers.base.results import NO_RESULTS, RESULTS, VACUITY, Results, read_results
from checkers.base.verdict import Validity
from checkers.record.faults import Achieved, FaultRecord
from checkers.record.files import BrokenFile
from checkers.record.header import Header
from checkers.record.outcome import RunOutcome, SeenLeader
from checkers.record.reading import TEST, RunRecord
from checkers.sealing.history_rows import paired_rows
from harness.lake import tables
from harness.story.causes import Leadership, leadership_of
from harness.story.findings import (
    LEADER,
    OTHERS,
    ReportedViolation,
    ViolationSymptom,
    findings,
    symptom_of,
    violation_count,
    violations_by_cause,
)

NO_FAULT = "none"
_OUTCOMES = {int(Type.OK): "ok", int(Type.FAIL): "fail", int(Type.INFO): "info"}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """run: its name in every table.  date, system: the partition that it belongs to.  rows: table -> its rows."""

    run: str
    date: str
    system: str
    rows: Mapping[str, pa.Table]


def facts_of(root: Path, path: str = "") -> RunFacts:
    """The facts of the run kept in `root`, judged or not.  path: what the table of runs says about where it lies.

    Raises BrokenFile if a file of the run cannot be used.
    """
    record = RunRecord(root)
    header = record.header
    if header is None:
        raise BrokenFile(f"{root} is not a run folder: it holds no {TEST}")
    results, outcome = read_results(root) or NO_RESULTS, record.outcome or RunOutcome()
    operations = _operations(root)
    violations = violations_by_cause(results)
    leadership = leadership_of(root) if violations else Leadership()
    found = [(each, symptom_of(each, record.faults, leadership)) for each in violations]
    run = f"{root.name}-{header.run_id}"
    started = _time(header.started_utc)
    system = _system(header)
    rows: dict[str, list[dict[str, Any]]] = {
        tables.FAULTS: [_fault(fault) for fault in record.faults],
        tables.OPERATIONS: operations.by_second(record.faults),
        tables.ELECTIONS: [_election(leader, record.faults) for leader in outcome.leaders],
        tables.VIOLATIONS: [_violation(place, *each, record.faults, outcome) for place, each in enumerate(found)],
        tables.CRITERIA: _criteria(results),
        tables.COVERAGE: _coverage(outcome),
        tables.COSTS: _costs(results),
    }
    judged = datetime.fromtimestamp((root / RESULTS).stat().st_mtime, UTC) if results is not NO_RESULTS else None
    rows[tables.RUNS] = [
        {
            "path": path or str(root),
            "test": header.test or root.parent.name,
            "started": started,
            "judged": judged,
            **_spec(header.spec),
            "revision": header.git.revision,
            "dirty": header.git.dirty,
            **_verdict(results, found),
            **operations.figures(),
            "faults": sum(fault.achieved is Achieved.INSTALLED for fault in record.faults),
            "faults_dealt": len(record.faults),
            "elections": len(outcome.leaders),
            "duration_s": max((phase.end_ns for phase in outcome.phases), default=0) / 1e9,
            "loop_late_p99_ms": outcome.loop_late_ms.get("p99"),
        }
    ]
    filled = {name: _table(run, rows[name], schema) for name, schema in tables.TABLES.items()}
    return RunFacts(run, (started or datetime.fromtimestamp(0, UTC)).strftime("%Y-%m-%d"), system, filled)


def symptom_of_run(root: Path) -> tuple[Mapping[str, Any], ViolationSymptom] | None:
    """Return what the table of runs holds of a run, as far as its test needs, and the symptom of its leading finding;
    None for a run without a violation.  Raises BrokenFile."""
    record, results = RunRecord(root), read_results(root)
    if record.header is None or results is None or not (found := findings(results)):
        return None
    started = _time(record.header.started_utc)
    row = {"path": str(root), tables.SYSTEM: _system(record.header), **_spec(record.header.spec), "duration_s": None}
    row |= {"started": started or datetime.now(UTC), "verdict": str(results.verdict), "bug_found": None}
    row["revision"] = record.header.git.revision
    return row, symptom_of(found[0].lead, record.faults, leadership_of(root))


def _system(header: Header) -> str:
    return Path(str(header.spec.get("subject") or "unknown")).stem


def _table(run: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([{"run": run, **row} for row in rows], schema=schema)


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    text = {name: str(spec[name]) if spec.get(name) else None for name in ("bug", "finding", "backend")}
    return {
        **text,
        "workload": Path(str(spec.get("workload") or "")).stem,
        "kinds": sorted(kind for kind in str(spec.get("nemesis") or "").split(",") if kind not in ("", "none")),
        "nodes": number(spec.get("nodes"), 0),
        "keys": number(spec.get("keys"), 0),
        "seed": number(spec.get("seed"), 0),
        "rate_hz": real(spec.get("rate_hz"), 0.0),
        "time_limit_s": real(spec.get("time_limit_s"), 0.0),
    }


def _verdict(results: Results, found: Sequence[tuple[ReportedViolation, ViolationSymptom]]) -> dict[str, Any]:
    vacuity = results.verdict_of(VACUITY)
    return {
        "verdict": str(results.verdict),
        "exit_code": results.exit_code,
        "summary": results.words,
        "symptom": found[0][1].id if found else None,
        "violations": violation_count(results),
        "vacuous": vacuity is Validity.UNKNOWN if vacuity in (Validity.VALID, Validity.UNKNOWN) else None,
        "bug_found": results.planted.found if results.planted is not None else None,
        "judging_s": results.judging_s,
    }


def _fault(fault: FaultRecord) -> dict[str, Any]:
    hit = {*fault.nodes, *(node for link in fault.cut for node in link)}
    return {
        "number": fault.card.number,
        "kind": fault.card.kind,
        "name": fault.card.name,
        "achieved": str(fault.achieved),
        "reason": fault.reason,
        "words": fault.words,
        "nodes": list(fault.nodes),
        "leader": fault.leader,
        "role": LEADER if fault.leader is not None and fault.leader in hit else OTHERS,
        "injected_ns": fault.injected_ns,
        "healed_ns": fault.healed_ns,
        "apply_ms": fault.apply_ms,
    }


def _in_force(from_ns: int, to_ns: int, faults: Iterable[FaultRecord]) -> str:
    """The kinds of fault in force at some moment of this span, in words of a column."""
    kinds = {fault.card.kind for fault in faults if fault.in_force(from_ns, to_ns)}
    return "+".join(sorted(kinds)) or NO_FAULT


def _election(leader: SeenLeader, faults: Sequence[FaultRecord]) -> dict[str, Any]:
    at_ns = leader.time_ns
    return {"time_ns": at_ns, "node": leader.node, "epoch": leader.epoch, "faults": _in_force(at_ns, at_ns, faults)}


def _violation(
    place: int,
    violation: ReportedViolation,
    symptom: ViolationSymptom,
    faults: Sequence[FaultRecord],
    outcome: RunOutcome,
) -> dict[str, Any]:
    return {
        "place": place,
        "symptom": symptom.id,
        "words": symptom.words(),
        "checker": symptom.checker,
        "kind": symptom.kind,
        "shape": symptom.shape,
        "faults": "+".join(symptom.faults) or NO_FAULT,
        "roles": "+".join(symptom.roles),
        "moment_ns": violation.moment_ns,
        "preceding": _preceding(violation.moment_ns, faults, outcome),
        "summary": violation.summary,
    }


def _preceding(moment_ns: int, faults: Sequence[FaultRecord], outcome: RunOutcome) -> str:
    """Return what happened last before this moment; "not known" for a violation without one."""
    if moment_ns < 0:
        return "not known"
    happened = [(fault.injected_ns, f"{fault.card.kind} injected") for fault in faults if fault.carried_out]
    happened += [(fault.healed_ns, f"{fault.card.kind} healed") for fault in faults if fault.healed]
    happened += [(leader.time_ns, "election") for leader in outcome.leaders]
    happened += [(death.time_ns, "death of a server") for death in outcome.known_deaths if death.time_ns >= 0]
    return max((each for each in happened if each[0] <= moment_ns), default=(0, "nothing"))[1]


def _criteria(results: Results) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "value": each.value, "least": each.least, "met": each.met, "demanded": each.demanded}
        for each in results.vacuity.criteria
    ]


def _coverage(outcome: RunOutcome) -> list[dict[str, Any]]:
    if outcome.coverage is None:
        return []
    cells = [
        {"what": "cell", "name": f"{kind} / {role} / {phase}", "looks": looks}
        for kind, role, phase, looks in outcome.coverage.cells
    ]
    named = outcome.coverage.situations.items()
    return cells + [{"what": "situation", "name": name, "looks": looks} for name, looks in named if looks is not None]


def _costs(results: Results) -> list[dict[str, Any]]:
    return [
        {"checker": name, "verdict": str(checker.verdict), "seconds": checker.seconds}
        for name, checker in results.checkers.items()
    ]


@dataclass(frozen=True, slots=True)
class _Operations:
    """The operations of clients in the order of their invocations, as columns of one length.

    names: of functions.  f: which of them.  second: of the invocation.  outcome: a Type; INFO also for what never
    ended.  ms: from invocation to completion, NaN without one.
    """

    names: np.ndarray[Any, Any]
    f: np.ndarray[Any, Any]
    second: np.ndarray[Any, Any]
    outcome: np.ndarray[Any, Any]
    ms: np.ndarray[Any, Any]

    def figures(self) -> dict[str, Any]:
        """The columns of the table of runs."""
        counts = {name: int(np.count_nonzero(self.outcome == type_)) for type_, name in _OUTCOMES.items()}
        took = self.ms[self.outcome == int(Type.OK)]
        p50, p99 = np.percentile(took, (50, 99)).tolist() if len(took) else (None, None)
        return {"operations": len(self.f), **counts, "p50_ms": p50, "p99_ms": p99}

    def by_second(self, faults: Sequence[FaultRecord]) -> list[dict[str, Any]]:
        """One row for each second, function and outcome."""
        if not len(self.f):
            return []
        cell = (self.second * len(self.names) + self.f) * 4 + self.outcome
        order = np.argsort(cell, kind="stable")
        cells, begins = np.unique(cell[order], return_index=True)
        force: dict[int, str] = {}
        rows = []
        for one, took in zip(cells.tolist(), np.split(self.ms[order], begins[1:]), strict=True):
            (second, function), outcome = divmod(one // 4, len(self.names)), one % 4
            if second not in force:
                force[second] = _in_force(second * 10**9, (second + 1) * 10**9 - 1, faults)
            ended = took[~np.isnan(took)]
            p50, p99, most = np.percentile(ended, (50, 99, 100)).tolist() if len(ended) else (None, None, None)
            row = {"second": second, "f": str(self.names[function]), "outcome": _OUTCOMES[outcome], "count": len(took)}
            rows.append({**row, "p50_ms": p50, "p99_ms": p99, "max_ms": most, "faults": force[second]})
        return rows


def _operations(root: Path) -> _Operations:
    """The operations of a run's clients; none if its history is missing or cannot be read."""
    try:
        history = read_history(root)
    except MalformedHistory:
        history = None
    if history is None or history.num_rows == 0:
        empty = np.zeros(0, dtype=np.int64)
        return _Operations(empty.astype(str), empty, empty, empty, empty.astype(float))
    process = history["process"].to_numpy()
    encoded = history["f"].unify_dictionaries().combine_chunks()
    names, f = np.asarray(encoded.dictionary.to_pylist(), dtype=str), encoded.indices.to_numpy()
    ours = (process >= 0) & (names != CREATE)[f]
    process, f = process[ours], f[ours]
    type_, time_ns = history["type"].to_numpy()[ours], history["time_ns"].to_numpy()[ours]
    invocation, completion = paired_rows(np.flatnonzero(ours), process, type_)  # rows stand in index order
    completed = completion >= 0
    outcome = np.where(completed, type_[completion], int(Type.INFO))
    ms = np.where(completed, (time_ns[completion] - time_ns[invocation]) / 1e6, np.nan)
    return _Operations(names, f[invocation], time_ns[invocation] // 10**9, outcome, ms)
