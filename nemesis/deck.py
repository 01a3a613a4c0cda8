"""Schedules, dealt like a deck of cards: by seed, without replacement, so that luck does not decide what a run tests.

Every nemesis is an *opening* (the cards without which a run proves little, always in the same order) and the *rest*,
which is shuffled, dealt to the end and shuffled again.  For partitions the opening is: the leader with c1 against the
others, the leader alone with the others split in two, and the first once more, because a stale read shows itself in
only about three of four isolations.

Timing.  A card against the leader holds for 10 s: fetch timeouts are 2 s, and a split vote costs 1-2 s more.  Others
hold 5-10 s.  Between a heal and the next card lie 4-6 s.  Near the time limit gap and hold shrink to their least
before a card is given up, which is why 60 s always hold at least four cards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from random import Random

from nemesis.faults import Card
from nemesis.grudges import GRUDGES

LEAD_IN_S = 2.0
"""Quiet before the first card, so that there is something to compare with."""
TAIL_S = 2.0
"""The last heal comes at least this long before the time limit: its proof belongs to the main phase."""
GAP_S = (4.0, 6.0)
HOLD_S = (5.0, 10.0)
HOLD_LEADER_S = 10.0


@dataclass(frozen=True, slots=True)
class Nemesis:
    """kind: of every card it deals.  opening: names dealt first, in this order.  rest: names shuffled after that."""

    summary: str
    kind: str
    opening: tuple[str, ...]
    rest: tuple[str, ...]


PROCESS_TARGETS: Mapping[str, str] = {
    "leader": "who leads now",
    "one": "one server drawn by the seed",
    "minority": "the largest minority, drawn by the seed",
    "majority": "the smallest majority, drawn by the seed",
    "all": "every server",
}
"""Whom a pause or a kill may be aimed at; client nodes never."""

NEMESES: Mapping[str, Nemesis] = {
    "none": Nemesis("nothing is broken", "", (), ()),
    "partition": Nemesis(
        "links between nodes are cut, both ways and one way",
        "partition",
        ("leader-with-c1", "leader-alone-and-split", "leader-with-c1"),
        tuple(name for name in GRUDGES if name not in ("leader-with-c1", "leader-alone-and-split")),
    ),
    "pause": Nemesis(
        "server processes stop (SIGSTOP) and go on",
        "pause",
        ("leader", "minority", "leader"),
        ("one", "minority", "majority"),
    ),
    "kill": Nemesis(
        "server processes die (kill -9) and are started again",
        "kill",
        ("leader", "minority", "leader"),
        ("one", "minority", "majority", "all"),
    ),
}


class BadSchedule(ValueError):
    """A schedule file cannot be used; the message says which card and what is wrong with it."""


def deal(nemesis_name: str, servers: Sequence[str], time_limit_s: float, rng: Random) -> list[Card]:
    """A schedule for a main phase of `time_limit_s`; equal arguments (and state of `rng`) give equal schedules.

    Cards do not overlap, and the last is healed `TAIL_S` before the limit.  A limit under 9 s holds no card: the
    schedule is empty and the run will be called vacuous.  Raises ValueError for a name that is not in NEMESES.
    """
    nemesis = NEMESES.get(nemesis_name)
    if nemesis is None:
        raise ValueError(f"there is no nemesis {nemesis_name!r}; there are {', '.join(NEMESES)}")
    cards: list[Card] = []
    earliest_s, latest_s = LEAD_IN_S, LEAD_IN_S
    for name in _names(nemesis, len(servers), rng):
        against_leader = _against_leader(nemesis.kind, name)
        gap = latest_s - earliest_s
        at_s = earliest_s + rng.uniform(0.0, gap) if gap else earliest_s
        hold_s = HOLD_LEADER_S if against_leader else rng.uniform(*HOLD_S)
        left_s = time_limit_s - TAIL_S
        if at_s + hold_s > left_s:
            hold_least_s = HOLD_LEADER_S if against_leader and cards else HOLD_S[0]
            at_s = max(earliest_s, left_s - hold_s)
            hold_s = left_s - at_s
            if hold_s < hold_least_s - 1e-9:
                break
        cards.append(Card(len(cards) + 1, nemesis.kind, name, round(at_s, 3), round(at_s + hold_s, 3)))
        earliest_s, latest_s = at_s + hold_s + GAP_S[0], at_s + hold_s + GAP_S[1]
    return cards


def schedule_to_json(cards: Sequence[Card]) -> str:
    """The schedule as a JSON text that `schedule_from_json` reads back to equal cards."""
    return json.dumps([asdict(card) for card in cards], indent=1)


def schedule_from_json(text: str) -> list[Card]:
    """Cards of a schedule file.  Raises BadSchedule in one sentence that names the card."""
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as problem:
        raise BadSchedule(f"the schedule is not JSON: {problem}") from problem
    if not isinstance(rows, list):
        raise BadSchedule("a schedule is a JSON list of cards")
    cards = [_card(position, row) for position, row in enumerate(rows, start=1)]
    for before, after in pairwise(cards):
        if after.at_s < before.heal_s:
            raise BadSchedule(f"card {after.number} begins at {after.at_s} s, before card {before.number} is healed")
    return cards


def check_card(kind: str, name: str) -> None:
    """Raise ValueError in one sentence unless somebody knows how to carry this card out."""
    known: Mapping[str, object] = {"partition": GRUDGES, "pause": PROCESS_TARGETS, "kill": PROCESS_TARGETS}.get(
        kind, {}
    )
    if name not in known:
        if not known:
            raise ValueError(f"there is no kind of fault {kind!r}; there are partition, pause and kill")
        raise ValueError(f"there is no {kind} {name!r}; there are {', '.join(known)}")


def _names(nemesis: Nemesis, server_count: int, rng: Random) -> Iterator[str]:
    """The endless deal; cards that mean nothing for so few servers are taken out first."""
    fits = [n for n in nemesis.rest if _servers_min(nemesis.kind, n) <= server_count]
    opening = [n for n in nemesis.opening if _servers_min(nemesis.kind, n) <= server_count]
    yield from opening
    while fits or opening:
        hand = list(fits or opening)
        rng.shuffle(hand)
        yield from hand


def _servers_min(kind: str, name: str) -> int:
    if kind == "partition":
        return GRUDGES[name].servers_min
    return {"minority": 3, "majority": 2}.get(name, 1)


def _against_leader(kind: str, name: str) -> bool:
    return GRUDGES[name].against_leader if kind == "partition" else name == "leader"


def _card(position: int, row: object) -> Card:
    wanted = {field.name for field in fields(Card)}
    if not isinstance(row, dict) or set(row) != wanted:
        raise BadSchedule(f"card {position} of the schedule must have exactly the fields {', '.join(sorted(wanted))}")
    number, kind, name, at_s, heal_s = (row[f] for f in ("number", "kind", "name", "at_s", "heal_s"))
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (at_s, heal_s))
    if not numeric or not isinstance(number, int) or not isinstance(kind, str) or not isinstance(name, str):
        raise BadSchedule(f"card {position} of the schedule has a field of the wrong type")
    if not 0 <= at_s < heal_s:
        raise BadSchedule(f"card {position} must begin at 0 s or later and be healed after that")
    try:
        check_card(kind, name)
    except ValueError as problem:
        raise BadSchedule(f"card {position}: {problem}") from problem
    return Card(number, kind, name, float(at_s), float(heal_s))
