"""Does every server answer the same, once the system has recovered?  (Eventual convergence, Shapiro et al. 2011.)

Systems that promise no linearizable reads promise this: when writes have ended and faults are healed, all replicas come
to the same state.  The workload reads every key at every server, again and again until they agree or the time is over.
Of each server and key the last of these answers counts.

Two answers of one key that differ violate the promise, and both are named: nothing decides which of them is wrong.  So
does a value that no client invoked a write of.  A server of which a key has no answer leaves the verdict unknown.
The answers of f = "members" are sets: their order says nothing.

Cost: the rows of the final phase, and one more pass over the history for the values that were read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.checker import Budget, Checker, Part
from checkers.base.columns import HISTORY
from checkers.base.demands import READS_OF_A_SERVER
from checkers.base.history import Type
from checkers.base.run_evidence import conclude
from checkers.base.stored_run import StoredRun, by_number
from checkers.base.values import canonical, parse
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.sealing.history_rows import chunks_of_groups

DIFFER = "servers that differ"
INVENTED = "a value that nobody wrote"
MEMBERS = "members"
_FINAL_READS = "final reads"

Row = Mapping[str, Any]


@dataclass(slots=True)
class ConvergenceFinding:
    """last: (key, node) -> the last ok read of the final phase.  reads: how many there were.
    written: (key, value) of every write that was invoked, of those values that `last` shows."""

    last: dict[tuple[str, str], Row] = field(default_factory=dict)
    reads: int = 0
    written: set[tuple[str, int]] = field(default_factory=set)


def _split(run: StoredRun) -> list[Part]:
    final = run.outcome.phase(_FINAL_READS)
    if final is None:
        return []
    params = {"final_ns": final.start_ns, "reads": sorted(run.demands.reads), "writes": sorted(run.demands.writes)}
    return [Part((str(run.history),), params)]


def judge(part: Part, budget: Budget) -> ConvergenceFinding:
    """params: final_ns, when the final phase began; reads and writes, the functions."""
    found = ConvergenceFinding()
    for row in _rows(part, HISTORY.names, "reads", Type.OK, part.params["final_ns"]):
        found.reads += 1
        found.last[str(row["key"]), str(row["node"])] = row
    shown = {(key, value) for (key, _), row in found.last.items() for value in values_of(row)}
    for row in _rows(part, ["time_ns", "process", "type", "f", "key", "value"], "writes", Type.INVOKE, 0):
        if (name := (str(row["key"]), row["value"])) in shown:
            found.written.add(name)
    return found


def _rows(part: Part, columns: Sequence[str], functions: str, type_: Type, since_ns: int) -> Iterator[Row]:
    wanted = pa.array(part.params[functions], pa.string())
    for table in chunks_of_groups(part.paths[0], columns):
        mine = pc.and_(pc.greater_equal(table["process"], 0), pc.equal(table["type"], int(type_)))
        mine = pc.and_(mine, pc.greater_equal(table["time_ns"], since_ns))
        mine = pc.and_(mine, pc.is_in(pc.cast(table["f"], pa.string()), value_set=wanted))
        yield from table.filter(mine).to_pylist()


def values_of(row: Row) -> list[int]:
    """The values that an answer shows: of a register at most one."""
    if row["payload"] is not None:
        shown = parse(row["payload"])
        return [value for value in shown if isinstance(value, int)] if isinstance(shown, list) else []
    return [] if row["value"] is None else [int(row["value"])]


def state_of(row: Row) -> str:
    """The answer as it is compared and shown."""
    if row["payload"] is None:
        return "nothing" if row["value"] is None else str(row["value"])
    shown = parse(row["payload"])
    return canonical(sorted(shown) if row["f"] == MEMBERS else shown)


def _combine(run: StoredRun, findings: Sequence[ConvergenceFinding]) -> Verdict:
    if not findings:
        return Verdict(Validity.UNKNOWN, reason="the run did not come to its final reads")
    (found,) = findings
    by_key: dict[str, dict[str, Row]] = {}
    for (key, node), row in found.last.items():
        by_key.setdefault(key, {})[node] = row
    witnesses = [w for key in sorted(by_key, key=by_number) for w in _of_key(key, by_key[key], found.written)]
    keys = list(dict.fromkeys(str(key) for _, key in run.demands.final_reads))
    everywhere = {str(key) for _, key in run.demands.final_reads[:READS_OF_A_SERVER]}
    unknown = []
    if missing := [key for key in keys if key not in by_key]:
        unknown.append(f"no final read of {', '.join(missing)} was answered")
    for server in run.demands.servers:
        if unread := sorted(key for key in everywhere if key in by_key and server not in by_key[key]):
            shown = ", ".join(unread[:5]) + (" and others" if len(unread) > 5 else "")
            unknown.append(f"{server} answered no final read of {shown}")
    looked_at = {"keys": len(by_key), "servers": len({n for _, n in found.last}), "final reads": found.reads}
    return conclude(witnesses, looked_at, unknown)


def _of_key(key: str, answers: Mapping[str, Row], written: set[tuple[str, int]]) -> Iterator[Witness]:
    nodes = sorted(answers, key=by_number)
    states = {node: state_of(answers[node]) for node in nodes}
    if len(set(states.values())) > 1:
        one = nodes[0]
        other = next(node for node in nodes if states[node] != states[one])
        rest = [f"{node} answered {states[node]}." for node in nodes]
        yield Witness(
            DIFFER,
            f"after recovery {one} answered {_short(states[one])} for {key}, and {other} answered "
            f"{_short(states[other])}",
            events=tuple(sorted((answers[one], answers[other]), key=lambda row: int(row["index"]))),
            facts={"key": key, "nodes": [one, other], "why": rest, "expected": "the same answer of every server"},
        )
    for node in nodes:
        if invented := [value for value in values_of(answers[node]) if (key, value) not in written]:
            yield Witness(
                INVENTED,
                f"{node} answered {invented[0]} for {key}, and no client wrote that",
                events=(answers[node],),
                facts={"key": key, "nodes": [node], "why": [], "expected": "a value that a client wrote"},
            )


def _short(state: str) -> str:
    return state if len(state) <= 60 else f"{state[:40]}… ({len(parse(state))} elements)"


CONVERGENCE = Checker(
    name="convergence",
    title="Convergence",
    question="Does every server answer the same once the system has recovered?",
    split=_split,
    judge=judge,
    combine=_combine,
    needs=frozenset({"history", "model"}),
    rests_on=frozenset({"answerers"}),
)
