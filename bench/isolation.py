"""Measure the time to decide isolation: from columns to a replayed order.

    python -m bench.isolation [--large] [--only TEXT] [--json FILE]

Histories of a serial database and of one with snapshots, judged at the level that
they keep, and at its session form where only sessions are known.  CPU seconds of this process, compiled before.  With
--large also a million transactions.  `docs/isolation.md` holds the table.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.instruments.figures import BenchFigure, Sheet, goal_here, script
from bench.simulated.transaction_histories import by_session, shuffled, simulate_sessions
from checkers.base.checker import Budget
from checkers.transactions.judge import judge_transcript
from checkers.transactions.read import Transcript

BUDGET = Budget(steps=200_000_000, size_bytes=16_000_000_000)
TIMED, SESSIONS, STAMPED, NOTHING = "real time", "sessions only", "time stamps", "no time, no sessions"


@dataclass(frozen=True, slots=True)
class Case:
    """A history, its properties, and the level. goal_s: on the machine for which goals were set."""

    count: int
    size: int
    keys: int
    snapshots: bool
    known: str
    level: str
    read_share: float = 0.5
    goal_s: float | None = None

    @property
    def name(self) -> str:
        database = "snapshots" if self.snapshots else "serial"
        share = "" if self.read_share == 0.5 else f", {self.read_share:.0%} reads"
        return f"{database}, {self.size} operations, {self.keys} keys{share}, {self.known}: {self.level}"

    def transcript(self) -> Transcript:
        history, begin, end = simulate_sessions(
            self.count, self.size, self.keys, read_share=self.read_share, snapshots=self.snapshots
        )
        if self.known == TIMED:
            return history
        if self.known == NOTHING:
            return shuffled(history)
        return by_session(history, (begin, end) if self.known == STAMPED else None)


def cases(large: bool) -> Iterator[Case]:
    for keys in (10_000, 1_000, 100):
        yield Case(10_000, 8, keys, False, TIMED, "strict-serializable", goal_s=0.05)
        yield Case(10_000, 8, keys, False, SESSIONS, "strong-session-serializable", goal_s=0.25)
        yield Case(10_000, 8, keys, False, SESSIONS, "serializable", goal_s=0.5)
    for keys in (10_000, 1_000):
        yield Case(10_000, 8, keys, True, TIMED, "strong-snapshot-isolation", goal_s=0.05)
        yield Case(10_000, 8, keys, True, STAMPED, "strong-session-snapshot-isolation", goal_s=0.05)
        yield Case(10_000, 8, keys, True, TIMED, "snapshot-isolation", goal_s=0.05)
        yield Case(10_000, 8, keys, True, TIMED, "snapshot-isolation", 0.1, goal_s=0.05)
    yield Case(10_000, 8, 10_000, True, SESSIONS, "strong-session-snapshot-isolation", goal_s=0.5)
    yield Case(10_000, 8, 10_000, True, SESSIONS, "snapshot-isolation", goal_s=0.5)
    yield Case(10_000, 8, 1_000, True, SESSIONS, "strong-session-snapshot-isolation")
    yield Case(10_000, 8, 10_000, True, SESSIONS, "strong-session-snapshot-isolation", 0.1)
    for keys in (10_000, 1_000):
        yield Case(100_000, 20, keys, False, TIMED, "strict-serializable", goal_s=1.0)
        yield Case(100_000, 20, keys, False, SESSIONS, "strong-session-serializable", goal_s=5.0)
        yield Case(100_000, 20, keys, True, TIMED, "strong-snapshot-isolation", goal_s=1.0)
    yield Case(3_000, 8, 3_000, False, NOTHING, "serializable")
    for level in ("read-committed", "read-atomic", "causal"):
        yield Case(100_000, 20, 10_000, False, SESSIONS, f"strong-session-{level}", goal_s=1.0)
    if large:
        yield Case(10_000, 8, 10_000, False, NOTHING, "serializable")
        yield Case(1_000_000, 8, 100_000, False, TIMED, "strict-serializable", goal_s=8.0)
        yield Case(1_000_000, 8, 100_000, False, SESSIONS, "strong-session-serializable", goal_s=40.0)
        yield Case(1_000_000, 8, 100_000, True, TIMED, "strong-snapshot-isolation", goal_s=8.0)
        for level in ("read-committed", "read-atomic", "causal"):
            yield Case(1_000_000, 20, 100_000, False, SESSIONS, f"strong-session-{level}", goal_s=10.0)


def main(given: argparse.Namespace, sheet: Sheet) -> None:
    for known in (TIMED, SESSIONS, STAMPED, NOTHING):
        for level in ("serializable", "snapshot-isolation", "causal", "read-atomic", "read-committed"):
            judge_transcript(Case(300, 4, 50, False, known, level).transcript(), consistency=level)
    for case in cases(given.large):
        if given.only not in case.name:
            continue
        transcript = case.transcript()
        gc.collect()
        began = time.process_time()
        verdict = judge_transcript(transcript, BUDGET, consistency=case.level)
        seconds = time.process_time() - began
        figures = verdict.details.get("search", {})
        shown = f"{case.count:>9,} x {case.name:<86} {verdict.validity:<8} {seconds:7.2f} s  {figures}"
        goal = goal_here(case.goal_s, "s")
        sheet.keep(BenchFigure(f"isolation, {case.name}", case.count, "transactions", seconds, "s", goal), shown)


if __name__ == "__main__":
    large = {"action": "store_true", "help": "also a million transactions"}
    script(__doc__, main, large=large, only={"default": "", "help": "cases with this text in their name"})
