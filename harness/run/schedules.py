"""Schedules a user gives: a schedule file, or the `schedule.json` or `faults.json` of an earlier run.

A card without a resolved fault is resolved anew: against the leader it finds the node that leads then.  A card with one
hits the very nodes and links that it names.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from nemesis.schedules import BadSchedule, Schedule, parse_schedule


def read_schedule(path: Path, nodes: Collection[str] = ()) -> Schedule:
    """The schedule in this file.  Raises BadSchedule in one sentence that names the file, the card and the field.

    nodes: every server and client node of the cluster; a fault that names another is refused.  () = do not check.
    """
    try:
        schedule = parse_schedule(path.read_text())
    except (OSError, UnicodeDecodeError) as problem:
        raise BadSchedule(f"{path}: it cannot be read: {problem}") from problem
    except BadSchedule as problem:
        raise BadSchedule(f"{path}: {problem}") from problem
    for place, card in enumerate(schedule.cards, start=1):
        fault = schedule.faults.get(card.number)
        named = {*fault.nodes, *(end for link in fault.cut for end in link)} if fault else set()
        if nodes and (strangers := sorted(named - set(nodes))):
            raise BadSchedule(f"{path}: card {place}: its field 'fault' names {strangers[0]!r}, which is no node here")
    return schedule
