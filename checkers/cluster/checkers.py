"""The checkers of brokers and of partitions: which rules of `replay.py` each one holds, and how a run is split.

A part is one node's table of all its copies.  Cost: linear in the records about brokers and partitions, some 10 µs
each; memory: one copy's rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import conclude, gaps, log_groups, log_rows
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.cluster.replay import OF_BROKERS, OF_PARTITIONS, Contradiction, replay

RECORD_SIZE_BYTES = 1000
"""Of a row in memory, generously."""

_EXPECTED = {
    OF_BROKERS: "one incarnation of a broker at a time, each with an epoch greater than the one before",
    OF_PARTITIONS: "a leader that is alive and in sync, chosen from those that hold everything",
}


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    """found: (copy, what), the last copy of each.  counts: of records, by kind."""

    node: str
    found: tuple[tuple[int, Contradiction], ...] = ()
    counts: Counter[str] = field(default_factory=Counter)
    unknown: tuple[str, ...] = ()


def _split(run: StoredRun) -> list[Part]:
    readable = [c for c in run.copies if not c["error"]]
    logs = node_files(run.log)
    return [
        Part((path, logs[node]), {"node": node, "copies": [c["copy"] for c in readable if c["node"] == node]})
        for node, path in node_files(run.cluster).items()
        if node in logs
    ]


def _judge(kinds: tuple[str, ...], part: Part, budget: Budget) -> ClusterFinding:
    node, copies = part.params["node"], set(part.params["copies"])
    path, log = part.paths
    metadata = pq.read_metadata(path)
    if metadata.num_rows * RECORD_SIZE_BYTES > budget.size_bytes:
        return ClusterFinding(node, unknown=(f"{path}: {metadata.num_rows} records are beyond the budget",))
    table = pq.read_table(path, partitioning=None)
    found: dict[tuple[str, int], tuple[int, Contradiction]] = {}
    counts: Counter[str] = Counter()
    unknown: list[str] = []
    for copy in sorted(copies):
        groups = log_groups(pq.read_metadata(log), copy)
        whole = min((group.first for group in groups), default=0) == 0
        replayed = replay(_records(table, copy), whole=whole)
        counts.update(replayed.counts)
        if replayed.unreadable:
            unknown.append(f"copy {copy} of {node}: {replayed.unreadable}")
        found.update({(each.kind, each.offset): (copy, each) for each in replayed.found if each.kind in kinds})
    return ClusterFinding(node, tuple(found.values()), counts, tuple(unknown))


def _records(table: pa.Table, copy: int) -> Sequence[tuple[int, int, str, str, str]]:
    rows = table.filter(pa.compute.equal(table["copy"], copy))
    columns = (rows[name].to_pylist() for name in ("offset", "batch_offset", "kind", "about", "fields"))
    return list(zip(*columns, strict=True))


def _combine(kinds: tuple[str, ...], subject: str, run: StoredRun, findings: Sequence[ClusterFinding]) -> Verdict:
    counts: Counter[str] = Counter()
    for finding in findings:
        counts.update(finding.counts)
    looked_at = {"logs": len(findings)} | {f"records: {name}": counts[name] for name in sorted(counts)}
    unknown = [why for finding in findings for why in finding.unknown] + gaps(run, "logs")
    if run.demands.registers_brokers:
        unknown += [] if counts[subject] else [f"there were no records of the kind {subject!r}"]
    elif not counts[subject] and not unknown:
        return Verdict(Validity.NOT_APPLICABLE, reason=f"no log holds a record of the kind {subject!r}")
    # The same record lies in many copies of many nodes; the first node that shows it is named.
    latest: dict[tuple[str, int], tuple[str, int, Contradiction]] = {}
    for finding in findings:
        for copy, found in finding.found:
            latest.setdefault((found.kind, found.offset), (finding.node, copy, found))
    witnesses = [
        _witness(run, kinds, *which) for _, which in sorted(latest.items(), key=lambda item: item[1][2].offset)
    ]
    return conclude(witnesses, looked_at, unknown)


def _witness(run: StoredRun, kinds: tuple[str, ...], node: str, copy: int, found: Contradiction) -> Witness:
    rows = log_rows(node_files(run.log)[node], copy, sorted({found.since, found.offset}))
    facts = {
        "nodes": [node],
        "copies": [copy],
        "epoch": rows[-1]["epoch"] if rows else -1,
        "offset": found.offset,
        "why": [found.words],
        "expected": _EXPECTED[kinds],
    }
    return Witness(kind=found.kind, summary=found.words, rows=tuple(rows), facts=facts)


def _judge_brokers(part: Part, budget: Budget) -> ClusterFinding:
    return _judge(OF_BROKERS, part, budget)


def _judge_partitions(part: Part, budget: Budget) -> ClusterFinding:
    return _judge(OF_PARTITIONS, part, budget)


def _combine_brokers(run: StoredRun, findings: Sequence[ClusterFinding]) -> Verdict:
    return _combine(OF_BROKERS, "register broker", run, findings)


def _combine_partitions(run: StoredRun, findings: Sequence[ClusterFinding]) -> Verdict:
    return _combine(OF_PARTITIONS, "partition", run, findings)


BROKER_INCARNATIONS = Checker(
    "broker-incarnations",
    "One incarnation of each broker",
    "Is at most one incarnation of each broker unfenced at each offset, and do broker epochs rise?",
    _split,
    _judge_brokers,
    _combine_brokers,
    frozenset({"logs", "kraft-records"}),
)

PARTITION_CHAIN = Checker(
    "partition-chain",
    "Partitions change one step after the other",
    "Does each record of a partition follow from the one before, with a leader that is alive and in sync?",
    _split,
    _judge_partitions,
    _combine_partitions,
    frozenset({"logs", "kraft-records"}),
)
