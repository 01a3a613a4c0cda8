"""Witnesses of `committed-never-lost`: the committed entry, the log that lacks it, and the write that made it."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkers.base.run_evidence import log_rows, numbers, read_entries
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Witness
from checkers.raft.client_writes import invoke_of, offset_ranges, operations
from checkers.raft.witness_rows import Row, hash_words, in_trace


def prefixes_differ(one: Row, two: Row) -> Witness:
    """Two high watermarks at one offset over different prefixes."""
    offset = one["offset"]
    nodes = list(dict.fromkeys((one["node"], two["node"])))
    return Witness(
        kind="committed prefixes differ",
        summary=f"{' and '.join(nodes)} both committed everything below offset {offset}, but not the same.",
        rows=(one, two),
        facts={
            "nodes": nodes,
            "epoch": max(one["epoch"], two["epoch"]),
            "offset": offset,
            "why": [
                f"{r['node']} reported in epoch {r['epoch']} ({in_trace(r)}) that {offset} entries are committed; "
                f"the hash of what it held there is {hash_words(r['hash'])}."
                for r in (one, two)
            ],
            "expected": "one committed log",
        },
    )


def removed(mark: Row, cut: Row) -> Witness:
    """A truncation, or a recovery after a restart, below what the node held and knew to be committed."""
    own_mark = mark["event"] == "high-watermark" and mark["incarnation"] == cut["incarnation"]
    truncated = cut["event"] == "truncate"
    did = "truncated its log to" if truncated else "came back from a restart with a log that ends at"
    kept = f"{mark['node']} {did} offset {cut['offset']}, but what it held below {mark['offset']} was committed."
    return Witness(
        kind="truncation below the high watermark" if truncated and own_mark else "committed entry lost",
        summary=kept,
        rows=(mark, cut),
        facts={
            "nodes": [mark["node"]],
            "epoch": cut["epoch"],
            "offset": cut["offset"],
            "why": [
                f"In epoch {mark['epoch']} {mark['node']} held everything below {mark['offset']}, which was committed "
                f"({in_trace(mark)}).",
                f"In epoch {cut['epoch']} its log ended at {cut['offset']} ({in_trace(cut)}).",
            ],
            "expected": "committed entries are never removed; flushed ones survive a crash",
        },
    )


def refused(fatal: Row) -> Witness:
    """A node died rather than truncate below its high watermark."""
    return Witness(
        kind="truncation below the high watermark",
        summary=f"{fatal['node']} was to truncate its log below its high watermark, and refused: {fatal['detail']}",
        rows=(fatal,),
        facts={
            "nodes": [fatal["node"]],
            "epoch": fatal["epoch"],
            "offset": fatal["offset"],
            "why": [f"{fatal['node']} stopped in epoch {fatal['epoch']} ({in_trace(fatal)}): {fatal['detail']}"],
            "expected": "a leader's log agrees with everything that a follower knows to be committed",
        },
    )


def lost(run: StoredRun, missing: Any) -> Witness:
    """Make the witness of a `committed_never_lost.Lost`.

    It shows the mark, the offset where a log that holds the mark differs from the log that lacks it, and the write of
    the first missing entry.
    """
    proof: Row = missing.proof
    holder = holder_of(run, missing.offset, missing.hash)
    at, rows = (missing.offset - 1, []) if holder is None else parting(run, holder, (missing.node, missing.copy))
    if holder is None:
        rows = log_rows(node_files(run.log)[missing.node], missing.copy, [missing.offset - 1])
    events = _events(run, [r for r in rows if holder is not None and (r["node"], r["copy"]) == holder])
    name = f"the log of {missing.node} (copy {missing.copy}, {missing.when})"
    committed = _committed(proof, missing.offset)
    difference = f"has another entry at offset {at}" if len(rows) > 1 else f"has no entry at offset {at}"
    holds = f", where {holder[0]} (copy {holder[1]}) still holds the committed one" if holder is not None else ""
    return Witness(
        kind="committed prefixes differ" if missing.differs else "committed entry lost",
        summary=f"{committed} But {name} {difference}{holds}.",
        events=tuple(events),
        rows=(proof, *rows),
        facts={
            "nodes": list(dict.fromkeys([missing.node, *([holder[0]] if holder else []), proof["node"]])),
            "copies": [missing.copy, *([holder[1]] if holder else [])],
            "epoch": missing.epoch,
            "offset": at,
            "committed_below": missing.offset,
            "why": [committed, missing.why, f"Yet it {difference}."],
            "expected": f"every entry below offset {missing.offset}, as it was committed",
        },
    )


def _committed(proof: Row, offset: int) -> str:
    if proof["table"] == "log":
        write = f"The write of {proof['value']} to {proof['key']} at offset {proof['offset']}"
        return f"{write} was acknowledged to a client."
    if proof["event"] == "append":
        return f"{proof['node']} held everything below offset {offset} in epoch {proof['epoch']}, and it was committed."
    return f"{proof['node']} reported in epoch {proof['epoch']} that everything below offset {offset} is committed."


def holder_of(run: StoredRun, offset: int, prefix_hash: int | None) -> tuple[str, int] | None:
    """Return (node, number) of the latest copy that holds the mark; None if no copy does, or the hash is unknown."""
    if prefix_hash is None:
        return None
    found = [
        (entry["copy"], node)
        for node, path in node_files(run.log).items()
        for copy in sorted({c["copy"] for c in run.copies if c["node"] == node})
        for entry in log_rows(path, copy, [offset - 1])
        if entry["batch_hash"] == prefix_hash
    ]
    readable = {(c["copy"], c["node"]) for c in run.copies if not c["error"]}
    found = [f for f in found if f in readable]
    return (max(found)[1], max(found)[0]) if found else None


def parting(run: StoredRun, holder: tuple[str, int], loser: tuple[str, int]) -> tuple[int, list[Row]]:
    """Return the first offset where the loser's log lacks or changes an entry of the holder's, and the rows there.

    Reads both logs, one range of offsets at a time.
    """
    files = node_files(run.log)
    columns = ("epoch", "checksum")
    at = -1
    for first, end in offset_ranges([files[holder[0]]]):
        have, lack = (read_entries(files[node], copy, first, columns, end) for node, copy in (holder, loser))
        size = min(len(have), len(lack))
        same = np.ones(size, np.bool_)
        for column in ("offset", *columns):
            same &= numbers(have, column)[:size] == numbers(lack, column)[:size]
        position = size if same.all() else int(np.argmin(same))
        if position < len(have):
            at = int(numbers(have, "offset")[position])
            break
        at = int(numbers(have, "offset")[-1]) if len(have) else at
    return at, log_rows(files[holder[0]], holder[1], [at]) + log_rows(files[loser[0]], loser[1], [at])


def _events(run: StoredRun, rows: list[Row]) -> list[Row]:
    """Return the history rows of the write behind an entry: its invoke and its completion."""
    wanted = [(r["key"], r["value"]) for r in rows if r["key"] is not None and r["value"] is not None]
    if not wanted or not run.history.exists():
        return []
    call = invoke_of(str(run.history), *wanted[0])
    return [] if call is None else operations(str(run.history), [call])
