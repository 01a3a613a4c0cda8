"""Run folders of every kind for tests of the report, made from a small world, with the verdicts that belong to them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from journals import write_header, write_journal
from report_world import NS, SERVERS, World, deal, events_of, kill, operations, written

from checkers.base.columns import COPIES, LOG, TRACE, events_to_table
from checkers.base.history import Type
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


TITLES = {
    "linearizability": "Can the answers of each key be put in one order that respects real time?",
    "log-matching": "Do logs that agree at one offset agree below it?",
    "election-safety": "Was there ever more than one leader in an epoch?",
    "recovery": "Was the cluster whole again in time?",
    "vacuity": "Did enough happen for a verdict to mean something?",
}


def verdicts(world: World, kind: str) -> dict[str, Any]:
    looked_at = {"linearizability": {"keys": len(world.keys), "operations": len(world.ops)}}
    if kind != "canary":
        looked_at["log-matching"] = {"logs": 25, "entries": 18777}
        looked_at["election-safety"] = {"epochs": len(world.leads), "votes": 15}
        looked_at["recovery"] = {"nodes": 5, "seconds": 0.94}
    criteria = [
        criterion("ran to its end", 1, 1, "the run was not interrupted"),
        criterion("ok operations", len(world.ops), 1, "without an answer there is nothing to judge"),
        criterion("keys with concurrency", 10, 5.0, "of 10 keys: two operations were open at once"),
    ]
    if kind != "canary":
        share, deposed = "share of ok operations in faults", "operations answered by a deposed leader"
        criteria.append(criterion(share, 0.04 if kind == "unknown" else 0.31, 0.1, "answered while a fault lasted"))
        criteria.append(criterion(deposed, 31, 0, "of them 24 reads", demanded=False))
    looked_at["vacuity"] = {"criteria": len(criteria)}
    out: dict[str, Any] = {}
    for name, seen in looked_at.items():
        title = "Was enough tested?" if name == "vacuity" else name.replace("-", " ").capitalize()
        known = {"title": title, "question": TITLES[name], "looked_at": seen, "reason": "", "witness": []}
        out[name] = {"verdict": "valid"} | known | {"details": {}, "seconds": 0.21}
    out["vacuity"]["details"] = {"criteria": criteria}
    if not all(each["met"] for each in criteria):
        short = "share of ok operations in faults: got 0.04, wanted at least 0.1"
        out["vacuity"] |= {"verdict": "unknown", "reason": short}
    if kind in ("stale", "several"):
        out["linearizability"] |= {"verdict": "invalid", "witness": [stale_read(world)]}
    if kind in ("logs", "several"):
        out["log-matching"] |= {"verdict": "invalid", "witness": [log_witness()]}
    if kind in ("elections", "several"):
        out["election-safety"] |= {"verdict": "invalid", "witness": [election_witness()]}
    return out


def criterion(name: str, value: float, least: float, words: str, *, demanded: bool = True) -> dict[str, Any]:
    met = value >= least
    return {"name": name, "value": value, "least": least, "met": met, "demanded": demanded, "words": words}


def stale_read(world: World) -> dict[str, Any]:
    """Make the first leader that was deposed answer one read from the past."""
    (_, old, _, gone), (_, _, won, _) = world.leads[0], world.leads[1]
    for key in world.keys:
        mine = sorted((o for o in world.ops if o.key == key and o.type is Type.OK), key=lambda o: o.point)
        before = [o for o in mine if o.f == "write" and o.end < won]
        after = [o for o in mine if o.f == "write" and won < o.start and o.end < gone - 0.05]
        reads = [o for o in mine if o.f == "read" and o.end < gone and after and o.start > after[0].end + 0.01]
        if before and after and reads:
            break
    else:
        raise AssertionError("no stale read fits; choose another seed")
    first, second, bad = before[-1], after[0], reads[0]
    bad.value, bad.node = first.value, old
    between = [o for o in mine if o.f == "read" and first.end < o.start and o.end < second.start][:2]
    window = sorted([first, *between, second, bad], key=lambda o: o.start)
    open_write = next((o for o in world.ops if o.key == key and o.type is Type.INFO and o.start < bad.start), None)
    if open_write:
        window = sorted([*window, open_write], key=lambda o: o.start)
    rows = events_of(world, window)
    starts = [r["index"] for r in rows if r["type"] == 0]
    letters = {str(i): "ABCDEFGH"[k] for k, i in enumerate(starts)}
    culprit = "ABCDEFGH"[window.index(bad)]
    by = "ABCDEFGH"[window.index(second)]
    gap = (bad.start - second.end) * 1000
    return {
        "kind": "stale read",
        "summary": f"At {bad.end:.3f} s {old} answered a read of {key} with {first.value} "
        f"although {second.value} was acknowledged {gap:.0f} ms before the read was invoked",
        "events": rows,
        "rows": [],
        "facts": {
            "key": key,
            "states_before": [None],
            "letters": letters,
            "culprit": culprit,
            "rejudged": True,
            "why": [
                f"{by} had returned before {culprit} was invoked, so {by} comes first",
                f"After {by} nothing wrote {first.value} again, so {culprit} cannot find it",
                f"An independent search tried every order of these {len(window)} operations and found none that fits",
            ],
            "expected": f"an answer of {second.value}",
        },
    }


def log_witness() -> dict[str, Any]:
    row = {"table": "log", "copy": 0, "offset": 100, "epoch": 1, "batch_offset": 100, "batch_hash": 1, "key": "k1"}
    entries = (("n2", 11, 2), ("n4", 12, 1))
    return {
        "kind": "logs differ below an equal epoch",
        "summary": "The logs of n2 (final) and n4 (final) differ at offset 100, though both hold epoch 2 at offset 103",
        "events": [],
        "rows": [row | {"node": node, "checksum": c, "value": c, "epoch": epoch} for node, c, epoch in entries],
        "facts": {
            "nodes": ["n2", "n4"],
            "copies": [0, 0],
            "epoch": 2,
            "offset": 100,
            "equal_epoch_at": 103,
            "why": ["Two logs that hold the same epoch at one offset were written by one leader, which had one log"],
            "expected": "equal entries at every offset below 103",
        },
    }


def election_witness() -> dict[str, Any]:
    base = {"table": "trace", "incarnation": 0, "event": "vote", "epoch": 3}
    base |= dict.fromkeys(("offset", "hash", "role", "detail"))
    votes = [
        base | {"node": n, "seq": 9000 + i, "time_ns": 31 * NS + i, "peer": p}
        for i, (n, p) in enumerate((("n1", "n1"), ("n2", "n1"), ("n5", "n5"), ("n4", "n5"), ("n2", "n5")))
    ]
    base |= {"seq": 9100, "time_ns": 31 * NS + 9000000, "event": "role", "role": "leader"}
    leads = [base | {"node": n, "peer": n} for n in ("n1", "n5")]
    return {
        "kind": "two leaders in one epoch",
        "summary": "n1 and n5 both led epoch 3.",
        "events": [],
        "rows": leads + votes,
        "facts": {
            "nodes": ["n1", "n5"],
            "epoch": 3,
            "offset": None,
            "votes": {},
            "why": ["n1 became leader of epoch 3.", "n5 became leader of epoch 3."],
            "expected": "at most one leader in an epoch, for two majorities share a voter and a voter votes once",
        },
    }
