"""A sealed run in which every checker that can find a violation finds one."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from toy_quorum import Row, minority_commit

from checkers.base.columns import CLUSTER, COMPARISONS, REPLAYED, TOPICS
from checkers.base.stored_run import StoredRun
from checkers.sealing.seal import seal

NEVER_INVALID = {
    "statistics": "valid",
    "vacuity": "unknown",
    "availability": "not applicable",  # the number of clients is unknown; test_availability injects silences
    "evidence": "unknown",  # the end mark of the history has no counts
    "log-order": "unknown",  # the log lacks an acknowledged write, so it proves nothing
}
WRONG_CLUSTER = (
    ("register broker", "broker 1", {"incarnation": "a", "epoch": 9, "rack": None, "fenced": True, "leaving": False}),
    ("partition", "aa/0", {"replicas": [1], "isr": [], "removing": [], "adding": [], "leader": 1}),
)
"""A broker whose epoch is not the offset of its record; a leader that is not in sync."""
FAR_EPOCH = 10**5
UNFENCED = ("change broker", "broker 4", {"epoch": FAR_EPOCH, "fenced": -1})
"""A broker whose registration would lie behind all that its node knew to be committed."""

DEMANDS = "demands.pickle"
"""Beside the run folder: what a process of its own must demand of the run."""


def run_that_is_wrong_everywhere(folder: Path, steps: int = 60) -> StoredRun:
    """Its final reads return nothing although all keys were written, which no register explains."""
    quorum, _, _ = minority_commit(3, steps)  # high watermark of a majority, leader completeness
    quorum.snapshot("n1")["hash"] = 17  # snapshot equals prefix
    evidence = quorum.evidence()
    final = max(c["copy"] for c in evidence.copies)

    def of(node: str, event: str) -> Row:
        return [row for row in evidence.traces[node] if row["event"] == event][-1]

    def goes_on(node: str, event: str, **columns: Any) -> Row:
        rows = evidence.traces[node]
        rows.append(of(node, event) | {"seq": len(rows)} | columns)
        return rows[-1]

    def copy_of(node: str) -> Row:
        return next(c for c in evidence.copies if c["node"] == node and c["copy"] == final)

    entry = next(row for row in evidence.logs["n4"] if row["copy"] == final and row["offset"] == 3)
    entry["checksum"] ^= 1 << 31  # log matching
    leaders = {row["peer"] for row in evidence.traces["n5"] if row["event"] == "role"}
    of("n5", "role")["peer"] = min({"n1", "n2"} - {max(leaders, key=str)})  # election safety
    vote = of("n3", "vote")
    other = "n5" if vote["peer"] != "n5" else "n4"
    evidence.traces["n3"].append(vote | {"peer": other, "seq": len(evidence.traces["n3"])})  # vote once
    goes_on("n1", "role", role="candidate", epoch=1000)
    goes_on("n2", "append", epoch=999, offset=10**6)
    goes_on("n2", "vote", epoch=1000, peer="n1")  # vote up to date
    office = goes_on("n1", "role", role="leader", epoch=1000, offset=10**6)
    goes_on("n1", "high-watermark", epoch=1000, offset=office["offset"])  # commit own epoch
    for disk in ("one disk", "another disk"):  # kept disk
        started = of("n5", "start") | {"event": "disk", "detail": disk}
        evidence.traces["n5"].append(started | {"seq": len(evidence.traces["n5"]), "offset": None, "hash": None})
    copy_of("n4").update(quorum_epoch=0, trace_seq=-1)  # monotonicity
    of("n4", "applied")["hash"] = 17  # state machine safety
    of("n5", "high-watermark")["hash"] = 17  # committed never lost
    for offset, names in ((10**6, "n1"), (10**6 + 1, "n1 n2")):  # voters caught up
        goes_on("n1", "high-watermark", epoch=1000, offset=offset, detail=names, hash=None)["event"] = "voters"
    for offset, names in ((1, "n1 n2 n3 n4 n5"), (2, "n1 n2 n3")):  # quorum intersection
        named = {"event": "voters", "offset": offset, "detail": names, "hash": None}
        evidence.traces["n5"].append(of("n5", "high-watermark") | named | {"seq": len(evidence.traces["n5"])})
    goes_on("n4", "high-watermark", offset=FAR_EPOCH, hash=None)["event"] = "broker"  # broker sessions
    acknowledged = next(row for row in evidence.history if row["type"] == 1 and row["f"] == "write")
    evidence.logs["n2"] = [
        row for row in evidence.logs["n2"] if row["copy"] != final or row["value"] != acknowledged["value"]
    ]  # history against log
    evidence.test["spec"]["backend"] = "docker"
    for row in evidence.history:
        if row["type"] == 1:
            row["time_ns"] = 0  # answers after commit
    evidence.outcome["deaths"] = [{"node": "n2", "ordered": False, "time_ns": 5, "status": 139, "reason": "it crashed"}]
    one = {"until_ns": 9, "looks": 4, "epoch": 3, "role": "leader"}
    evidence.outcome["reports"] = [one | {"time_ns": 5, "node": node, "leader": node} for node in ("n1", "n2")]
    evidence.outcome["recovery"] |= {"recovered": False, "waiting_for": "n3"}
    evidence.outcome["final_reads"] = dict.fromkeys(evidence.outcome["final_reads"], "timed out")  # vacuity
    files = evidence.ended().write(folder)
    _wrong_cluster(files)
    applied = of("n1", "applied")
    files.replayed.mkdir()
    state = {"node": "n1", "copy": final, "offset": applied["offset"], "hash": applied["hash"] ^ 1}
    pq.write_table(pa.Table.from_pylist([state], REPLAYED), files.replayed / "n1.parquet")  # replay equals live
    _wrong_replicas(files)
    seal(folder)
    (folder.parent / DEMANDS).write_bytes(pickle.dumps(files.demands))
    return files


def _wrong_replicas(run: StoredRun) -> None:
    """Two replicas of a topic that differ below their high watermarks, and two implementations that disagree."""
    run.topics.mkdir(parents=True, exist_ok=True)
    for number, node in enumerate(run.servers):
        copy = max(copy["copy"] for copy in run.copies if copy["node"] == node)
        replica = {"copy": copy, "node": node, "partition": "t 0 id"}
        batch = {"kind": "batch", "offset": 0, "end": 2, "epoch": 1, "crc": min(number, 1)}
        mark = {"kind": "high-watermark", "offset": 2, "end": -1, "epoch": -1, "crc": -1}
        pq.write_table(pa.Table.from_pylist([replica | batch, replica | mark], TOPICS), run.topics / f"{node}.parquet")
    differs = {"nodes": "n1, n2", "what": "bytes", "compared": 2, "differs": "offset 1", "missing": None}
    pq.write_table(pa.Table.from_pylist([differs], COMPARISONS), run.comparisons)


def _wrong_cluster(run: StoredRun) -> None:
    """Records about brokers and partitions in the first copy of n1, at the offsets 1 and 2; one at 1 in its last."""
    first, last = (choose(copy["copy"] for copy in run.copies if copy["node"] == "n1") for choose in (min, max))
    rows = [
        {"copy": copy, "node": "n1", "offset": offset, "epoch": 1, "batch_offset": offset}
        | {"kind": kind, "about": about, "fields": json.dumps(fields)}
        for copy, records in ((first, WRONG_CLUSTER), (last, (UNFENCED,)))
        for offset, (kind, about, fields) in enumerate(records, 1)
    ]
    run.cluster.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, CLUSTER), run.cluster / "n1.parquet")
