"""The verdicts of checkers on a played world (results.json), with one planted violation if the test wants one."""

from __future__ import annotations

from typing import Any

from report_world import NS, World, events_of

from checkers.base.history import Type

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
