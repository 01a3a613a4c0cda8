"""Measure how long a key-value store of strings takes: histories in the shape of Porcupine's largest, valid and wrong.

    python -m bench.strings [--histories 10] [--json FILE]

From events to the verdict on all keys, CPU time of one core; no value is remembered from the run before.  Of each
history the least of five runs counts; stated are the median and the largest of all histories.  The wrong ones lack one
value in one late get; their figure holds the witness.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from bench.instruments.figures import Sheet, load
from bench.simulated.string_histories import string_history
from checkers.base.history import Event, Type
from checkers.base.values import forget_decoded
from checkers.base.verdict import Validity
from checkers.by_hand.judge_events import judge_events

EVENTS = 3424
GOAL_S = 0.02
RUNS = 5


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--histories", type=int, default=10)
    options.add_argument("--json", type=Path, help="file to add the figures to, as JSON lines")
    given = options.parse_args()
    sheet = Sheet(given.json)
    histories = [string_history(Random(seed), EVENTS // 2) for seed in range(given.histories)]
    steps = [_steps(events) for events in histories]
    valid = _seconds(histories, Validity.VALID)
    wrong = _seconds([_without_a_value(events) for events in histories], Validity.INVALID)
    sheet.add("kv, 50 clients, ten keys, median", EVENTS, "events", statistics.median(valid), "s", GOAL_S)
    sheet.add("kv, 50 clients, ten keys, largest", EVENTS, "events", max(valid), "s", GOAL_S)
    sheet.add("kv, 50 clients, ten keys, most steps", EVENTS, "events", max(steps), "steps")
    sheet.add("kv, one value is missing, with its witness, median", EVENTS, "events", statistics.median(wrong), "s")
    print(f"load {load():.1f}")


def _steps(events: Sequence[Event]) -> int:
    return int(judge_events(events, "kv").looked_at["steps"])


def _seconds(histories: Sequence[Sequence[Event]], expected: Validity) -> list[float]:
    """Return the seconds of each history.  All are measured once before any is measured again: so no burst of load
    meets all its runs."""
    least = [float("inf")] * len(histories)
    for _ in range(RUNS):
        for at, events in enumerate(histories):
            forget_decoded()
            began = time.process_time()
            verdict = judge_events(events, "kv")
            least[at] = min(least[at], time.process_time() - began)
            assert verdict.validity is expected, verdict.reason
    return least


def _without_a_value(events: Sequence[Event]) -> list[Event]:
    """The history, whose last get that shows three values lacks the second of them."""
    changed = list(events)
    for at in range(len(events) - 1, -1, -1):
        shown = json.loads(events[at].payload or '""')
        if events[at].f == "get" and events[at].type is Type.OK and shown.count("y") > 2:
            first, _, rest = shown.partition("y")
            changed[at] = replace(events[at], payload=json.dumps(first + "y" + rest.partition("y")[2]))
            return changed
    raise AssertionError("no get shows three values")


if __name__ == "__main__":
    main()
