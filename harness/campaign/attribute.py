"""Trials of the faults that a violation needs: each is left out or moved in time, and the test is run again.

    without the pause of leader: 0 of 12, at most 26 %
    the kill of one 0.5 s later: 9 of 12, 43 to 95 %

Theory.  A test shows its violation with some probability.  The runs of one schedule are trials of it, with bounds of
Clopper and Pearson (1934): with a probability of CONFIDENCE the true share lies between them, whatever it is.  A change
*matters* if the violation then shows certainly less often: its upper bound lies below the lower bound of the whole
schedule.  No difference is *seen* if its share lies within the bounds of the whole schedule.  What lies between needs
more trials.

All schedules take turns, so that a machine that becomes slower changes all of them alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from checkers.base.results import ATTRIBUTION, NO_RESULTS, read_results
from checkers.record.faults import Card
from harness.campaign.loop import violations_in
from harness.campaign.shrink import Limits, Run, ShrinkCandidate, TrialLog, moved, with_cards

CONFIDENCE = 0.95
WHOLE = "all faults"


@dataclass(frozen=True, slots=True)
class Variant:
    """words: what was changed.  least, most: bounds of the share of runs that show the violation."""

    words: str
    shown: int
    runs: int
    least: float
    most: float
    verdict: str = ""

    def line(self) -> str:
        bounds = f"{100 * self.least:.0f} to {100 * self.most:.0f} %" if self.runs else "not tried"
        return f"{self.words}: {self.shown} of {self.runs} ({bounds}){f': {self.verdict}' if self.verdict else ''}"


def variants(original: ShrinkCandidate, shift_s: float) -> dict[str, ShrinkCandidate]:
    """Return the whole schedule, the schedule without each card, and with each card earlier and later."""
    cards = original.schedule.cards
    found = {WHOLE: original}
    for place, card in enumerate(cards):
        others = (*cards[:place], *cards[place + 1 :])
        name = f"the {card.kind} of {card.name}" + (f" at {card.at_s:.1f} s" if _again(card, cards) else "")
        if others:
            found[f"without {name}"] = with_cards(original, others)
        for words, by_s in ((f"{shift_s:g} s earlier", min(shift_s, card.at_s)), (f"{shift_s:g} s later", -shift_s)):
            if by_s:
                found[f"{name} {words}"] = with_cards(original, (*others, moved(card, by_s)))
    return found


def _again(card: Card, cards: Sequence[Card]) -> bool:
    return sum((one.kind, one.name) == (card.kind, card.name) for one in cards) > 1


def attribute(
    original: ShrinkCandidate, shift_s: float, run: Run, limits: Limits, log: TrialLog, say: Callable[[str], None]
) -> list[Variant]:
    """Run every variant `limits.times` times, in turn, and return how often each showed one of `limits.wanted`.

    Runs of an earlier call that stand in the log count."""
    tried = variants(original, shift_s)
    for turn in range(1, limits.times + 1):
        for words, candidate in tried.items():
            if log.of(candidate).runs < turn and limits.time_left():
                _, folder = run(candidate)
                shown = bool(limits.wanted & set(violations_in(read_results(Path(folder)) or NO_RESULTS)))
                log.note(candidate, shown, folder)
                say(f"  {words}: {'seen' if shown else 'not seen'} ({turn} of {limits.times})")
    return judged([(words, log.of(one).failed, log.of(one).runs) for words, one in tried.items()])


def judged(counts: Sequence[tuple[str, int, int]]) -> list[Variant]:
    """counts: (what was changed, runs that showed the violation, runs); the whole schedule is the first."""
    _, shown, runs = counts[0]
    whole_least, whole_most = bounds(shown, runs)
    found = []
    for words, shown, runs in counts:
        least, most = bounds(shown, runs)
        verdict = ""
        if runs and words != WHOLE:
            alike = whole_least <= shown / runs <= whole_most
            verdict = "it matters" if most < whole_least else "no difference seen" if alike else "undecided"
        found.append(Variant(words, shown, runs, least, most, verdict))
    return found


def bounds(shown: int, runs: int) -> tuple[float, float]:
    """Return the Clopper-Pearson bounds of a share, of which so many of the runs were seen."""
    tail = (1 - CONFIDENCE) / 2
    least = 0.0 if shown == 0 else _root(lambda p: 1 - _at_most(shown - 1, runs, p) - tail)
    most = 1.0 if shown == runs else _root(lambda p: tail - _at_most(shown, runs, p))
    return least, most


def _at_most(shown: int, runs: int, p: float) -> float:
    return sum(math.comb(runs, n) * p**n * (1 - p) ** (runs - n) for n in range(shown + 1))


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def keep(folder: Path, found: Sequence[Variant]) -> None:
    """Write what was tried into the folder of the run, for its page."""
    rows = [asdict(one) | {"line": one.line()} for one in found]
    (folder / ATTRIBUTION).write_text(json.dumps({"variants": rows}, indent=1))
