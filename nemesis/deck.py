"""Schedules, dealt like a deck of cards: by seed, without replacement, so that luck does not decide what a run tests.

Every kind of fault brings a deck: an *opening* (the cards without which a run proves little, always in the same order)
and the *rest*, which is shuffled, dealt to the end and shuffled again.  An entry is a target, or a *figure*: several
cards that belong together.

Timing.  The opening says how long its cards hold.  The first card holds longest, because a new leader must be elected
and answer before a stale read can show.  Other cards hold as their target says, mostly 3-5 s.  Between a heal and the
next card lie GAP_S; one in four gaps is HOT_GAP_S, so that the next fault meets a node that still truncates its log.
Near the time limit gap and hold shrink to their least before a card is given up.

Several kinds.  Their openings are dealt in turn, and two cards of a turn overlap.  The second one begins in the first
SOON of the other one's hold, so that a leader whose clock is slow is cut off too.  After that about every second card
of another kind than the one before begins while that one still holds.  Three never overlap: too little of the system
would be left to distinguish right from wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from nemesis.catalog import kinds_of
from nemesis.cluster import LINKS, PACKETS
from nemesis.faults import Card
from nemesis.kind import FigureStep, Kind

LEAD_IN_S = 2.0
"""Quiet before the first card, so that there is something to compare with."""
TAIL_S = 2.0
"""The last heal comes at least this long before the time limit: its proof belongs to the main phase."""
GAP_S = (2.5, 4.0)
HOT_GAP_S = (0.5, 1.5)
HOLD_S_MIN = 3.0
"""A single card is not cut shorter than this to fit before the time limit."""
FIRST_HOLD_S_MIN = 5.0

SOON = 0.4

_HOT = 0.25
_OVERLAP = 0.5


@dataclass(frozen=True, slots=True)
class _Play:
    """What is placed on the time line at once: one card, or the cards of a figure.  may_shrink: for a single card."""

    kind: Kind
    steps: tuple[FigureStep, ...]
    opening: bool = False

    @property
    def length_s(self) -> float:
        return max(step.after_s + step.hold_s for step in self.steps)


@dataclass(frozen=True, slots=True)
class _Table:
    """What a deck is dealt for: so many servers, and whether the system reports who leads."""

    servers: int
    leaders: bool

    def fits(self, kind: Kind, name: str) -> bool:
        """Whether this target or figure means something here."""
        figure = kind.deck.figures.get(name)
        steps = figure.steps(Random(0), self.servers) if figure else (FigureStep(name, 0.0, 1.0),)
        targets = [kind.targets[step.target] for step in steps]
        least = max(figure.servers_min if figure else 1, *(target.servers_min for target in targets))
        return least <= self.servers and (self.leaders or not any(target.against_leader for target in targets))


def deal(nemesis: str, servers: Sequence[str], time_limit_s: float, rng: Random, *, leaders: bool = True) -> list[Card]:
    """A schedule for a main phase of `time_limit_s`; equal arguments (and state of `rng`) give equal schedules.

    leaders: whether the system reports who leads.  If not, no card is dealt that would have to name the leader.

    nemesis: names of kinds joined by commas, or "none".  The last card is healed `TAIL_S` before the limit.  A limit
    under 9 s holds no card: the schedule is empty and the run will be called vacuous.  Raises ValueError.
    """
    cards: list[Card] = []
    last_s = time_limit_s - TAIL_S
    earliest_s, began_s, alone = LEAD_IN_S, LEAD_IN_S, True
    before: Kind | None = None
    for play in _plays(kinds_of(nemesis), _Table(len(servers), leaders), rng):
        gap_s = rng.uniform(*(HOT_GAP_S if not play.opening and rng.random() < _HOT else GAP_S)) if cards else 0.0
        overlap = (rng.random() < _OVERLAP or play.opening) and alone and _may_overlap(before, play.kind)
        last_begin_s = began_s + (SOON if play.opening else 1.0) * (earliest_s - began_s)
        at_s = rng.uniform(began_s, last_begin_s) if overlap else earliest_s + gap_s
        fitted = _fitted(play, at_s, min(at_s, earliest_s + HOT_GAP_S[0] if cards else at_s), last_s)
        if fitted is None:
            break
        at_s, steps = fitted
        first = len(cards) + 1
        for step in steps:
            begin_s = round(at_s + step.after_s, 3)
            like = first if step.again else 0
            end_s = round(begin_s + step.hold_s, 3)
            cards.append(Card(len(cards) + 1, play.kind.name, step.target, begin_s, end_s, like))
        alone = at_s >= earliest_s
        began_s, before = at_s, play.kind
        earliest_s = max(earliest_s, *(at_s + step.after_s + step.hold_s for step in steps))
    return cards


def _may_overlap(before: Kind | None, kind: Kind) -> bool:
    """Whether a card of `kind` may begin while one of another kind holds.

    An impaired link cannot be measured while it is cut, so a kind that impairs links overlaps with none that cuts them.
    """
    if before is None or before is kind:
        return False
    return not any(PACKETS in one.needs and LINKS in other.needs for one, other in ((before, kind), (kind, before)))


def _fitted(play: _Play, at_s: float, earliest_s: float, last_s: float) -> tuple[float, list[FigureStep]] | None:
    """When the play begins and the steps that end in time; None if not even one does."""
    if at_s + play.length_s <= last_s:
        return at_s, list(play.steps)
    at_s = max(earliest_s, min(at_s, last_s - play.length_s))
    if len(play.steps) == 1:
        (step,) = play.steps
        hold_s = min(step.hold_s, last_s - at_s)
        least_s = FIRST_HOLD_S_MIN if play.opening else min(HOLD_S_MIN, step.hold_s)
        return (at_s, [FigureStep(step.target, 0.0, hold_s)]) if hold_s >= least_s - 1e-9 else None
    steps = [step for step in play.steps if at_s + step.after_s + step.hold_s <= last_s + 1e-9]
    return (at_s, steps) if steps and not steps[0].again else None


def _plays(kinds: Sequence[Kind], table: _Table, rng: Random) -> Iterator[_Play]:
    """The endless deal; what means nothing on this table is taken out first."""
    openings = [[_single(kind, name, hold_s) for name, hold_s in kind.deck.opening] for kind in kinds]
    openings = [[play for play in opening if table.fits(play.kind, play.steps[0].target)] for opening in openings]
    for turn in range(max((len(opening) for opening in openings), default=0)):
        yield from (opening[turn] for opening in openings if turn < len(opening))
    hands: list[Iterator[_Play]] = [_endless(kind, table, rng) for kind in kinds]
    while hands:
        order = list(hands)
        rng.shuffle(order)
        for hand in order:
            play = next(hand, None)
            if play is None:
                hands.remove(hand)
            else:
                yield play


def _endless(kind: Kind, table: _Table, rng: Random) -> Iterator[_Play]:
    names = [name for name in kind.deck.rest if table.fits(kind, name)]
    names = names or [name for name, _ in kind.deck.opening if table.fits(kind, name)]
    while names:
        hand = list(names)
        rng.shuffle(hand)
        for name in hand:
            figure = kind.deck.figures.get(name)
            if figure is not None:
                yield _Play(kind, tuple(figure.steps(rng, table.servers)))
            else:
                yield _Play(kind, (FigureStep(name, 0.0, rng.uniform(*kind.targets[name].hold_s)),))


def _single(kind: Kind, name: str, hold_s: float) -> _Play:
    return _Play(kind, (FigureStep(name, 0.0, hold_s),), opening=True)
