"""Run folders made up from a seed, by the schemas alone: what a harness, checkers and nodes would have left.

A small cluster is played through: leaders by epoch, clients at a fixed rate, values that linearise by construction.
Kinds add one planted violation, or leave things out; see `build`.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.columns import COPIES, LOG, TRACE, events_to_table
from checkers.history import NEMESIS, Event, Type
from nemesis.faults import Achieved, Card, FaultRecord, Proof

SERVERS = tuple(f"n{i}" for i in range(1, 6))
CLIENTS = ("c1", "c2")
NS = 1_000_000_000


@dataclass
class Op:
    process: int
    f: str
    key: str
    start: float
    point: float
    end: float
    type: Type
    node: str
    value: int | None = None
    error: str | None = None
    answered: bool = True


@dataclass
class World:
    """Everything that happened, before it is written down."""

    rng: Random
    length_s: float
    rate_hz: float
    keys: list[str]
    leads: list[tuple[int, str, float, float]] = field(default_factory=list)  # epoch, node, from, until (as it believes)
    faults: list[FaultRecord] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    commits: list[tuple[float, int, str, int]] = field(default_factory=list)  # time, epoch, key, value


def build(
    folder: Path,
    kind: str = "valid",
    *,
    seed: int = 7,
    length_s: float = 60.0,
    rate_hz: float = 200.0,
    nasty: str | None = None,
) -> Path:
    """Write a run folder.  kind: valid, stale, logs, elections, several, unknown, canary, interrupted, empty.

    nasty: a hostile text that is put wherever a run can carry text.
    """
    folder.mkdir(parents=True)
    keys = [f"k{i}" for i in range(10)]
    if nasty is not None:
        keys[3] = nasty
    world = World(Random(seed), length_s, rate_hz, keys)
    if kind == "empty":
        return folder
    play(world, nodes=kind != "canary")
    checkers = verdicts(world, kind)
    events = written(world)
    if kind == "interrupted":
        events = [e for e in events if e.time_ns < 0.4 * length_s * NS]
        with pa.OSFile(str(folder / "history.arrows"), "wb") as out, pa.ipc.new_stream(out, events_to_table([]).schema) as w:
            w.write_table(events_to_table(events))
    else:
        pq.write_table(events_to_table(events), folder / "history.parquet")
    if kind != "canary":
        tables(world, folder, diverged=kind in ("logs", "several"))
    test, outcome = descriptions(world, kind, seed)
    faults = [f.to_json() for f in world.faults]
    results: dict[str, Any] = {"checkers": checkers, "judging_s": 1.9}
    found = [c["verdict"] for c in checkers.values()]
    results["verdict"] = next((v for v in ("invalid", "unknown") if v in found), "valid")
    results["exit_code"] = {"valid": 0, "invalid": 1, "unknown": 2}[results["verdict"]]
    pieces: dict[str, Any] = {"test": test, "outcome": outcome, "faults": faults, "results": results}
    if kind == "interrupted":
        del pieces["results"]
    for name, value in pieces.items():
        (folder / f"{name}.json").write_text(json.dumps(poison(value, nasty) if nasty else value))
    return folder


def poison(value: Any, nasty: str) -> Any:
    """The same value with a hostile text in every sentence of it; names that others refer to stay."""
    if isinstance(value, dict):
        words = ("words", "reason", "summary", "why", "expected", "detail", "excerpt", "title", "question", "name", "rerun")
        return {
            k: f"{v} {nasty}" if isinstance(v, str) and k in words else poison(v, nasty) for k, v in value.items()
        } | ({nasty: nasty} if "why" in value or "seed" in value else {})
    if isinstance(value, list):
        return [f"{v} {nasty}" if isinstance(v, str) and " " in v else poison(v, nasty) for v in value]
    return value


def play(world: World, nodes: bool) -> None:
    if nodes:
        deal(world)
    operations(world, nodes)


def deal(world: World) -> None:
    """Five cards over the run; those that isolate the leader bring the next epoch."""
    names = ["leader-with-c1", "two-groups", "isolate-leader", "majorities-ring", "one-way"]
    at, epoch, leader = 0.08 * world.length_s, 1, world.rng.choice(SERVERS)
    world.leads.append((epoch, leader, 0.4, math.inf))
    for number, name in enumerate(names, 1):
        lasts = world.length_s * (0.11 if "leader" in name else 0.08)
        start, end = at + 0.007, at + lasts
        others = [s for s in SERVERS if s != leader]
        if name == "two-groups":
            groups = [set(others[:2]), set(others[2:])]
            cut = {(a, b) for a in groups[0] for b in groups[1]} | {(b, a) for a in groups[0] for b in groups[1]}
        elif name == "one-way":
            cut = {(others[0], s) for s in SERVERS if s != others[0]}
        elif name == "majorities-ring":
            ring = world.rng.sample(SERVERS, 5)
            cut = {(a, b) for i, a in enumerate(ring) for j, b in enumerate(ring) if min((i - j) % 5, (j - i) % 5) == 2}
        else:
            cut = {(leader, s) for s in (*others, "c2")} | {(s, leader) for s in (*others, "c2")}
        world.faults.append(record(world, number, name, leader if "leader" in name else None, epoch, cut, at, start, end))
        if "leader" in name:
            won, gone = start + 0.021 * world.length_s, start + 0.036 * world.length_s
            world.leads[-1] = (*world.leads[-1][:3], gone)
            epoch, leader = epoch + 1, world.rng.choice(others)
            world.leads.append((epoch, leader, won, math.inf))
        at = end + 0.09 * world.length_s


def record(
    world: World, number: int, name: str, leader: str | None, epoch: int, cut: set[tuple[str, str]], *at_s: float
) -> FaultRecord:
    ordered, start, end = at_s
    everyone = (*SERVERS, *CLIENTS)
    pairs = [(a, b) for a in everyone for b in everyone if a != b and not (a in CLIENTS and b in CLIENTS)]
    sent = {pair: world.rng.randint(140, 160) for pair in pairs}
    proof = Proof("as ordered", {f"{a}>{b}": (n, 0 if (a, b) in cut else n) for (a, b), n in sent.items()})
    healed = Proof("as ordered", {f"{a}>{b}": (n, n) for (a, b), n in sent.items()})
    words = {
        "leader-with-c1": f"{leader} and c1 apart from all others",
        "two-groups": f"the leader stays, the others cannot hear each other in two groups of two",
        "isolate-leader": f"{leader} apart from everybody but c1",
        "majorities-ring": "every node sees a majority, no two the same one",
        "one-way": "one node is heard by nobody",
    }[name]
    return FaultRecord(
        card=Card(number, "partition", name, ordered, end), achieved=Achieved.INSTALLED, words=words, leader=leader,
        epoch=epoch if leader else -1, cut=tuple(sorted(cut)), injected_ns=int(start * NS),
        heal_ordered_ns=int((end - 0.006) * NS), healed_ns=int(end * NS), apply_ms=4.8, inject_proof=proof, heal_proof=healed,
    )  # fmt: skip


def operations(world: World, nodes: bool) -> None:
    rng, threads = world.rng, 10
    gap = threads / world.rate_hz
    for thread in range(threads):
        process, t = thread, 0.5 + rng.random() * gap
        while t < world.length_s - 1.0:
            key, read = rng.choice(world.keys), thread < 4 or rng.random() < 0.4
            leader = next((n for e, n, a, b in reversed(world.leads) if a <= t), None)
            dead = nodes and any(
                e + 1 == e2 and (a2 - 1.3) < t < a2 for e, _, _, _ in world.leads for e2, _, a2, _ in world.leads
            )
            took = rng.lognormvariate(-5.4, 0.45)
            op = Op(process, "read" if read else "write", key, t, t + took * 0.6, t + took, Type.OK, leader or "canary")
            if dead and rng.random() < 0.03:
                op.end, op.point = t + 2.0, math.inf
                op.type, op.error = (Type.FAIL, "timed out") if read else (Type.INFO, "timed out")
                process += threads if not read else 0
            elif dead:
                op.type, op.error, op.point = Type.FAIL, "not the controller", math.inf
            world.ops.append(op)
            t = max(op.end + 0.0002, t + gap * (0.5 + rng.random()))
    for key in world.keys:
        t = world.length_s - 0.8 + rng.random() * 0.1
        world.ops.append(Op(9000, "read", key, t, t, t + 0.004, Type.OK, world.leads[-1][1] if world.leads else "canary"))
    last = [o for o in world.ops if o.process == 9000]
    for i, op in enumerate(sorted(last, key=lambda o: o.start)):
        op.start = op.point = world.length_s - 0.8 + 0.02 * i
        op.end = op.start + 0.004
    state: dict[str, int | None] = {}
    serial = 0
    for op in sorted(world.ops, key=lambda o: (o.point, o.start)):
        if op.f == "write":
            serial += 1
            op.value = serial
        if op.type is not Type.OK:
            continue
        if op.f == "write":
            state[op.key] = op.value
            epoch = next((e for e, _, a, _ in reversed(world.leads) if a <= op.point), 0)
            world.commits.append((op.point, epoch, op.key, serial))
        else:
            op.value = state.get(op.key)


def written(world: World) -> list[Event]:
    rows: list[tuple[float, int, Op | FaultRecord, bool]] = []
    for op in world.ops:
        rows += [(op.start, 0, op, True), (op.end, 1, op, False)]
    rows.sort(key=lambda r: (r[0], r[1]))
    events = []
    for index, (t, _, op, begins) in enumerate(rows):
        assert isinstance(op, Op)
        value = op.value if op.f == "write" or not begins else None
        events.append(
            Event(index, int(t * NS), op.process, Type.INVOKE if begins else op.type, op.f, op.key, value, None, None,
                  None if begins else op.error, op.node)
        )  # fmt: skip
    return [*events, Event(len(events), int(world.length_s * NS) - 1, NEMESIS, Type.INFO, "stop")]


def events_of(world: World, ops: list[Op]) -> list[dict[str, Any]]:
    """History rows of some operations, as a witness carries them."""
    chosen = {(int(o.start * NS), o.process) for o in ops} | {(int(o.end * NS), o.process) for o in ops}
    return [asdict(e) | {"type": int(e.type)} for e in written(world) if (e.time_ns, e.process) in chosen]


def tables(world: World, folder: Path, diverged: bool) -> None:
    (folder / "tables" / "trace").mkdir(parents=True)
    (folder / "tables" / "log").mkdir(parents=True)
    log = [(epoch, key, value) for _, epoch, key, value in world.commits]
    copies = []
    for node in SERVERS:
        rows = trace_of(world, node)
        pq.write_table(pa.Table.from_pylist(rows, schema=TRACE), folder / "tables" / "trace" / f"{node}.parquet")
        entries = []
        for offset, (epoch, key, value) in enumerate(log):
            wrong = diverged and node == "n2" and 100 <= offset < 103
            entries.append(
                dict(copy=0, node=node, offset=offset, epoch=epoch + wrong, checksum=hash((epoch, key, value, wrong)) & (2**62 - 1),
                     batch_offset=offset, batch_hash=offset, key=key, value=value + wrong)
            )  # fmt: skip
        pq.write_table(pa.Table.from_pylist(entries, schema=LOG), folder / "tables" / "log" / f"{node}.parquet")
        copies.append(
            dict(copy=0, node=node, when="final", state="stopped", log_end=len(log), torn_bytes=0,
                 quorum_epoch=world.leads[-1][0], voted_for=None, trace_seq=len(rows) - 1, error=None)
        )  # fmt: skip
    pq.write_table(pa.Table.from_pylist(copies, schema=COPIES), folder / "tables" / "copies.parquet")


def trace_of(world: World, node: str) -> list[dict[str, Any]]:
    said: list[tuple[float, str, int, dict[str, Any]]] = [(0.05, "start", 0, {"offset": 0, "hash": 0})]
    for epoch, leader, start, until in world.leads:
        winners = SERVERS[:3] if leader in SERVERS[:3] else SERVERS[2:]
        if node in winners:
            said.append((start - 0.02, "vote", epoch, {"peer": leader}))
        if node == leader:
            said.append((start - 0.05, "role", epoch, {"role": "candidate"}))
            said.append((start, "role", epoch, {"role": "leader", "peer": leader, "offset": 0}))
            if until < math.inf:
                said.append((until, "role", epoch, {"role": "resigned"}))
        else:
            late = max([b for e, n, _, b in world.leads if n == node and e == epoch - 1], default=0.0)
            said.append((max(start + 0.03, late + 0.2), "role", epoch, {"role": "follower", "peer": leader}))
    cut = [f for f in world.faults if any(a == node for a, _ in f.cut) and len(f.cut) > 8]
    for i, (t, epoch, _, _) in enumerate(world.commits):
        shown = t + 0.004
        for f in cut:
            if f.injected_ns / NS < shown < f.healed_ns / NS and node != next(
                n for e, n, _, _ in world.leads if e == epoch
            ):
                shown = f.healed_ns / NS + 0.2
        said.append((shown, "high-watermark", epoch, {"offset": i + 1, "hash": i}))
    said.sort(key=lambda s: s[0])
    empty = {"offset": None, "hash": None, "peer": None, "role": None, "detail": None}
    return [
        {"node": node, "incarnation": 0, "seq": seq, "time_ns": int(t * NS), "event": event, "epoch": epoch} | empty | rest
        for seq, (t, event, epoch, rest) in enumerate(said)
    ]


def checker(verdict: str, title: str, question: str, looked_at: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {
        "verdict": verdict, "title": title, "question": question, "looked_at": looked_at, "reason": "", "witness": [],
        "details": {}, "seconds": 0.21,
    } | rest  # fmt: skip


def verdicts(world: World, kind: str) -> dict[str, Any]:
    ops = len(world.ops)
    out = {
        "linearizability": checker(
            "valid", "Linearizability", "Can the answers of each key be put in one order that respects real time?",
            {"keys": len(world.keys), "operations": ops},
        )
    }  # fmt: skip
    if kind != "canary":
        out |= {
            "log-matching": checker("valid", "Log matching", "Do logs that agree at one offset agree below it?", {"logs": 25, "entries": 18777}),
            "election-safety": checker("valid", "Election safety", "Was there ever more than one leader in an epoch?", {"epochs": len(world.leads), "votes": 15}),
            "recovery": checker("valid", "Recovery", "Was the cluster whole again in time?", {"nodes": 5, "seconds": 0.94}),
        }  # fmt: skip
    criteria = [
        {"name": "ran to its end", "value": 1, "least": 1, "met": True, "demanded": True, "words": "the run was not interrupted"},
        {"name": "ok operations", "value": ops, "least": 1, "met": True, "demanded": True, "words": "without an answer there is nothing to judge"},
        {"name": "keys with concurrency", "value": 10, "least": 5.0, "met": True, "demanded": True, "words": "of 10 keys: two operations were open at once"},
    ]  # fmt: skip
    if kind != "canary":
        criteria += [
            {"name": "share of ok operations in faults", "value": 0.04 if kind == "unknown" else 0.31, "least": 0.1, "met": kind != "unknown", "demanded": True, "words": "answered while a fault lasted"},
            {"name": "operations answered by a deposed leader", "value": 31, "least": 0, "met": True, "demanded": False, "words": "of them 24 reads"},
        ]  # fmt: skip
    short = kind == "unknown"
    out["vacuity"] = checker(
        "unknown" if short else "valid", "Was it a real test?", "Did enough happen for a verdict to mean something?",
        {"criteria": len(criteria)}, details={"criteria": criteria},
        reason="share of ok operations in faults: 0.04, where at least 0.1 counts" if short else "",
    )  # fmt: skip
    if kind in ("stale", "several"):
        invalidate(out["linearizability"], stale_read(world))
    if kind in ("logs", "several"):
        invalidate(out["log-matching"], log_witness())
    if kind in ("elections", "several"):
        invalidate(out["election-safety"], election_witness())
    return out


def invalidate(entry: dict[str, Any], witness: dict[str, Any]) -> None:
    entry["verdict"] = "invalid"
    entry["witness"] = [witness]


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
        "summary": f"At {bad.end:.3f} s {old} answered a read of {key} with {first.value} although {second.value} was acknowledged {gap:.0f} ms before it was asked",
        "events": rows,
        "rows": [],
        "facts": {
            "key": key, "states_before": [None], "letters": letters, "culprit": culprit, "rejudged": True,
            "why": [
                f"{by} had returned before {culprit} was asked, so {by} comes first",
                f"After {by} nothing wrote {first.value} again, so {culprit} cannot find it",
                f"An independent search tried every order of these {len(window)} operations and found none that fits",
            ],
            "expected": f"an answer of {second.value}",
        },
    }  # fmt: skip


def log_witness() -> dict[str, Any]:
    row = {"table": "log", "copy": 0, "offset": 100, "epoch": 1, "batch_offset": 100, "batch_hash": 1, "key": "k1"}
    return {
        "kind": "logs differ below an equal epoch",
        "summary": "The logs of n2 (final) and n4 (final) differ at offset 100, though both hold epoch 2 at offset 103",
        "events": [],
        "rows": [row | {"node": n, "checksum": c, "value": c, "epoch": e} for n, c, e in (("n2", 11, 2), ("n4", 12, 1))],
        "facts": {
            "nodes": ["n2", "n4"], "copies": [0, 0], "epoch": 2, "offset": 100, "equal_epoch_at": 103,
            "why": ["Two logs that hold the same epoch at one offset were written by one leader, which had one log"],
            "expected": "equal entries at every offset below 103",
        },
    }  # fmt: skip


def election_witness() -> dict[str, Any]:
    base = {"table": "trace", "incarnation": 0, "event": "vote", "epoch": 3, "offset": None, "hash": None, "role": None, "detail": None}
    votes = [base | {"node": n, "seq": 9000 + i, "time_ns": 31 * NS + i, "peer": p} for i, (n, p) in enumerate((("n1", "n1"), ("n2", "n1"), ("n5", "n5"), ("n4", "n5"), ("n2", "n5")))]
    leads = [base | {"node": n, "seq": 9100, "time_ns": 31 * NS + 9000000, "event": "role", "role": "leader", "peer": n} for n in ("n1", "n5")]
    return {
        "kind": "two leaders in one epoch", "summary": "n1 and n5 were both leader of epoch 3.", "events": [], "rows": leads + votes,
        "facts": {"nodes": ["n1", "n5"], "epoch": 3, "offset": None, "votes": {}, "why": ["n1 became leader of epoch 3.", "n5 became leader of epoch 3."],
                  "expected": "at most one leader in an epoch, for two majorities share a voter and a voter votes once"},
    }  # fmt: skip


def descriptions(world: World, kind: str, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    canary = kind == "canary"
    bug = "stale-read" if kind == "stale" else None
    subject, nemesis = ("canary", "none") if canary else ("kraft", "partition")
    test = {
        "run_id": "abc", "test": f"test-{nemesis}", "started_utc": "2026-11-20T03:14:12+00:00", "seed": seed,
        "spec": {"subject": subject, "workload": "register", "nemesis": nemesis, "backend": "in-process" if canary else "docker",
                 "nodes": 5, "concurrency": 10, "rate_hz": world.rate_hz, "time_limit_s": world.length_s, "keys": 10, "bug": bug},
        "versions": {"python": "3.11.2"}, "git": {"revision": "4be19c2aa", "dirty": False},
        "rerun": f"make test-{nemesis} SEED={seed}" + (f" BUG={bug}" if bug else ""), "started_monotonic_ns": 0,
    }  # fmt: skip
    end = int(world.length_s * NS)
    outcome = {
        "phases": [
            {"name": "main", "start_ns": 0, "end_ns": int(end * 0.95)},
            {"name": "recovery", "start_ns": int(end * 0.95), "end_ns": int(end * 0.98)},
            {"name": "final reads", "start_ns": int(end * 0.98), "end_ns": end},
        ],
        "scheduled_rate_hz": world.rate_hz, "achieved_rate_hz": world.rate_hz * 0.99,
        "loop_stalls": [], "steal_s": {}, "interrupted": kind == "interrupted",
        "recovery": {"needed": not canary, "recovered": True, "seconds": 0.94, "limit_s": 60, "waiting_for": ""},
        "deaths": [], "final_reads": {k: "ok" for k in world.keys},
        "declares": {k: not canary for k in ("nodes", "logs", "traces", "elections", "faults")},
        "leaders": [{"time_ns": int(a * NS), "node": n, "epoch": e} for e, n, a, _ in world.leads],
    }  # fmt: skip
    return test, outcome
