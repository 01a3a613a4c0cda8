"""Run folders made up from a seed, by the schemas alone: what a harness, checkers and nodes would have left."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from journals import write_header, write_journal
from report_verdicts import verdicts
from report_world import NS, SERVERS, World, deal, kill, operations, written

from checkers.base.columns import COPIES, LOG, TRACE, events_to_table
from checkers.record.files import as_json


def build(
    folder: Path,
    kind: str = "valid",
    *,
    seed: int = 7,
    length_s: float = 30.0,
    rate_hz: float = 200.0,
    nasty: str | None = None,
) -> Path:
    """Write a run folder.  kind: valid, stale, logs, elections, several, kill, unknown, canary, interrupted, empty.

    nasty: a hostile text that is put wherever a run can carry text.
    """
    folder.mkdir(parents=True)
    keys = [f"k{i}" for i in range(10)]
    if nasty is not None:
        keys[3] = nasty
    world = World(Random(seed), length_s, rate_hz, keys)
    if kind == "empty":
        return folder
    if kind != "canary":
        deal(world)
    operations(world, nodes=kind != "canary")
    if kind == "kill":
        kill(world)
    checkers = verdicts(world, kind)
    events = written(world)
    if kind == "interrupted":
        events = [e for e in events if e.time_ns < 0.4 * length_s * NS]
        with (
            pa.OSFile(str(folder / "history.arrows"), "wb") as out,
            pa.ipc.new_stream(out, events_to_table([]).schema) as w,
        ):
            w.write_table(events_to_table(events))
    else:
        pq.write_table(events_to_table(events), folder / "history.parquet")
    if kind != "canary":
        tables(world, folder, diverged=kind in ("logs", "several"))
    test, outcome = descriptions(world, kind, seed)
    faults = [as_json(f) for f in world.faults]
    results: dict[str, Any] = {"checkers": checkers, "judging_s": 1.9}
    found = [c["verdict"] for c in checkers.values()]
    results["verdict"] = next((v for v in ("invalid", "unknown") if v in found), "valid")
    results["exit_code"] = {"valid": 0, "invalid": 1, "unknown": 2}[results["verdict"]]
    pieces = [poison(value, nasty) if nasty else value for value in (test, outcome, faults, results)]
    write_header(folder, **pieces[0])
    write_journal(folder, outcome=pieces[1], faults=pieces[2])
    if kind != "interrupted":
        (folder / "results.json").write_text(json.dumps(pieces[3]))
    return folder


def poison(value: Any, nasty: str) -> Any:
    """The same value with a hostile text in every sentence of it; names that others refer to stay."""
    if isinstance(value, dict):
        words = {"words", "reason", "summary", "why", "expected", "detail"}
        words |= {"excerpt", "title", "question", "name", "rerun"}
        return {
            k: f"{v} {nasty}" if isinstance(v, str) and k in words else poison(v, nasty) for k, v in value.items()
        } | ({nasty: nasty} if "why" in value or "seed" in value else {})
    if isinstance(value, list):
        return [f"{v} {nasty}" if isinstance(v, str) and " " in v else poison(v, nasty) for v in value]
    return value


def tables(world: World, folder: Path, diverged: bool) -> None:
    (folder / "tables" / "trace").mkdir(parents=True)
    (folder / "tables" / "log").mkdir(parents=True)
    copies = []
    for node in SERVERS:
        rows = trace_of(world, node)
        pq.write_table(pa.Table.from_pylist(rows, schema=TRACE), folder / "tables" / "trace" / f"{node}.parquet")
        entries = []
        for offset, (_, epoch, key, value) in enumerate(world.commits):
            wrong = diverged and node == "n2" and 100 <= offset < 103
            checksum = hash((epoch, key, value, wrong)) & (2**62 - 1)
            entry = {"copy": 0, "node": node, "offset": offset, "epoch": epoch + wrong, "checksum": checksum}
            entries.append(entry | {"batch_offset": offset, "batch_hash": offset, "key": key, "value": value + wrong})
        pq.write_table(pa.Table.from_pylist(entries, schema=LOG), folder / "tables" / "log" / f"{node}.parquet")
        copy = {"copy": 0, "node": node, "when": "final", "state": "stopped", "log_end": len(entries), "torn_bytes": 0}
        copies.append(copy | {"quorum_epoch": world.leads[-1][0], "trace_seq": len(rows) - 1})
    pq.write_table(pa.Table.from_pylist(copies, schema=COPIES), folder / "tables" / "copies.parquet")


def trace_of(world: World, node: str) -> list[dict[str, Any]]:
    reported: list[tuple[float, str, int, dict[str, Any]]] = [(0.05, "start", 0, {"offset": 0, "hash": 0})]
    for epoch, leader, start, until in world.leads:
        winners = SERVERS[:3] if leader in SERVERS[:3] else SERVERS[2:]
        if node in winners:
            reported.append((start - 0.02, "vote", epoch, {"peer": leader}))
        if node == leader:
            reported.append((start - 0.05, "role", epoch, {"role": "candidate"}))
            reported.append((start, "role", epoch, {"role": "leader", "peer": leader, "offset": 0}))
            if until < math.inf:
                reported.append((until, "role", epoch, {"role": "resigned"}))
        else:
            late = max([b for e, n, _, b in world.leads if n == node and e == epoch - 1], default=0.0)
            reported.append((max(start + 0.03, late + 0.2), "role", epoch, {"role": "follower", "peer": leader}))
    cut = [f for f in world.faults if any(a == node for a, _ in f.cut) and len(f.cut) > 8]
    for i, (t, epoch, _, _) in enumerate(world.commits):
        shown = t + 0.004
        for f in cut:
            if f.injected_ns / NS < shown < f.healed_ns / NS and node != next(
                n for e, n, _, _ in world.leads if e == epoch
            ):
                shown = f.healed_ns / NS + 0.2
        reported.append((shown, "high-watermark", epoch, {"offset": i + 1, "hash": i}))
    down = [(f.injected_ns / NS, f.healed_ns / NS) for f in world.faults if node in f.nodes and f.card.kind == "kill"]
    for start, end in down:
        reported = [s for s in reported if not start < s[0] < end] + [(end + 0.1, "start", 1, {"offset": 3, "hash": 0})]
    rows = []
    for seq, (t, event, epoch, rest) in enumerate(rising(sorted(reported, key=lambda s: s[0]))):
        when = {"node": node, "incarnation": sum(t > end for _, end in down), "seq": seq, "time_ns": int(t * NS)}
        rows.append(when | {"event": event, "epoch": epoch} | rest)
    return rows


def descriptions(world: World, kind: str, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    canary = kind == "canary"
    bug = "stale-read" if kind == "stale" else None
    subject, nemesis = ("canary", "none") if canary else ("kraft", "partition")
    spec = {"subject": subject, "workload": "register", "nemesis": nemesis, "nodes": 5, "concurrency": 10, "keys": 10}
    spec |= {"backend": "in-process" if canary else "docker", "bug": bug}
    test = {
        "run_id": "abc",
        "test": f"test-{nemesis}",
        "started_utc": "2026-11-20T03:14:12+00:00",
        "seed": seed,
        "spec": spec | {"rate_hz": world.rate_hz, "time_limit_s": world.length_s},
        "versions": {"python": "3.11.2"},
        "git": {"revision": "4be19c2aa", "dirty": False},
        "rerun": f"make test-{nemesis} SEED={seed}" + (f" BUG={bug}" if bug else ""),
        "started_monotonic_ns": 0,
    }
    end = int(world.length_s * NS)
    phases = (("main", 0.0, 0.95), ("recovery", 0.95, 0.98), ("final reads", 0.98, 1.0))
    outcome = {
        "phases": [{"name": name, "start_ns": int(end * a), "end_ns": int(end * b)} for name, a, b in phases],
        "scheduled_rate_hz": world.rate_hz,
        "achieved_rate_hz": world.rate_hz * 0.99,
        "interrupted": kind == "interrupted",
        "recovery": {"needed": not canary, "recovered": True, "seconds": 0.94, "limit_s": 60, "waiting_for": ""},
        "deaths": deaths(world) if kind == "kill" else [],
        "final_reads": dict.fromkeys(world.keys, "ok"),
        "declares": dict.fromkeys(("nodes", "logs", "traces", "elections", "faults"), not canary),
        "leaders": [{"time_ns": int(a * NS), "node": n, "epoch": e} for e, n, a, _ in world.leads],
    }
    return test, outcome


def rising(reported: list[tuple[float, str, int, dict[str, Any]]]) -> list[tuple[float, str, int, dict[str, Any]]]:
    """Without the high watermarks that a node reports late, after it has learnt a higher one."""
    highest, kept = -1, []
    for row in reported:
        if row[1] == "high-watermark":
            if row[3]["offset"] <= highest:
                continue
            highest = row[3]["offset"]
        kept.append(row)
    return kept


def deaths(world: World) -> list[dict[str, Any]]:
    """The node the second card killed, and one that died of its own."""
    killed = world.faults[1]
    mine = {"status": -9, "reason": "fault 2", "excerpt": ""}
    own = {"status": 1, "reason": "truncation below its mark", "excerpt": "Traceback:\n  log"}
    return [
        {"node": killed.nodes[0], "time_ns": killed.injected_ns, "ordered": True} | mine,
        {"node": "n5", "time_ns": int(world.length_s * 0.9 * NS), "ordered": False} | own,
    ]
