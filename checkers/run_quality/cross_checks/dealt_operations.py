"""Compares the operations of a history with those that the seed deals to each thread.

The seed decides what each thread invokes, and in which order.  Answers and time decide only how far the thread gets.
So in the main phase, each thread invokes the first of the operations that the seed deals to it.  The comparison shows
an operation that was left out, added, moved to another process or altered.  It also shows another seed, workload or
concurrency.

A process belongs to the thread of its number modulo the concurrency (`harness/run/interpreter.py`).

Three things are not compared: runs of another version of the generators, workloads whose operations depend on answers
or on time, and rows of the main phase after the first ROWS_COMPARED.  A thread may stop after any operation, but it
must have invoked at least one (see DUE_LEAST).

Cost: 7 s of a processor for a million rows, so the number of rows is bounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from checkers.base.demands import Dealt
from checkers.base.history import NEMESIS, Type
from checkers.base.stored_run import StoredRun
from checkers.record.journal import MAIN
from checkers.sealing.history_rows import chunks_of_groups

ROWS_COMPARED = 400_000
DUE_LEAST = 20
"""If so many operations are due to a thread on average, it must have invoked at least one."""

_COLUMNS = ("process", "type", "f", "key", "value", "value2", "payload")


def differences(run: StoredRun) -> list[str]:
    """One sentence for each thread that invoked something else than the seed deals to it, or nothing at all.

    The sentence names the first such operation.
    """
    demands = run.demands
    if demands.dealt is None or not demands.concurrency:
        return []
    if (stated := run.header.generators if run.header is not None else None) != demands.generators:
        words = (
            f"version {stated!r:.20} of the generators dealt the operations, and this is version {demands.generators}: "
            "what clients had to invoke is not known"
        )
        return [words]
    main = run.outcome.phase(MAIN)
    if main is None:
        return []
    begin, end = main.first_row, main.end_row if main.end_row >= 0 else 1 << 62
    dealt: dict[int, Iterator[Dealt]] = {}
    given: dict[int, int] = defaultdict(int)
    wrong: dict[int, str] = {}
    for process, invoked in _invoked(run, begin, min(end, begin + ROWS_COMPARED)):
        thread = process % demands.concurrency
        if thread in wrong:
            continue
        if thread not in dealt:
            dealt[thread] = demands.dealt(thread)
        expected = next(dealt[thread], None)
        if invoked != expected:
            number = given[thread] + 1
            wrong[thread] = (
                f"operation {number} of thread {thread} is {_words(invoked)} of process {process}, and the seed deals "
                f"{_words(expected) if expected else 'none'}"
            )
        given[thread] += 1
    whole = run.outcome.stopped is None and not run.outcome.interrupted
    due = demands.rate_hz * demands.time_limit_s / demands.concurrency
    idle = sorted(set(range(demands.concurrency)) - given.keys()) if whole and due >= DUE_LEAST else []
    return [wrong[thread] for thread in sorted(wrong)] + [f"thread {thread} invoked nothing" for thread in idle]


def _invoked(run: StoredRun, begin: int, end: int) -> Iterator[tuple[int, Dealt]]:
    """Yields (process, operation) for every invoke of a client in the rows from `begin` up to `end`."""
    first = 0
    for table in chunks_of_groups(run.history, _COLUMNS):
        if first >= end:
            return
        part = table.slice(max(0, begin - first), end - max(first, begin))
        first += len(table)
        if first <= begin:
            continue
        for row in part.to_pylist():
            if row["process"] != NEMESIS and row["type"] == Type.INVOKE:
                yield row["process"], (row["f"], row["key"], row["value"], row["value2"], row["payload"])


def _words(operation: Dealt) -> str:
    f, key, *values = operation
    return " ".join(str(word) for word in (f, key, *values) if word is not None)
