"""Histories that could not show a violation, because nothing was written or nothing was read, are unknown."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from checkers.base.checker import Budget, Part
from checkers.base.columns import events_to_table
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity, Verdict
from checkers.transactions import checker
from checkers.transactions.judge import judge_transactions
from checkers.transactions.read import Model
from checkers.transactions.tape import Tape, at_once

NO_WRITE = "no transaction with a write was acknowledged"
NO_READ = "no read was answered"

UNSHOWN: dict[str, tuple[Model, tuple[str, ...], str]] = {
    "an empty transaction": ("list-append", (" ",), NO_WRITE),
    "reads alone": ("list-append", ("rx", "ry"), NO_WRITE),
    "every append refused": ("list-append", ("!ax1", "rx", "!ay1 rx"), NO_WRITE),
    "every append unknown": ("list-append", ("?ax1", "rx"), NO_WRITE),
    "every write refused": ("rw-register", ("!wx1", "=x"), NO_WRITE),
    "every write unknown": ("rw-register", ("?wx1", "=x"), NO_WRITE),
    "appends alone": ("list-append", ("ax1", "ax2 ay1"), f"{NO_READ}, so nothing shows what became of 3 acknowledged"),
    "one write": ("rw-register", ("wx1",), f"{NO_READ}, so nothing shows what became of 1 acknowledged write"),
    "every read refused": ("list-append", ("ax1", "!rx", "?rx"), NO_READ),
}

SHOWN: dict[str, tuple[Model, tuple[str, ...], Validity]] = {
    "an unknown append that was read": ("list-append", ("?ax1", "rx1"), Validity.VALID),
    "an unknown write that was read": ("rw-register", ("?wx1", "=x1"), Validity.VALID),
    "a write, and a read of its key": ("rw-register", ("wx1", "=x"), Validity.VALID),
    "an append, and a read of another key": ("list-append", ("ax1", "ry"), Validity.VALID),
    "a failed append that was read": ("list-append", ("!ax1", "rx1"), Validity.INVALID),
    "an element that no one wrote": ("rw-register", ("=x1",), Validity.INVALID),
}


def judged(events: list[Event], model: Model, folder: Path) -> Verdict:
    path = folder / "history.parquet"
    pq.write_table(events_to_table(events), path)
    part = Part((str(path),), {"model": model, "consistency": "strict-serializable", "group": 0})
    return checker.judge(part, Budget())


@pytest.mark.parametrize("case", UNSHOWN)
def test_what_could_not_show_a_violation_is_unknown(case: str, tmp_path: Path) -> None:
    model, texts, words = UNSHOWN[case]
    verdict = judged(at_once(*texts), model, tmp_path)
    assert verdict.validity is Validity.UNKNOWN
    assert verdict.reason.startswith(words), verdict.reason


@pytest.mark.parametrize("case", SHOWN)
def test_what_could_show_a_violation_is_judged(case: str, tmp_path: Path) -> None:
    model, texts, validity = SHOWN[case]
    verdict = judged(at_once(*texts), model, tmp_path)
    assert verdict.validity is validity, verdict.reason


def test_a_violation_without_an_acknowledged_write_stays_one() -> None:
    tape = Tape()
    tape.run(0, "ax1", Type.INFO)
    tape.run(1, "rx1")
    tape.run(2, "rx")
    verdict = judge_transactions(tape.events, "list-append")
    assert verdict.validity is Validity.INVALID
