"""Are the replicas of each partition equal, as far as they are committed?

A replica notes its high watermark in a checkpoint file every few seconds: what lies below was in every in-sync replica,
and no clean election gives it up.  So any two copies of replicas hold the same batches below the lower of their high
watermarks, whenever they were taken.  Batches are equal if base offset, end, leader epoch and CRC are: followers copy
batches as they are, compressed or not.

Compaction rewrites batches, and each replica compacts for itself.  So what lies below `cleaner-offset-checkpoint` of a
replica is not compared with others, nor what lies below the first batch that it holds.

The file leader-epoch-checkpoint says where each leader epoch begins.  A follower that returns asks by it from which
offset on its log may differ.  Each batch must lie behind the start of its own epoch, and before the start of the next.

Cost: one pass over the table; memory: one partition at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import conclude
from checkers.base.stored_run import StoredRun, by_number, node_files
from checkers.base.verdict import Verdict, Witness

DIFFER, LACKS, WRONG_EPOCH = "replicas differ", "replica lacks a batch", "epoch checkpoint contradicts the log"
_EXPECTED = "the same batches in every replica, up to the lowest high watermark"

Batch = tuple[int, int, int]
"""End, epoch, CRC."""


@dataclass(slots=True)
class Replica:
    """One copy of one replica.  batches: by base offset.  epochs: (epoch, its first offset).
    high_watermark: 0 where none was noted.  unreadable_from: -1 if all of it can be read."""

    node: str
    copy: int
    batches: dict[int, Batch] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    high_watermark: int = 0
    cleaned: int = 0
    unreadable_from: int = -1

    @property
    def committed(self) -> range:
        """The offsets that can be compared with other replicas."""
        start = max(self.cleaned, min(self.batches, default=0))
        return range(start, max(start, min(self.high_watermark, max((b[0] for b in self.batches.values()), default=0))))


@dataclass(slots=True)
class ReplicasFinding:
    partitions: int = 0
    compared: int = 0
    epochs: int = 0
    witnesses: list[Witness] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def _split(run: StoredRun) -> list[Part]:
    files = node_files(run.topics)
    usable = [[node, copy["copy"]] for node in files for copy in run.copies if copy["node"] == node]
    return [Part(tuple(files.values()), {"copies": usable})] if files else []


def judge(part: Part, budget: Budget) -> ReplicasFinding:
    """params: copies, (node, copy) of those whose disks show something about the system."""
    found = ReplicasFinding()
    usable = {(node, copy) for node, copy in part.params["copies"]}
    names = {name for path in part.paths for name in pc.unique(pq.read_table(path)["partition"]).to_pylist()}
    for name in sorted(names):
        replicas = [r for path in part.paths for r in _replicas(path, name) if (r.node, r.copy) in usable]
        found.partitions += 1
        for replica in replicas:
            found.epochs += len(replica.epochs)
            found.witnesses += _look_at_epochs(name, replica)
            if 0 <= replica.unreadable_from < replica.high_watermark:
                words = f"{name} of {replica.node} cannot be read from offset {replica.unreadable_from} on"
                found.unknown.append(f"copy {replica.copy}: {words}, and {replica.high_watermark} was committed")
        found.witnesses += _compare(name, replicas, found)
    return found


def _replicas(path: str, name: str) -> Sequence[Replica]:
    found: dict[int, Replica] = {}
    for row in pq.read_table(path, filters=[("partition", "==", name)], partitioning=None).to_pylist():
        replica = found.setdefault(row["copy"], Replica(row["node"], row["copy"]))
        match row["kind"]:
            case "batch":
                replica.batches[row["offset"]] = (row["end"], row["epoch"], row["crc"])
            case "epoch":
                replica.epochs.append((row["epoch"], row["offset"]))
            case "high-watermark":
                replica.high_watermark = row["offset"]
            case "cleaned":
                replica.cleaned = row["offset"]
            case "unreadable":
                replica.unreadable_from = row["offset"]
    return [*found.values()]


def _compare(name: str, replicas: Sequence[Replica], found: ReplicasFinding) -> Iterator[Witness]:
    """The first batch of each node that contradicts what another node holds as committed."""
    known: dict[int, tuple[Batch, Replica]] = {}
    for replica in replicas:
        committed = replica.committed
        for base in sorted(base for base in replica.batches if base in committed):
            known.setdefault(base, (replica.batches[base], replica))
    told: set[str] = set()
    for replica in replicas:
        committed = replica.committed
        for base in sorted(base for base in known if base in committed):
            batch, other = known[base]
            if replica.node == other.node:
                continue
            found.compared += 1
            mine = replica.batches.get(base)
            if mine != batch and replica.node not in told:
                told.add(replica.node)
                yield _witness(name, base, replica, mine, other, batch)


def _witness(name: str, base: int, one: Replica, mine: Batch | None, other: Replica, batch: Batch) -> Witness:
    topic = name.partition(" ")[0]
    summary = f"{one.node} and {other.node} hold different batches of {topic} at offset {base}"
    if mine is None:
        summary = f"{one.node} has no batch of {topic} at offset {base}, and {other.node} has one"
    why = [f"{one.node}: {_words(mine)}; high watermark {one.high_watermark}, copy {one.copy}."]
    why.append(f"{other.node}: {_words(batch)}; high watermark {other.high_watermark}, copy {other.copy}.")
    facts = {
        "nodes": [one.node, other.node],
        "copies": [one.copy, other.copy],
        "epoch": batch[1],
        "offset": base,
        "why": why,
        "expected": _EXPECTED,
    }
    return Witness(LACKS if mine is None else DIFFER, f"{summary}, though both noted it as committed.", facts=facts)


def _words(batch: Batch | None) -> str:
    return "no batch begins there" if batch is None else f"epoch {batch[1]}, up to {batch[0]}, CRC {batch[2]}"


def _look_at_epochs(name: str, replica: Replica) -> Iterator[Witness]:
    """The first batch that lies outside of its epoch, by the checkpoint of the replica itself."""
    entries = sorted(replica.epochs, key=lambda entry: entry[1])
    for base, (_, epoch, _) in sorted(replica.batches.items()):
        said = next((number for number, start in reversed(entries) if start <= base), None)
        if said is None or said == epoch:  # below the first entry: what retention has given up
            continue
        topic = name.partition(" ")[0]
        words = f"The batch of {topic} at offset {base} on {replica.node} is of epoch {epoch}"
        yield Witness(
            WRONG_EPOCH,
            f"{words}, and its leader-epoch-checkpoint says {said}.",
            facts={
                "nodes": [replica.node],
                "copies": [replica.copy],
                "epoch": epoch,
                "offset": base,
                "why": [f"Its entries are {_listed(entries)}."],
                "expected": "each batch behind the start of its epoch, and before the start of the next one",
            },
        )
        return


def _listed(entries: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"epoch {epoch} from {start} on" for epoch, start in entries)


def _combine(run: StoredRun, findings: Sequence[ReplicasFinding]) -> Verdict:
    there = node_files(run.topics)
    unknown = [why for finding in findings for why in finding.unknown]
    if silent := sorted({*run.servers} - {*there}, key=by_number):
        unknown.append(f"{', '.join(silent)} delivered no logs of topics")
    looked_at: Mapping[str, Any] = {
        "partitions": sum(each.partitions for each in findings),
        "batches compared": sum(each.compared for each in findings),
        "epochs": sum(each.epochs for each in findings),
    }
    if not looked_at["batches compared"] and len(run.servers) > 1:
        unknown.append("no two replicas have a committed batch in common")
    return conclude([witness for each in findings for witness in each.witnesses], looked_at, unknown)


EQUAL_REPLICAS = Checker(
    "equal-replicas",
    "Replicas of topics are equal",
    "Do all replicas of a partition hold the same batches up to the lowest high watermark, with the epochs noted?",
    _split,
    judge,
    _combine,
    frozenset({"logs", "topic-logs"}),
)
