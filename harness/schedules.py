"""Schedules given by a user: a list of cards, or the `faults.json` of an earlier run to be replayed exactly.

A list of cards is resolved anew (a card against the leader finds whoever leads then).  The faults of an earlier run hit
the very nodes and links they hit before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from nemesis.deck import BadSchedule, schedule_from_json
from nemesis.faults import Card, Fault
from nemesis.resolve import resolved_faults


def read_schedule(path: Path) -> tuple[list[Card], Mapping[int, Fault]]:
    """The cards, and what they resolve to where that is given.  Raises BadSchedule, naming the file."""
    try:
        rows = json.loads(path.read_text())
        if isinstance(rows, list) and rows and all(isinstance(row, dict) and "card" in row for row in rows):
            return schedule_from_json(json.dumps([row["card"] for row in rows])), resolved_faults(rows)
        return schedule_from_json(json.dumps(rows)), {}
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, BadSchedule) as problem:
        raise BadSchedule(f"{path}: {problem}") from problem
