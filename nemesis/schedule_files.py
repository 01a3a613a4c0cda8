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
    line, line_nth, line_of
                    from `at_s` on the card waits for the n-th line that a server prints and that has this form: a name
                    of the system's `moments`, a regular expression, or "any"; `line_of`: "leader" or "follower", ""
                    for any server, which then takes the place of the leader
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
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, get_type_hints

from checkers.base.json_file import sequence
from checkers.record.faults import Card, Fault, FaultRecord
from nemesis.catalog import kind_named
from nemesis.coverage import HEAL_MOMENTS, LINE_PRINTED_BY, MOMENTS

VERSION = 1


class BadSchedule(ValueError):
    """A schedule file cannot be used; the message names the card and the field and says what is wrong."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """cards: in the order of their beginning.  faults: card number -> the resolved fault of a card that has one."""

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
    for each in fields(Card):
        if each.default is MISSING and each.name not in row:
            raise BadSchedule(f"card {place}: its field {each.name!r} is missing")
    _check(place, row, _CARD, "it has")
    stated = {name: float(value) if _CARD[name] is float else value for name, value in row.items() if name != "fault"}
    card = Card(**stated)  # type: ignore[arg-type]
    if not card.at_s < card.heal_s:
        raise BadSchedule(f"card {place}: its field 'heal_s' must be greater than 'at_s', not {card.heal_s:g}")
    checks: Mapping[str, Callable[[], object]] = {
        "kind": lambda: kind_named(card.kind),
        "name": lambda: kind_named(card.kind).check(card.name),
    }
    for what, check in checks.items():
        try:
            check()
        except ValueError as problem:
            raise BadSchedule(f"card {place}: its field {what!r}: {problem}") from problem
    for number, moment, moments in (("after", "moment", MOMENTS), ("until_of", "until", HEAL_MOMENTS)):
        awaited = getattr(card, moment)
        if (awaited not in moments) if getattr(card, number) else bool(awaited):
            known = " or ".join(map(repr, moments))
            words = f"its fields {number!r} and {moment!r} go together: a number, and {known}"
            raise BadSchedule(f"card {place}: {words}")
    if why := _wrong_line(card):
        raise BadSchedule(f"card {place}: {why}")
    return card


def _wrong_line(card: Card) -> str:
    if not card.line:
        return "its fields 'line_nth' and 'line_of' need a 'line'" if card.line_nth or card.line_of else ""
    if card.like or card.after:
        return "a card with a 'line' has neither 'like' nor 'after'"
    if card.line_of and card.line_of not in LINE_PRINTED_BY:
        return f"its field 'line_of' must be {' or '.join(map(repr, LINE_PRINTED_BY))}, not {card.line_of!r:.40}"
    try:
        re.compile(card.line)
    except re.error as problem:
        return f"its field 'line' is no regular expression: {problem}"
    return ""


def _fault(place: int, kind: str, row: Mapping[str, Any]) -> Fault:
    _check(place, row, _FAULT, "its field 'fault' has", "fault.")
    cut = [tuple(map(str, sequence(link))) for link in row.get("cut", [])]
    if any(len(link) != 2 for link in cut):
        raise BadSchedule(f"card {place}: its field 'fault.cut' must be a list of pairs of nodes")
    nodes, settings = tuple(map(str, row.get("nodes", []))), row.get("settings", {})
    if not cut and not nodes:
        raise BadSchedule(f"card {place}: its field 'fault' must name nodes or cut links")
    try:
        kind_named(kind).refuse(settings)
    except ValueError as problem:
        raise BadSchedule(f"card {place}: its field 'fault.settings': {problem}") from problem
    links = frozenset((link[0], link[1]) for link in cut)
    return Fault(kind, row.get("words", ""), nodes, links, settings, row.get("leader"))


_CARD: Mapping[str, Any] = {**get_type_hints(Card), "fault": dict}
_FAULT: Mapping[str, Any] = {"words": str, "nodes": list, "cut": list, "settings": dict, "leader": str}
"""Name of a field -> what it must be."""
_FORMS: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    int: (lambda value: type(value) is int and value >= 0, "a whole number from 0"),
    float: (lambda value: type(value) in (int, float) and 0 <= value < math.inf, "a number from 0"),
    str: (lambda value: isinstance(value, str), "a text"),
    list: (lambda value: isinstance(value, list), "a list"),
    dict: (lambda value: isinstance(value, dict), "an object"),
}
_MAY_BE_NULL = ("fault", "leader")


def _check(place: int, row: Mapping[str, Any], forms: Mapping[str, Any], has: str, within: str = "") -> None:
    if unknown := sorted(set(row) - set(forms)):
        raise BadSchedule(f"card {place}: {has} an unknown field {unknown[0]!r}; there are {', '.join(forms)}")
    for name, value in row.items():
        fits, words = _FORMS[forms[name]]
        if not fits(value) and not (value is None and name in _MAY_BE_NULL):
            raise BadSchedule(f"card {place}: its field {within + name!r} must be {words}, not {value!r:.40}")
