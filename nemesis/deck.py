"""Schedules of faults: a dealer that creates them, and the JSON file that stores them.

*Dealing.*  Schedules are dealt like a deck of cards, by seed and without replacement, so that a run's coverage does not
depend on luck.

Every kind of fault has a deck: an *opening* (the cards without which a run proves little, always in the same order) and
the *rest*.  An entry is a target, or a *figure*: several cards that belong together.  The rest begins with a storm: a
figure that hits one leader after another.  Each next card is the one that aims at the most cells that the run has not
reached (`nemesis.coverage`).  The seed breaks ties.  No card is dealt twice before every card was dealt once.

Timing.  The opening gives the hold times of its cards.  The first card holds longest, because a stale read can only
occur after a new leader was elected and has answered.  The hold time of any other card comes from its target, mostly
3-5 s. GAP_S lies between a heal and the next card.  One in four gaps is HOT_GAP_S, so that the next fault hits a node
that is still truncating its log.  Near the time limit, gap and hold shrink to their minimum before a card is dropped.

Several kinds.  With several kinds, their openings are dealt in turn, and two cards of a turn overlap.  The second card
begins within the first fraction SOON of the first card's hold, so that, for example, a leader with a slow clock is also
cut off.  After that, a card whose kind differs from the kind of the previous card overlaps with the previous card about
half of the time.  Three cards never overlap, because too few operations would succeed to distinguish a correct system
from an incorrect one.

*Files.*  A schedule file is JSON: the faults to inject, with times and durations.

    {"schedule": 1, "cards": [{"number": 1, "kind": "partition", "name": "halves", "at_s": 2.0, "heal_s": 7.0}]}

A card may also have these fields:

    like            number of an earlier card whose fault is repeated; if the earlier card has another kind or target,
                    the node that it hit takes the place of the leader, and both cards are parts of one fault
    after, moment   from `at_s` on the card waits for an event that the card `after` causes: "election" or "new leader"
    until, until_of, until_s
                    the card is healed `until_s` seconds after this event of the card `until_of`, at `heal_s` at the
                    latest; a heal can also wait for "acknowledged" (a write, while a new leader leads) and "healed"
    line, line_nth, line_of
                    from `at_s` on the card waits for the n-th line of this form that a server prints: a name of the
                    system's `moments`, a regular expression, or "any"; `line_of` selects the server: "leader",
                    "follower", or "" for any server, and that server then takes the place of the leader
    fault           the resolved fault: `words`, `nodes`, `cut` and `settings`, as the journal records them, and
                    `leader`: the node that led when the fault was recorded.  In a replay the current leader takes the
                    place of that node (`nemesis.resolve`).  A fault without `leader` is injected as recorded.

A card without a fault is resolved when it is injected.

Every run writes `schedule.json` with the actual times and faults, so `run --schedule results/.../schedule.json` replays
the faults; with `--as-executed` it hits the nodes of the same names.

A bare list of cards is also accepted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from random import Random
from typing import Any, TypeVar

import msgspec

from checkers.record.faults import Card, Fault, FaultRecord
from nemesis import coverage
from nemesis.cluster import LINKS, PACKETS
from nemesis.kind import FigureStep, Kind, Target
from nemesis.kinds import kind_named, kinds_of

LEAD_IN_S = 2.0
"""Seconds before the first card, without faults, as a baseline."""
TAIL_S = 2.0
"""Seconds between the last heal and the time limit.  The measurements that prove the heal belong to the main phase."""
GAP_S = (2.5, 4.0)
HOT_GAP_S = (0.5, 1.5)
HOLD_S_MIN = 3.0
"""Minimum hold in seconds of a single card that is shortened to end before the time limit."""
FIRST_HOLD_S_MIN = 5.0

SOON = 0.4

_HOT = 0.25
_OVERLAP = 0.5


@dataclass(frozen=True, slots=True)
class _Play:
    """Cards that are scheduled together: one card, or the cards of a figure.  Only the hold of a single card may
    shrink.
    """

    kind: Kind
    steps: tuple[FigureStep, ...]
    opening: bool = False

    @property
    def is_storm(self) -> bool:
        return len(self.steps) > 1 and all(_target(self.kind, step).against_leader for step in self.steps)

    @property
    def aims(self) -> frozenset[coverage.Cell]:
        return frozenset(cell for step in self.steps for cell in _aims(self.kind, step))

    @property
    def length_s(self) -> float:
        return max(step.after_s + step.hold_s for step in self.steps)


@dataclass(frozen=True, slots=True)
class _Table:
    """Properties of the cluster that a deck is dealt for.

    servers: number of servers
    leaders: True if the system reports its leader
    fsyncs: True if the servers fsync
    """

    servers: int
    leaders: bool
    fsyncs: bool = True

    def fits(self, kind: Kind, name: str) -> bool:
        """Return True if this target or figure is possible on this cluster."""
        figure = kind.deck.figures.get(name)
        steps = figure.steps(Random(0), self.servers) if figure else (FigureStep(name, 0.0, 1.0),)
        targets = [_target(kind, step) for step in steps]
        least = max(figure.servers_min if figure else 1, *(target.servers_min for target in targets))
        waits = any(target.at_fsync for target in targets)
        named = any(target.against_leader for target in targets)
        return least <= self.servers and (self.leaders or not named) and (self.fsyncs or not waits)

    def opening(self, kind: Kind) -> list[tuple[str, float]]:
        """Return the targets and figures in the opening of a kind that are possible on this cluster, each with its hold
        in seconds.
        """
        blind = None if self.leaders else kind.deck.opening_without_leaders
        opening = kind.deck.opening if blind is None else blind
        return [(name, hold_s) for name, hold_s in opening if self.fits(kind, name)]


class Dealer:
    """Dealer of one schedule, play by play: while the run continues, or all at once.

    nemesis: names of kinds joined by commas, or "none"
    time_limit_s: length of the main phase in seconds; the last card is healed `TAIL_S` before its end. A limit under 9
        s leaves room for no card, and the run will be judged vacuous.
    lacking: contains "leaders" if the system does not report its leader, so that no card names the leader; "fsyncs" if
        its servers never fsync, so that no card waits for an fsync
    holds: factor by which all times are stretched, for a system that fails over more slowly
    cards: all cards dealt so far

    Raises ValueError for an unknown nemesis.
    """

    def __init__(
        self,
        nemesis: str,
        servers: Sequence[str],
        time_limit_s: float,
        rng: Random,
        *,
        lacking: Collection[str] = (),
        holds: float = 1.0,
    ) -> None:
        self.cards: list[Card] = []
        self._rng = rng
        self._holds = holds
        self._last_s = time_limit_s / holds - TAIL_S
        self._earliest_s = self._began_s = LEAD_IN_S
        self._alone = True
        self._before: _Play | None = None
        self._aimed: set[coverage.Cell] = set()
        self._plays = _plays(
            kinds_of(nemesis),
            _Table(len(servers), "leaders" not in lacking, "fsyncs" not in lacking),
            rng,
            self._choose,
        )
        self._met: Callable[[coverage.Cell], bool] = self._aimed.__contains__

    def next(self, met: Collection[coverage.Cell] | None = None) -> list[Card]:
        """Return the numbered cards of the next play; [] when no time is left.

        met: cells that the run has reached so far; None: the cells that the cards so far aim at. The previous play has
            only begun, so the cells that it aims at count as reached.
        """
        pending = self._before.aims if self._before else frozenset()
        self._met = self._aimed.__contains__ if met is None else lambda cell: cell in met or cell in pending
        play = next(self._plays, None)
        if play is None:
            return []
        rng, began_s, earliest_s = self._rng, self._began_s, self._earliest_s
        hot = not play.opening and rng.random() < _HOT
        gap_s = rng.uniform(*(HOT_GAP_S if hot else GAP_S)) if self.cards else 0.0
        before = self._before.kind if self._before else None
        overlap = (rng.random() < _OVERLAP or play.opening) and self._alone and _may_overlap(before, play.kind)
        last_begin_s = began_s + (SOON if play.opening else 1.0) * (earliest_s - began_s)
        at_s = rng.uniform(began_s, last_begin_s) if overlap else earliest_s + gap_s
        least_s = min(at_s, earliest_s + HOT_GAP_S[0] if self.cards else at_s)
        fitted = _fitted(play, at_s, least_s, self._last_s)
        if fitted is None:
            return []
        at_s, steps = fitted
        self._alone = at_s >= earliest_s
        self._began_s, self._before = at_s, play
        self._earliest_s = max(earliest_s, *(at_s + step.after_s + step.hold_s for step in steps))
        self._aimed |= play.aims
        return self._put(play.kind, at_s, steps)

    def _put(self, kind: Kind, at_s: float, steps: Sequence[FigureStep]) -> list[Card]:
        first = len(self.cards) + 1
        for step in steps:
            begin_s = round((at_s + step.after_s) * self._holds, 3)
            again = len(self.cards) if step.kind else first  # the steps of one composite fault begin in sequence
            like, after = again if step.again else 0, first if step.moment else 0
            end_s = round(begin_s + step.hold_s * self._holds, 3)
            number, of = len(self.cards) + 1, first + step.until_step - 1 if step.until else 0
            until = (step.until, of, round(step.until_s * self._holds, 3))
            name = step.kind or kind.name
            line = (step.line, step.line_nth)
            self.cards.append(Card(number, name, step.target, begin_s, end_s, like, after, step.moment, *until, *line))
        return self.cards[first - 1 :]

    def _choose(self, plays: Sequence[_Play], storm: bool) -> int:
        """Return the index of the next play to deal.

        storm: True to prefer a figure that hits every leader, if its whole length fits into the remaining time
        """
        room_s = self._last_s - self._earliest_s - HOT_GAP_S[0]

        def worth(play: _Play) -> int:
            if storm and play.is_storm and play.length_s <= room_s:
                return len(coverage.PHASES) * len(coverage.ROLES) + 1
            return sum(not self._met(cell) for cell in play.aims)

        return max(range(len(plays)), key=lambda place: worth(plays[place]))


def _target(kind: Kind, step: FigureStep) -> Target:
    return (kind_named(step.kind) if step.kind else kind).targets[step.target]


def _aims(kind: Kind, step: FigureStep) -> Iterable[coverage.Cell]:
    """Return the cells that a card is likely to reach.  A hit on the leader causes an election, one on a follower does
    not.
    """
    target, kind = _target(kind, step), kind_named(step.kind) if step.kind else kind
    if step.moment:
        roles = (coverage.LEADER,) if target.against_leader else (coverage.FOLLOWER, coverage.LEADERLESS)
        return [
            coverage.Cell(kind.name, role, phase)
            for role in roles
            for phase in (coverage.ELECTION, coverage.NEW_LEADER)
        ]
    if target.against_leader:
        return [
            coverage.Cell(kind.name, coverage.LEADER, phase)
            for phase in (coverage.LED, coverage.ELECTION, coverage.NEW_LEADER)
        ]
    return [coverage.Cell(kind.name, coverage.FOLLOWER, coverage.LED)]


def _may_overlap(before: Kind | None, kind: Kind) -> bool:
    """Return True if a card of `kind` may begin while a card of the kind `before` is in force.

    An impaired link cannot be measured while it is cut, so impairing kinds never overlap with cutting kinds.
    """
    if before is None or before is kind or before.parts or kind.parts:
        return False
    return not any(PACKETS in one.needs and LINKS in other.needs for one, other in ((before, kind), (kind, before)))


def _fitted(play: _Play, at_s: float, earliest_s: float, last_s: float) -> tuple[float, list[FigureStep]] | None:
    """Return when the play begins, and those of its steps that end before `last_s`; None if no step does."""
    if at_s + play.length_s <= last_s:
        return at_s, list(play.steps)
    at_s = max(earliest_s, min(at_s, last_s - play.length_s))
    if len(play.steps) == 1:
        (step,) = play.steps
        hold_s = min(step.hold_s, last_s - at_s)
        least_s = FIRST_HOLD_S_MIN if play.opening else min(HOLD_S_MIN, step.hold_s)
        return (at_s, [replace(step, after_s=0.0, hold_s=hold_s)]) if hold_s >= least_s - 1e-9 else None
    if any(step.until or step.kind for step in play.steps):  # the steps have no meaning on their own
        return None
    steps = [step for step in play.steps if at_s + step.after_s + step.hold_s <= last_s + 1e-9]
    return (at_s, steps) if steps and not steps[0].again else None


def _plays(
    kinds: Sequence[Kind], table: _Table, rng: Random, choose: Callable[[Sequence[_Play], bool], int]
) -> Iterator[_Play]:
    """Yield plays endlessly; omit plays that are impossible on this table."""
    openings = [[_play(kind, name, table, rng, hold_s) for name, hold_s in table.opening(kind)] for kind in kinds]
    for turn in range(max((len(opening) for opening in openings), default=0)):
        yield from (opening[turn] for opening in openings if turn < len(opening))
    hands: list[Iterator[_Play]] = [_endless(kind, table, rng, choose) for kind in kinds]
    while hands:
        order = list(hands)
        rng.shuffle(order)
        for hand in order:
            play = next(hand, None)
            if play is None:
                hands.remove(hand)
            else:
                yield play


def _endless(kind: Kind, table: _Table, rng: Random, choose: Callable[[Sequence[_Play], bool], int]) -> Iterator[_Play]:
    names = [name for name in kind.deck.rest if table.fits(kind, name)]
    opened = {name for name, _ in table.opening(kind)}
    names = names or sorted(opened)
    storm = True
    while names:
        fresh = [name for name in names if name not in opened] if storm else names
        hand = [_play(kind, name, table, rng) for name in fresh or names]
        rng.shuffle(hand)
        while hand:
            yield hand.pop(choose(hand, storm))
            storm = False


def _play(kind: Kind, name: str, table: _Table, rng: Random, opens_s: float | None = None) -> _Play:
    """Return a target or a figure as a play.

    opens_s: hold in seconds of a target of the opening; None for a target of the rest
    """
    figure, opening = kind.deck.figures.get(name), opens_s is not None
    if figure is not None:
        return _Play(kind, tuple(figure.steps(rng, table.servers)), opening)
    hold_s = rng.uniform(*kind.targets[name].hold_s) if opens_s is None else opens_s
    return _Play(kind, (FigureStep(name, 0.0, hold_s),), opening)


VERSION = 1


class BadSchedule(ValueError):
    """The schedule file is invalid.  The message names the card, the field and the error."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A fixed schedule.

    cards: all cards, in the order of their begin
    faults: card number -> the resolved fault, for cards that have one
    """

    cards: tuple[Card, ...]
    faults: Mapping[int, Fault]


def parse_schedule(text: str) -> Schedule:
    """Parse the JSON text of a schedule.  Raises BadSchedule with a message of one sentence."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise BadSchedule(f"the schedule is not JSON: {problem}") from problem
    cards: dict[int, Card] = {}
    faults: dict[int, Fault] = {}
    for place, row in enumerate(_rows(data), start=1):
        try:
            card = _card(row)
            if card.number in cards:
                raise ValueError(f"its number {card.number} is that of another card")
            cards[card.number] = card
            if row.get("fault") is not None:
                faults[card.number] = _fault(card.kind, row["fault"])
        except ValueError as problem:
            raise BadSchedule(f"card {place}: {str(problem).replace('`', '')}") from problem
    for place, card in enumerate(cards.values(), start=1):
        for name, number in (("like", card.like), ("after", card.after), ("until_of", card.until_of)):
            if number and number not in cards:
                raise BadSchedule(f"card {place}: its field {name!r} names card {number}, which is not in the schedule")
    return Schedule(tuple(sorted(cards.values(), key=lambda card: card.at_s)), faults)


def schedule_json(cards: Sequence[Card], faults: Mapping[int, Fault] | None = None) -> str:
    """Return the text of a schedule file.  `parse_schedule` parses the text to an equal schedule."""
    known = faults or {}
    rows = [asdict(card) | ({"fault": known[card.number].to_json()} if card.number in known else {}) for card in cards]
    return json.dumps({"schedule": VERSION, "cards": rows}, indent=1)


def as_executed(records: Sequence[FaultRecord], main_began_ns: int) -> str:
    """Return the schedule of a run as executed, with the actual times.  Skipped cards are omitted, because they hit
    nothing.
    """
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
    return data


def _card(row: object) -> Card:
    """Return the card of a row, without the fault.  Raises ValueError if a field is invalid."""
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    card = _typed({name: value for name, value in row.items() if name != "fault"}, Card)
    numbers = {name: value for name, value in asdict(card).items() if isinstance(value, int | float)}
    if wrong := next((name for name, value in numbers.items() if not 0 <= value < math.inf), ""):
        raise ValueError(f"its field {wrong!r} must be a number from 0, not {numbers[wrong]:g}")
    if not card.at_s < card.heal_s:
        raise ValueError(f"its field 'heal_s' must be greater than 'at_s', not {card.heal_s:g}")
    kind_named(card.kind).check(card.name)
    for number, moment, moments in (
        ("after", "moment", coverage.MOMENTS),
        ("until_of", "until", coverage.HEAL_MOMENTS),
    ):
        awaited = getattr(card, moment)
        if (awaited not in moments) if getattr(card, number) else bool(awaited):
            known = " or ".join(map(repr, moments))
            raise ValueError(f"its fields {number!r} and {moment!r} go together: a number, and {known}")
    if why := _wrong_line(card):
        raise ValueError(why)
    return card


def _wrong_line(card: Card) -> str:
    if not card.line:
        return "its fields 'line_nth' and 'line_of' need a 'line'" if card.line_nth or card.line_of else ""
    if card.like or card.after:
        return "a card with a 'line' has neither 'like' nor 'after'"
    if card.line_of and card.line_of not in coverage.LINE_PRINTED_BY:
        return (
            f"its field 'line_of' must be {' or '.join(map(repr, coverage.LINE_PRINTED_BY))}, not {card.line_of!r:.40}"
        )
    try:
        re.compile(card.line)
    except re.error as problem:
        return f"its field 'line' is no regular expression: {problem}"
    return ""


def _fault(kind: str, given: object) -> Fault:
    """Return the resolved fault of a card.  Raises ValueError if a field is invalid."""
    if not isinstance(given, dict):
        raise ValueError("its field 'fault' must be an object")
    fault = _typed({"words": "", **given, "kind": kind}, Fault, "fault.")
    if not fault.cut and not fault.nodes:
        raise ValueError("its field 'fault' must name nodes or cut links")
    try:
        msgspec.convert(fault.settings, kind_named(kind).settings)
        kind_named(kind).refuse(fault.settings)
    except ValueError as problem:
        raise ValueError(f"its field 'fault.settings': {problem}") from problem
    return fault


T = TypeVar("T", Card, Fault)


def _typed(given: Mapping[str, Any], type_: type[T], within: str = "") -> T:
    """Return the value of a JSON object.  Raises ValueError if a field is invalid.

    within: prefix of field names in messages
    """
    known = [each.name for each in fields(type_)]
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"unknown field {within + unknown[0]!r}; there are {', '.join(known)}")
    try:
        return msgspec.convert(given, type_)
    except msgspec.ValidationError as problem:
        what, _, at = str(problem).replace("`", "").partition(" - at $.")
        raise ValueError(f"{f'its field {within + at!r}: ' if at else ''}{what}") from problem
