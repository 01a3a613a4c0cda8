"""Makes a failing schedule smaller: fewer cards, shorter holds, fewer servers, as long as it still fails.

Theory.  A run depends on luck, so one that passes proves little.  Every candidate is therefore run up to `repeats`
times.  It counts as failing as soon as one run fails as the original did: the same checker is invalid, with a witness
of the same kind.  A candidate that never failed is given up.  How sure that is follows from how often the smallest
failing schedule has failed: if it fails with probability p, n passing runs in a row come by luck with (1 - p)^n.  The
smallest one is therefore run `repeats` times as well, and p is estimated by Laplace's rule, (failed + 1) / (runs + 2).

The order of attempts: cards are removed, first halves of them, then single ones (delta debugging, Zeller and
Hildebrandt 2002).  Then holds are halved, one card after another.  Then servers that no fault names are left out.
Whenever something was left out, the attempts begin anew, until nothing more can be left out.

Everything that was tried is kept as it ends, so that a shrinking that was broken off goes on where it stood.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from checkers.record.faults import Card
from nemesis.cards.deck import TAIL_S
from nemesis.cards.schedule_files import Schedule, schedule_json

SERVERS_MIN = 3
HOLD_S_MIN = 0.5
_EARLIEST_S = 2.0
"""The first card is moved to this second; the gaps between cards stay as they are."""


@dataclass(frozen=True, slots=True)
class ShrinkCandidate:
    """A schedule on so many servers, and how long its run takes at least."""

    schedule: Schedule
    servers: int

    @property
    def time_limit_s(self) -> float:
        return max((card.heal_s for card in self.schedule.cards), default=0.0) + TAIL_S

    @property
    def identity(self) -> str:
        text = f"{self.servers} {schedule_json(self.schedule.cards, self.schedule.faults)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def words(self) -> str:
        cards = len(self.schedule.cards)
        held_s = sum(card.heal_s - card.at_s for card in self.schedule.cards)
        return f"{cards} card{'' if cards == 1 else 's'}, {held_s:.1f} s of faults, {self.servers} servers"


@dataclass(slots=True)
class TriedSchedules:
    """How a candidate fared.  folders: of its runs, in order."""

    runs: int = 0
    failed: int = 0
    folders: list[str] = field(default_factory=list)


@dataclass(slots=True)
class TrialLog:
    """What was tried, by the identity of the candidate; kept in a file if there is a path."""

    path: Path | None = None
    tried: dict[str, TriedSchedules] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> TrialLog:
        """An empty log if there is no file yet.  Raises ValueError for a file that is no log."""
        if not path.exists():
            return TrialLog(path)
        rows: dict[str, dict[str, Any]] = json.loads(path.read_text())
        return TrialLog(path, {identity: TriedSchedules(**row) for identity, row in rows.items()})

    def note(self, candidate: ShrinkCandidate, failed: bool, folder: str) -> None:
        tried = self.tried.setdefault(candidate.identity, TriedSchedules())
        tried.runs += 1
        tried.failed += failed
        tried.folders.append(folder)
        if self.path is not None:
            rows = {n: {"runs": t.runs, "failed": t.failed, "folders": t.folders} for n, t in self.tried.items()}
            self.path.write_text(json.dumps(rows, indent=1))

    def of(self, candidate: ShrinkCandidate) -> TriedSchedules:
        return self.tried.get(candidate.identity, TriedSchedules())


Run = Callable[[ShrinkCandidate], tuple[bool, str]]
"""Runs a candidate once: whether it failed as the original did, and the folder of the run."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """smallest: the smallest candidate that failed.  chance: the probability with which a smaller one that would fail
    as often passed by luck alone; 0 if there is nothing smaller."""

    smallest: ShrinkCandidate
    tried: TriedSchedules
    chance: float


def shrink(original: ShrinkCandidate, run: Run, repeats: int, log: TrialLog, say: Callable[[str], None]) -> Shrunk:
    """Raises ValueError if the original does not fail in `repeats` runs."""
    say(f"original: {original.words()}")
    if not _fails(original, run, repeats, log, say):
        raise ValueError(f"the schedule did not fail again in {repeats} runs: choose more --repeats")
    smallest, given_up = original, 0
    improved = True
    while improved:
        improved, given_up = False, 0
        for candidate in smaller(smallest):
            if _fails(candidate, run, repeats, log, say):
                smallest, improved = candidate, True
                say(f"still fails: {candidate.words()}")
                break
            given_up += 1
    while log.of(smallest).runs < repeats:
        _run_once(smallest, run, repeats, log, say)
    tried = log.of(smallest)
    share = (tried.failed + 1) / (tried.runs + 2)
    return Shrunk(smallest, tried, (1 - share) ** repeats if given_up else 0.0)


def smaller(candidate: ShrinkCandidate) -> Iterator[ShrinkCandidate]:
    """Candidates with a little less each, the boldest first."""
    cards = candidate.schedule.cards
    size = len(cards) // 2
    while size:
        for begin in range(0, len(cards), size):
            kept = (*cards[:begin], *cards[begin + size :])
            if kept:
                yield _with(candidate, kept)
        size //= 2
    for place, card in enumerate(cards):
        hold_s = (card.heal_s - card.at_s) / 2
        if hold_s >= HOLD_S_MIN:
            shorter = replace(card, heal_s=round(card.at_s + hold_s, 3))
            yield _with(candidate, (*cards[:place], shorter, *cards[place + 1 :]))
    for servers in range(SERVERS_MIN, candidate.servers):
        if servers >= _servers_named(candidate.schedule):
            yield replace(candidate, servers=servers)


def _with(candidate: ShrinkCandidate, cards: tuple[Card, ...]) -> ShrinkCandidate:
    """These cards alone, moved so that the first begins at _EARLIEST_S; a card that lost its model is its own."""
    shift_s = min(card.at_s for card in cards) - _EARLIEST_S
    numbers = {card.number for card in cards}
    moved = tuple(
        replace(
            card,
            at_s=round(card.at_s - shift_s, 3),
            heal_s=round(card.heal_s - shift_s, 3),
            like=card.like if card.like in numbers else 0,
            after=card.after if card.after in numbers else 0,
            moment=card.moment if card.after in numbers else "",
        )
        for card in cards
    )
    faults = {number: fault for number, fault in candidate.schedule.faults.items() if number in numbers}
    return replace(candidate, schedule=Schedule(moved, faults))


def _servers_named(schedule: Schedule) -> int:
    """The highest number of a server that a resolved fault names; servers are n1, n2, ..."""
    names = {n for fault in schedule.faults.values() for n in (*fault.nodes, *(e for link in fault.cut for e in link))}
    return max((int(name[1:]) for name in names if name.startswith("n") and name[1:].isdigit()), default=0)


def _fails(candidate: ShrinkCandidate, run: Run, repeats: int, log: TrialLog, say: Callable[[str], None]) -> bool:
    """Whether the candidate fails in one of at most `repeats` runs, earlier ones included."""
    while True:
        tried = log.of(candidate)
        if tried.failed or tried.runs >= repeats:
            return tried.failed > 0
        _run_once(candidate, run, repeats, log, say)


def _run_once(candidate: ShrinkCandidate, run: Run, repeats: int, log: TrialLog, say: Callable[[str], None]) -> None:
    failed, folder = run(candidate)
    log.note(candidate, failed, folder)
    say(f"  {candidate.words()}: {'failed' if failed else 'passed'} ({log.of(candidate).runs} of {repeats})")
