"""Are two runs the same, row by row?  On virtual time one seed decides everything, so they must be.

What says when and where a run was made is left out: its id and its date.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from checkers.base.columns import read_stream
from checkers.base.results import NO_RESULTS, RESULTS, read_results
from checkers.record.journal import JOURNAL, Begun
from checkers.record.reading import RunRecord

_MISSING = "nothing"


def first_difference(first: Path, second: Path) -> str:
    """The first difference of two run folders, with its row and both contents; "" if there is none.

    Looked at, in this order: the history, the trace of every node, the journal, the schedule, every copied file,
    and the verdict of every checker where both were judged."""
    return next(_differences(first, second), "")


def _differences(first: Path, second: Path) -> Iterator[str]:
    yield from _of_rows("history.arrows", _history(first), _history(second))
    for name in _names(first, second, "trace/*.jsonl"):
        yield from _of_rows(name, _lines(first / name), _lines(second / name))
    yield from _of_rows(JOURNAL, _journal(first), _journal(second))
    yield from _of_rows("schedule.json", _lines(first / "schedule.json"), _lines(second / "schedule.json"))
    for name in _names(first, second, "nodes/*/copies/**/*"):
        if (first / name).is_file() and _bytes(first / name) != _bytes(second / name):
            yield f"{name}: the copies hold different bytes"
    yield from _of_rows(RESULTS, _verdicts(first), _verdicts(second))


def _of_rows(name: str, first: Sequence[object], second: Sequence[object]) -> Iterator[str]:
    for number, (one, other) in enumerate(zip_longest(first, second, fillvalue=_MISSING)):
        if one != other:
            yield f"{name}, row {number}: {one} in the one, {other} in the other"


def _history(root: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_stream(root / "history.arrows").to_pylist()
    return rows


def _journal(root: Path) -> Sequence[object]:
    return [entry for entry in RunRecord(root).journal if not isinstance(entry.happened, Begun)]


def _verdicts(root: Path) -> list[str]:
    results = read_results(root) or NO_RESULTS
    return [f"{name}: {found.verdict}" for name, found in sorted(results.checkers.items())]


def _names(first: Path, second: Path, pattern: str) -> list[str]:
    return sorted({str(path.relative_to(root)) for root in (first, second) for path in root.glob(pattern)})


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
