"""The verdicts of checkers on a played world (results.json), with one planted violation if the test wants one."""

from __future__ import annotations

from typing import Any

from report_world import NS, World, events_of

from checkers.base.history import Type


def checker(verdict: str, title: str, question: str, looked_at: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "title": title,
        "question": question,
        "looked_at": looked_at,
        "reason": "",
        "witness": [],
        "details": {},
        "seconds": 0.21,
    } | rest


def verdicts(world: World, kind: str) -> dict[str, Any]:
    out = {
        "linearizability": checker(
            "valid",
            "Linearizability",
            "Can the answers of each key be put in one order that respects real time?",
            {"keys": len(world.keys), "operations": len(world.ops)},
        )
    }
    if kind != "canary":
        out |= of_the_quorum(world)
    criteria = every_run(len(world.ops)) + (
        [] if kind == "canary" else under_faults(0.04 if kind == "unknown" else 0.31)
    )
    short = [c for c in criteria if not c["met"]]
    out["vacuity"] = checker(
        "unknown" if short else "valid",
        "Was enough tested?",
        "Did enough happen for a verdict to mean something?",
        {"criteria": len(criteria)},
        details={"criteria": criteria},
        reason="share of ok operations in faults: got 0.04, wanted at least 0.1" if short else "",
    )
    if kind in ("stale", "several"):
        invalidate(out["linearizability"], stale_read(world))
    if kind in ("logs", "several"):
        invalidate(out["log-matching"], log_witness())
    if kind in ("elections", "several"):
        invalidate(out["election-safety"], election_witness())
    return out


def of_the_quorum(world: World) -> dict[str, Any]:
    """Checkers of logs, traces and recovery."""
    return {
        "log-matching": checker(
            "valid", "Log matching", "Do logs that agree at one offset agree below it?", {"logs": 25, "entries": 18777}
        ),
        "election-safety": checker(
            "valid",
            "Election safety",
            "Was there ever more than one leader in an epoch?",
            {"epochs": len(world.leads), "votes": 15},
        ),
        "recovery": checker("valid", "Recovery", "Was the cluster whole again in time?", {"nodes": 5, "seconds": 0.94}),
    }


def criterion(name: str, value: float, least: float, words: str, *, demanded: bool = True) -> dict[str, Any]:
    met = value >= least
    return {"name": name, "value": value, "least": least, "met": met, "demanded": demanded, "words": words}


def every_run(operations: int) -> list[dict[str, Any]]:
    return [
        criterion("ran to its end", 1, 1, "the run was not interrupted"),
        criterion("ok operations", operations, 1, "without an answer there is nothing to judge"),
        criterion("keys with concurrency", 10, 5.0, "of 10 keys: two operations were open at once"),
    ]


def under_faults(share_ok: float) -> list[dict[str, Any]]:
    deposed = "operations answered by a deposed leader"
    return [
        criterion("share of ok operations in faults", share_ok, 0.1, "answered while a fault lasted"),
        criterion(deposed, 31, 0, "of them 24 reads", demanded=False),
    ]


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
    return {
        "kind": "logs differ below an equal epoch",
        "summary": "The logs of n2 (final) and n4 (final) differ at offset 100, though both hold epoch 2 at offset 103",
        "events": [],
        "rows": [
            row | {"node": n, "checksum": c, "value": c, "epoch": e} for n, c, e in (("n2", 11, 2), ("n4", 12, 1))
        ],
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
    base = {
        "table": "trace",
        "incarnation": 0,
        "event": "vote",
        "epoch": 3,
        "offset": None,
        "hash": None,
        "role": None,
        "detail": None,
    }
    votes = [
        base | {"node": n, "seq": 9000 + i, "time_ns": 31 * NS + i, "peer": p}
        for i, (n, p) in enumerate((("n1", "n1"), ("n2", "n1"), ("n5", "n5"), ("n4", "n5"), ("n2", "n5")))
    ]
    leads = [
        base | {"node": n, "seq": 9100, "time_ns": 31 * NS + 9000000, "event": "role", "role": "leader", "peer": n}
        for n in ("n1", "n5")
    ]
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
