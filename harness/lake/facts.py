"""The facts of one run, as a small Arrow table for each table of the lake.

Nothing is judged here.  Verdicts are read from results.json, measurements from the record and the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers.base.columns import HISTORY, read_history
from checkers.base.history import CREATE, MalformedHistory
from checkers.base.results import NO_RESULTS, RESULTS, VACUITY, Results, read_results
from checkers.base.verdict import Validity
from checkers.record.faults import Achieved, FaultRecord
from checkers.record.files import BrokenFile
from checkers.record.header_and_outcome import Header, RunOutcome, SeenLeader
from checkers.record.run_record import TEST, RunRecord, number, real
from checkers.sealing.sealed_history import dicts, history_tables
from harness.lake import tables
from harness.story.findings import (
    LEADER,
    OTHERS,
    Leadership,
    ReportedViolation,
    ViolationSymptom,
    findings,
    leadership_of,
    symptom_of,
    violation_count,
    violations_by_cause,
)

NO_FAULT = "none"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of one run.

    run: name of the run in every table
    date, system: partition to which the run belongs
    rows: table -> rows of the run"""

    run: str
    date: str
    system: str
    rows: Mapping[str, pa.Table]


def facts_of(root: Path, path: str = "") -> RunFacts:
    """Return the facts of the run in `root`, which need not be judged.

    path: location of the run for the table of runs; "" for `root`
    Raises BrokenFile if a file of the run cannot be used.
    """
    record = RunRecord(root)
    header = record.header
    if header is None:
        raise BrokenFile(f"{root} is not a run folder: it holds no {TEST}")
    results, outcome = read_results(root) or NO_RESULTS, record.outcome or RunOutcome()
    figures, by_second = _operations(root, record.faults)
    violations = violations_by_cause(results)
    leadership = leadership_of(root) if violations else Leadership()
    found = [(each, symptom_of(each, record.faults, leadership)) for each in violations]
    run = f"{root.name}-{header.run_id}"
    started = _time(header.started_utc)
    system = _system(header)
    rows: dict[str, list[dict[str, Any]]] = {
        tables.FAULTS: [_fault(fault) for fault in record.faults],
        tables.OPERATIONS: by_second,
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
            **figures,
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
    """Return the columns of the table of runs that identify a run's test, and the symptom of the run's first finding;
    None for a run without a violation.  Raises BrokenFile.
    """
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
    """Return the kinds of fault that were in force at any time of this interval, joined by "+"."""
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
    """Return the last fault, heal, election or death before this time; "not known" for a violation without a time."""
    if moment_ns < 0:
        return "not known"
    happened = [(fault.injected_ns, f"{fault.card.kind} injected") for fault in faults if fault.carried_out]
    happened += [(fault.healed_ns, f"{fault.card.kind} healed") for fault in faults if fault.healed]
    happened += [(leader.time_ns, "election") for leader in outcome.leaders]
    happened += [(death.time_ns, "death of a server") for death in outcome.deaths if death.time_ns >= 0]
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


_COUNTED = f"""
CREATE VIEW counted AS SELECT *, (ended_ns - invoked_ns) / 1e6 AS ms FROM operations WHERE f <> '{CREATE}'"""
_FIGURES = """
SELECT count(*) AS operations, count(*) FILTER (type = 1) AS ok, count(*) FILTER (type = 2) AS fail,
    count(*) FILTER (type IS NULL OR type = 3) AS info, quantile_cont(ms, 0.5) FILTER (type = 1) AS p50_ms,
    quantile_cont(ms, 0.99) FILTER (type = 1) AS p99_ms
FROM counted"""
_BY_SECOND = """
SELECT invoked_ns // 1_000_000_000 AS second, f,
    CASE type WHEN 1 THEN 'ok' WHEN 2 THEN 'fail' ELSE 'info' END AS outcome, count(*) AS count,
    quantile_cont(ms, 0.5) AS p50_ms, quantile_cont(ms, 0.99) AS p99_ms, max(ms) AS max_ms
FROM counted GROUP BY second, f, outcome ORDER BY second, f, outcome"""


def _operations(root: Path, faults: Sequence[FaultRecord]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (statistics of a run's operations, a row per second, function and outcome).  A missing or unreadable
    history counts as empty.  Operations that never ended count as info.
    """
    try:
        history = read_history(root)
    except MalformedHistory:
        history = HISTORY.empty_table()
    with history_tables(history) as sql:
        sql.execute(_COUNTED)
        [figures] = dicts(sql, _FIGURES)
        rows = dicts(sql, _BY_SECOND)
    force = {at: _in_force(at * 10**9, (at + 1) * 10**9 - 1, faults) for at in {row["second"] for row in rows}}
    return figures, [{**row, "faults": force[row["second"]]} for row in rows]
