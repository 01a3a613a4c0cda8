"""The mutation check: falsify one row of a clean run on which the verdict must depend.  The verdict must turn invalid.

A broken checker calls everything valid, and a clean run does not reveal it.  So the evidence of a clean run is
falsified, one row at a time, and judged again.  This file selects the rows on which a verdict must depend, by reasoning
that uses no kernel: a written value that stands in a log, an answer that was never written, an entry below a reported
mark, a leader's epoch, a vote that quorum-state still holds.

A value that several writes of one register wrote names none of them: another write may explain a log entry or an
answer.  So the rows of such values are left as they are.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.checker import Checker
from checkers.base.columns import COPIES, HISTORY, LOG, TRACE
from checkers.base.history import NEMESIS, Type
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, combine
from checkers.judging.pipeline import judge_run
from checkers.record.journal import JOURNAL
from checkers.record.reading import TEST
from checkers.sealing.seal import seal

Row = dict[str, Any]
NEVER_WRITTEN = 10**15
FAR_AHEAD = 1000
"""An epoch that no run reaches."""


@dataclass
class Evidence:
    """The tables of a sealed run as rows that can be changed; logs and traces by node.  What the run lacks is empty."""

    history: list[Row]
    logs: dict[str, list[Row]]
    traces: dict[str, list[Row]]
    copies: list[Row]

    def final_log_rows(self) -> Iterator[Row]:
        last = max((row["copy"] for row in self.copies), default=-1)
        return (row for rows in self.logs.values() for row in rows if row["copy"] == last)

    def traced(self, event: str) -> list[Row]:
        return [row for rows in self.traces.values() for row in rows if row["event"] == event]


Mutate = Callable[[Evidence, Random], Row | None]
"""Changes one row and returns it; returns None if the run has no such row."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One falsified run.  noticed: the verdict turned invalid; by: the checkers that noticed."""

    name: str
    row: Row
    noticed: bool
    by: tuple[str, ...]


def mutants(run: StoredRun, checkers: Sequence[Checker], rng: Random, scratch: Path) -> Iterator[Mutant]:
    """Yields one mutant for each mutation that finds a row in this run.  scratch: an empty folder for these runs."""
    for name, mutate in MUTATIONS.items():
        evidence = load(run)
        row = mutate(evidence, rng)
        if row is None:
            continue
        falsified = scratch / name
        write(evidence, run, falsified)
        verdicts = judge_run(StoredRun(falsified, run.demands), checkers)
        by = tuple(c for c, verdict in verdicts.items() if verdict.validity is Validity.INVALID)
        yield Mutant(name, row, combine(v.validity for v in verdicts.values()) is Validity.INVALID, by)
        shutil.rmtree(falsified)


def load(files: StoredRun) -> Evidence:
    def by_node(folder: Path) -> dict[str, list[Row]]:
        return {path.stem: pq.read_table(path).to_pylist() for path in sorted(folder.glob("*.parquet"))}

    return Evidence(
        history=pq.read_table(files.history).to_pylist(),
        logs=by_node(files.log),
        traces=by_node(files.trace),
        copies=[dict(row) for row in files.copies],
    )


def write(evidence: Evidence, source: StoredRun, folder: Path) -> None:
    """Write a run folder with this evidence.  Everything else is as in `source`."""
    target = StoredRun(folder)
    folder.mkdir(parents=True)
    for plain in (source.root / name for name in (TEST, JOURNAL)):
        if plain.exists():
            shutil.copy(plain, folder)
    pq.write_table(pa.Table.from_pylist(evidence.history, schema=HISTORY), target.history)
    seal(folder)
    for place, tables, schema in ((target.log, evidence.logs, LOG), (target.trace, evidence.traces, TRACE)):
        for node, rows in tables.items():
            place.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), place / f"{node}.parquet")
    if evidence.copies:
        pq.write_table(pa.Table.from_pylist(evidence.copies, schema=COPIES), target.copies_table)


# In the history.


def acknowledged_write_that_failed(evidence: Evidence, rng: Random) -> Row | None:
    """A write becomes a failed one, though it stands in a log or was read."""
    seen = {(row["key"], row["value"]) for row in evidence.final_log_rows()}
    seen |= {(row["key"], row["value"]) for row in _answers(evidence, "read")}
    seen &= _written_once(evidence)
    return _changed(rng, (r for r in _answers(evidence, "write") if (r["key"], r["value"]) in seen), type=Type.FAIL)


def answer_never_written(evidence: Evidence, rng: Random) -> Row | None:
    return _changed(rng, _answers(evidence, "read"), value=NEVER_WRITTEN)


def answer_from_the_past(evidence: Evidence, rng: Random) -> Row | None:
    """The last read of a key that returned a value now returns the first value that was read, which must be another."""
    by_key: dict[str, list[Row]] = {}
    once = _written_once(evidence)
    for row in _answers(evidence, "read"):
        if (row["key"], row["value"]) in once:
            by_key.setdefault(row["key"], []).append(row)
    stale = [(rows[-1], rows[0]["value"]) for rows in by_key.values() if rows[-1]["value"] != rows[0]["value"]]
    if not stale:
        return None
    last, old = rng.choice(stale)
    last["value"] = old
    return last


# In the logs.


def logged_value_never_written(evidence: Evidence, rng: Random) -> Row | None:
    ok = {(row["key"], row["value"]) for row in _answers(evidence, "write")} & _written_once(evidence)
    return _changed(rng, (r for r in evidence.final_log_rows() if (r["key"], r["value"]) in ok), value=NEVER_WRITTEN)


def committed_entry_of_other_content(evidence: Evidence, rng: Random) -> Row | None:
    row = _picked(rng, _committed(evidence))
    if row is not None:
        row["checksum"] ^= 1
    return row


def committed_entry_of_another_epoch(evidence: Evidence, rng: Random) -> Row | None:
    return _changed(rng, _committed(evidence), epoch=FAR_AHEAD)


# In the traces.


def mark_over_another_prefix(evidence: Evidence, rng: Random) -> Row | None:
    row = _picked(rng, [r for r in evidence.traced("high-watermark") if r["hash"] is not None])
    if row is not None:
        row["hash"] ^= 1
    return row


def another_state_at_a_shared_offset(evidence: Evidence, rng: Random) -> Row | None:
    rows = evidence.traced("applied")
    nodes_at: dict[int, set[str]] = {}
    for row in rows:
        nodes_at.setdefault(row["offset"], set()).add(row["node"])
    chosen = _picked(rng, [r for r in rows if len(nodes_at[r["offset"]]) > 1])
    if chosen is not None:
        chosen["hash"] ^= 1
    return chosen


def leader_of_an_epoch_another_led(evidence: Evidence, rng: Random) -> Row | None:
    rows = [row for row in evidence.traced("role") if row["role"] == "leader"]
    pairs = [(row, other["epoch"]) for row in rows for other in rows if other["node"] != row["node"]]
    if not pairs:
        return None
    leader, epoch = rng.choice(pairs)
    leader["epoch"] = epoch
    return leader


def leader_that_began_with_nothing(evidence: Evidence, rng: Random) -> Row | None:
    """A leader's log becomes empty at its election, though something was committed in an epoch before."""
    marks = [r["epoch"] for r in evidence.traced("high-watermark") if r["offset"]]
    later = [r for r in evidence.traced("role") if r["role"] == "leader" and marks and r["epoch"] > min(marks)]
    return _changed(rng, (r for r in later if r["offset"]), offset=0)


def vote_quorum_state_does_not_hold(evidence: Evidence, rng: Random) -> Row | None:
    last = max((row["copy"] for row in evidence.copies), default=-1)
    held = {(c["node"], c["quorum_epoch"]) for c in evidence.copies if c["copy"] == last and c["voted_for"]}
    return _changed(rng, (r for r in evidence.traced("vote") if (r["node"], r["epoch"]) in held), peer="n0")


MUTATIONS: dict[str, Mutate] = {
    mutate.__name__: mutate
    for mutate in (
        acknowledged_write_that_failed,
        answer_never_written,
        answer_from_the_past,
        logged_value_never_written,
        committed_entry_of_other_content,
        committed_entry_of_another_epoch,
        mark_over_another_prefix,
        another_state_at_a_shared_offset,
        leader_of_an_epoch_another_led,
        leader_that_began_with_nothing,
        vote_quorum_state_does_not_hold,
    )
}


def _answers(evidence: Evidence, f: str) -> list[Row]:
    return [r for r in evidence.history if r["process"] != NEMESIS and r["type"] == Type.OK and r["f"] == f]


def _written_once(evidence: Evidence) -> set[tuple[str, str]]:
    """The pairs of key and value that exactly one write was invoked with."""
    invoked = Counter(
        (r["key"], r["value"]) for r in evidence.history if r["f"] == "write" and r["type"] == Type.INVOKE
    )
    return {pair for pair, count in invoked.items() if count == 1}


def _committed(evidence: Evidence) -> list[Row]:
    marks = [row["offset"] for row in evidence.traced("high-watermark")]
    return [row for row in evidence.final_log_rows() if marks and row["offset"] < max(marks) - 1]


def _picked(rng: Random, rows: Iterable[Row]) -> Row | None:
    choice = list(rows)
    return rng.choice(choice) if choice else None


def _changed(rng: Random, rows: Iterable[Row], **changes: Any) -> Row | None:
    row = _picked(rng, rows)
    if row is not None:
        row.update(changes)
    return row
