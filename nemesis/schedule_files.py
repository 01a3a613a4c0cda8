"""Schedule files: what to inject, when, and for how long, as JSON.

    {"schedule": 1, "cards": [{"number": 1, "kind": "partition", "name": "halves", "at_s": 2.0, "heal_s": 7.0}]}

A card may also have

    like            number of an earlier card whose fault is repeated; if that is of another kind or target, the node
                    that it hit takes the place of the leader, and both are parts of one fault
    after, moment   from `at_s` on the card waits for this moment of what the card `after` has set off: "election" or
                    "new leader"
    until, until_of, until_s
                    it is healed so many seconds after this moment of the card `until_of`, at `heal_s` at the latest;
                    a heal can also wait for "acknowledged" (a write, while a new leader leads) and "healed"
    fault           the resolved fault: `words`, `nodes`, `cut` and `settings`, as the journal records them, and
                    `leader`: the node that led then.  The leader of now takes its place (`nemesis.resolve`); a fault
                    without `leader` is carried out as it stands

A card without a fault is resolved when it is injected.

Every run writes `schedule.json` with the times and faults as they were carried out, so
`run --schedule results/.../schedule.json` replays them; with `--as-executed` on the nodes of the same names.

Read, too: a bare list of cards.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from checkers.base.json_file import sequence
from checkers.record.faults import Card, Fault, FaultRecord
from nemesis.catalog import kind_named
from nemesis.coverage import HEAL_MOMENTS, MOMENTS

VERSION = 1

_CARD_FIELDS = ("number", "kind", "name", "at_s", "heal_s")
_FAULT_FIELDS = ("words", "nodes", "cut", "settings", "leader")
_MORE_FIELDS = ("like", "after", "moment", "until", "until_of", "until_s", "fault")


class BadSchedule(ValueError):
    """A schedule file cannot be used; the message names the card and the field and says what is wrong."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """cards: in the order of their beginning.  faults: by card number, those that are carried out as they stand."""

    cards: tuple[Card, ...]
    faults: Mapping[int, Fault]


def parse_schedule(text: str) -> Schedule:
    """The schedule in a JSON text.  Raises BadSchedule in one sentence."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadSchedule(f"the schedule is not JSON: {problem}") from problem
    cards: list[Card] = []
    faults: dict[int, Fault] = {}
    for place, row in enumerate(_rows(data), start=1):
        card = _card(place, row)
        if any(card.number == other.number for other in cards):
            raise BadSchedule(f"card {place}: its number {card.number} is that of another card")
        cards.append(card)
        if row.get("fault") is not None:
            faults[card.number] = _fault(place, card.kind, row["fault"])
    numbers = {card.number for card in cards}
    for place, card in enumerate(cards, start=1):
        for name, number in (("like", card.like), ("after", card.after), ("until_of", card.until_of)):
            if number and number not in numbers:
                raise BadSchedule(f"card {place}: its field {name!r} names card {number}, which is not in the schedule")
    return Schedule(tuple(sorted(cards, key=lambda card: card.at_s)), faults)


def schedule_json(cards: Sequence[Card], faults: Mapping[int, Fault] | None = None) -> str:
    """The text of a schedule file that `parse_schedule` reads back to an equal schedule."""
    known = faults or {}
    rows = [asdict(card) | ({"fault": known[card.number].to_json()} if card.number in known else {}) for card in cards]
    return json.dumps({"schedule": VERSION, "cards": rows}, indent=1)


def as_executed(records: Sequence[FaultRecord], main_began_ns: int) -> str:
    """The schedule file of a run: what was carried out, and at which seconds.  Skipped cards hit nothing and are left
    out."""
    cards: list[Card] = []
    faults: dict[int, Fault] = {}
    for record in sorted(records, key=lambda r: r.injected_ns):
        if record.injected_ns < 0:
            continue
        at_s = (record.injected_ns - main_began_ns) / 1e9 - max(record.apply_ms, 0.0) / 1e3
        heal_s = (record.heal_ordered_ns - main_began_ns) / 1e9 if record.heal_ordered_ns >= 0 else record.card.heal_s
        card = record.card
        at_s = round(max(at_s, 0.0), 3)
        again = card.like if card.like in faults else 0
        cards.append(Card(card.number, card.kind, card.name, at_s, round(max(heal_s, at_s + 0.001), 3), again))
        faults[card.number] = record.fault
    return schedule_json(cards, faults)


def _rows(data: object) -> list[Mapping[str, Any]]:
    if isinstance(data, dict) and "cards" in data:
        if data.get("schedule") != VERSION:
            raise BadSchedule(f"the field 'schedule' must be {VERSION}, the version of the format")
        if unknown := sorted(set(data) - {"schedule", "cards"}):
            raise BadSchedule(f"the schedule has an unknown field {unknown[0]!r}")
        data = data["cards"]
    if not isinstance(data, list):
        raise BadSchedule("a schedule is a JSON object with the fields 'schedule' and 'cards', or a list of cards")
    for place, row in enumerate(data, start=1):
        if not isinstance(row, dict):
            raise BadSchedule(f"card {place} is not a JSON object")
    return data


def _card(place: int, row: Mapping[str, Any]) -> Card:
    for name in _CARD_FIELDS:
        if name not in row:
            raise BadSchedule(f"card {place}: its field {name!r} is missing")
    if unknown := sorted(set(row) - {*_CARD_FIELDS, *_MORE_FIELDS}):
        raise BadSchedule(f"card {place}: it has an unknown field {unknown[0]!r}; a card has {', '.join(_known())}")
    number, like = _whole(place, "number", row["number"]), _whole(place, "like", row.get("like", 0))
    kind, name = _text(place, "kind", row["kind"]), _text(place, "name", row["name"])
    at_s, heal_s = _seconds(place, "at_s", row["at_s"]), _seconds(place, "heal_s", row["heal_s"])
    if not at_s < heal_s:
        raise BadSchedule(f"card {place}: its field 'heal_s' must be greater than 'at_s', not {heal_s:g}")
    for what, check in (("kind", lambda: kind_named(kind)), ("name", lambda: kind_named(kind).check(name))):
        try:
            check()
        except ValueError as problem:
            raise BadSchedule(f"card {place}: its field {what!r}: {problem}") from problem
    after, moment = _whole(place, "after", row.get("after", 0)), _text(place, "moment", row.get("moment", ""))
    if (moment not in MOMENTS) if after else bool(moment):
        known = " or ".join(map(repr, MOMENTS))
        raise BadSchedule(f"card {place}: its fields 'after' and 'moment' go together: a number, and {known}")
    until, until_of = _text(place, "until", row.get("until", "")), _whole(place, "until_of", row.get("until_of", 0))
    if (until not in HEAL_MOMENTS) if until_of else bool(until):
        known = " or ".join(map(repr, HEAL_MOMENTS))
        raise BadSchedule(f"card {place}: its fields 'until' and 'until_of' go together: {known}, and a number")
    until_s = _seconds(place, "until_s", row.get("until_s", 0.0))
    return Card(number, kind, name, at_s, heal_s, like, after, moment, until, until_of, until_s)


def _known() -> tuple[str, ...]:
    return (*_CARD_FIELDS, *_MORE_FIELDS)


def _fault(place: int, kind: str, row: object) -> Fault:
    if not isinstance(row, dict):
        raise BadSchedule(f"card {place}: its field 'fault' must be an object")
    if unknown := sorted(set(row) - set(_FAULT_FIELDS)):
        raise BadSchedule(f"card {place}: its field 'fault' has an unknown field {unknown[0]!r}")
    cut = [tuple(map(str, sequence(link))) for link in _list(place, "fault.cut", row.get("cut", []))]
    if any(len(link) != 2 for link in cut):
        raise BadSchedule(f"card {place}: its field 'fault.cut' must be a list of pairs of nodes")
    nodes = tuple(str(node) for node in _list(place, "fault.nodes", row.get("nodes", [])))
    words = _text(place, "fault.words", row.get("words", ""))
    settings = row.get("settings", {})
    if not isinstance(settings, dict):
        raise BadSchedule(f"card {place}: its field 'fault.settings' must be an object, not {settings!r:.40}")
    leader = row.get("leader")
    if leader is not None and not isinstance(leader, str):
        raise BadSchedule(f"card {place}: its field 'fault.leader' must be the name of a node, not {leader!r:.40}")
    if not cut and not nodes:
        raise BadSchedule(f"card {place}: its field 'fault' must name nodes or cut links")
    try:
        kind_named(kind).refuse(settings)
    except ValueError as problem:
        raise BadSchedule(f"card {place}: its field 'fault.settings': {problem}") from problem
    return Fault(kind, words, nodes, frozenset((link[0], link[1]) for link in cut), settings, leader)


def _list(place: int, name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise BadSchedule(f"card {place}: its field {name!r} must be a list, not {value!r:.40}")
    return value


def _text(place: int, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadSchedule(f"card {place}: its field {name!r} must be a text, not {value!r:.40}")
    return value


def _whole(place: int, name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadSchedule(f"card {place}: its field {name!r} must be a whole number from 0, not {value!r:.40}")
    return value


def _number(place: int, name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise BadSchedule(f"card {place}: its field {name!r} must be a number, not {value!r:.40}")
    return float(value)


def _seconds(place: int, name: str, value: object) -> float:
    seconds = _number(place, name, value)
    if seconds < 0:
        raise BadSchedule(f"card {place}: its field {name!r} must be 0 or more, not {seconds:g}")
    return seconds
