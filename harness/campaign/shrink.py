"""Repeats a failing schedule: to make it smaller, and to find the faults that the violation needs.

*Shrinking.*  While a schedule still fails, cards and servers are removed and faults are shortened.

Theory.  A run depends on chance, so a passing run proves little.  A candidate counts as failing as soon as `needed` of
at most `times` runs were invalid.  A run may show another symptom than the original, because a smaller schedule may
break more.  Such a run counts too, and its symptom is reported (`other_symptom`).

All candidates of a step are run once before any of them is run a second time.  So a smaller schedule that often fails
is found after few runs.  Runs that only confirm that no smaller schedule fails come last.  The search ends when every
candidate has passed often enough, or when its time is up.

The certainty of the result follows from the share of failing runs of the smallest failing schedule.  Assume that it
fails with probability p.  If another candidate failed as often, its few observed failures would have a binomial
probability: (1 - p)^n if all n runs passed.  The probability that chance has hidden any of several candidates is at
    most the sum of these probabilities (Boole's inequality).  Therefore the smallest schedule is run `times` times as
    well, and p is estimated by Laplace's rule, (failed + 1) / (runs + 2).

Candidates come in this order.  Each card alone; then halves of the cards are removed, then single cards (delta
debugging, Zeller and Hildebrandt 2002).  Then the durations of faults are halved, one card after another.  Then servers
that no fault names are removed.  Last, all cards begin earlier.  The last step is separate, because a short log may
hide a violation that a long log shows.  After each success the steps start over, until nothing can be reduced any more.

Every result is stored at once, so an interrupted shrinking can be continued.

*Trials.*  Each fault is removed or moved in time, and the test is repeated.

    without the pause of leader: 0 of 12, at most 26 %
    the kill of one 0.5 s later: 9 of 12, 43 to 95 %

Theory.  A test shows its violation with some probability.  The runs of one schedule are trials, with bounds of Clopper
and Pearson (1934): they contain the true share with a probability of at least CONFIDENCE.  A change *matters* if the
violation is certainly rarer with it: its upper bound lies below the lower bound of the unchanged schedule.  No
difference is *seen* if the share with the change lies within the bounds of the unchanged schedule.  All other cases
need more trials.

The schedules are run in turn, so a machine that becomes slower affects all of them equally.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from checkers.base.results import ATTRIBUTION, NO_RESULTS, read_results
from checkers.base.shrinking import without_pieces
from checkers.record.faults import Achieved, Card
from checkers.record.files import BrokenFile
from checkers.record.run_record import RunRecord
from harness.campaign.loop import run_child, violations_in
from harness.plain_words import plural
from harness.spec import Spec, WrongSpec
from nemesis.deck import TAIL_S, Schedule, schedule_json

SERVERS_MIN = 3
HOLD_S_MIN = 0.5
EARLIEST_S = 2.0


@dataclass(frozen=True, slots=True)
class ShrinkCandidate:
    """A schedule on a number of servers, and the minimum length of its run."""

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
        begin_s = min((card.at_s for card in self.schedule.cards), default=0.0)
        of = f"{cards} card{'' if cards == 1 else 's'} from {begin_s:.1f} s on"
        return f"{of}, {held_s:.1f} s of faults, {self.servers} servers"


@dataclass(slots=True)
class TriedSchedule:
    """Runs of a candidate. folders: folders of all runs, in order; failing: folders of failed runs."""

    runs: int = 0
    failed: int = 0
    folders: list[str] = field(default_factory=list)
    failing: list[str] = field(default_factory=list)


@dataclass(slots=True)
class TrialLog:
    """Results of candidates, by the identity of the candidate; stored in a file if `path` is set."""

    path: Path | None = None
    tried: dict[str, TriedSchedule] = field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> TrialLog:
        """Return the log; an empty log if there is no file yet.  Raises ValueError if the file is no log."""
        if not path.exists():
            return TrialLog(path)
        rows: dict[str, dict[str, Any]] = json.loads(path.read_text())
        return TrialLog(path, {identity: TriedSchedule(**row) for identity, row in rows.items()})

    def note(self, candidate: ShrinkCandidate, failed: bool, folder: str) -> None:
        tried = self.tried.setdefault(candidate.identity, TriedSchedule())
        tried.runs += 1
        tried.failed += failed
        tried.folders.append(folder)
        if failed:
            tried.failing.append(folder)
        if self.path is not None:
            self.path.write_text(json.dumps({name: asdict(one) for name, one in self.tried.items()}, indent=1))

    def of(self, candidate: ShrinkCandidate) -> TriedSchedule:
        return self.tried.get(candidate.identity, TriedSchedule())

    @property
    def runs(self) -> int:
        return sum(one.runs for one in self.tried.values())


Run = Callable[[ShrinkCandidate], tuple[bool, str]]
"""Runs a candidate once; returns True if the run was invalid, and the folder of the run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a search.

    needed: number of failing runs from which a candidate counts as failing
    times: maximum number of runs of each candidate
    time_left: returns False once the time is up
    wanted: (checker, kind) of the violations of the original
    """

    needed: int = 1
    times: int = 3
    time_left: Callable[[], bool] = lambda: True
    wanted: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Shrunk:
    """Result of shrinking.

    smallest: the smallest candidate that failed
    passed: number of smaller candidates whose runs all passed
    seldom: number of smaller candidates that failed fewer times than needed
    in_time: True if all smaller candidates got their number of runs
    chance: upper bound of the probability that one of them would fail as often as `smallest`, but passed by chance
    """

    smallest: ShrinkCandidate
    tried: TriedSchedule
    passed: int
    seldom: int
    in_time: bool
    chance: float


def shrink(original: ShrinkCandidate, run: Run, limits: Limits, log: TrialLog, say: Callable[[str], None]) -> Shrunk:
    """Return the smallest failing candidate.

    Raises ValueError if the original does not fail `needed` times in `times` runs, or in the available time.
    """
    search = _Search(run, limits, log, say)
    say(f"original: {original.words()}")
    if search.first_failing([original]) is None:
        tried = log.of(original)
        failed = f"failed {tried.failed} times in {tried.runs} runs, and {limits.needed} are needed"
        raise ValueError(f"the schedule {failed}: choose more --times, or fewer --needed")
    smallest = original
    while (found := search.first_failing(list(smaller(smallest)))) is not None:
        smallest = found
        say(f"still fails: {smallest.words()}")
    while log.of(smallest).runs < limits.times and limits.time_left():
        search.run_once(smallest)
    tried, others = log.of(smallest), [log.of(one) for one in smaller(smallest)]
    share = (tried.failed + 1) / (tried.runs + 2)
    chance = min(1.0, sum(_at_most(one.failed, one.runs, share) for one in others))
    in_time = all(one.runs >= limits.times - limits.needed + 1 for one in others)
    passed, seldom = sum(one.runs > one.failed == 0 for one in others), sum(one.failed > 0 for one in others)
    return Shrunk(smallest, tried, passed, seldom, in_time, chance)


def smaller(candidate: ShrinkCandidate) -> Iterator[ShrinkCandidate]:
    """Yield candidates that are one step smaller, the most reduced first, without duplicates."""
    seen = {candidate.identity}
    for one in _smaller(candidate):
        if one.identity not in seen:
            seen.add(one.identity)
            yield one


def _smaller(candidate: ShrinkCandidate) -> Iterator[ShrinkCandidate]:
    cards = candidate.schedule.cards
    if len(cards) > 1:
        yield from (with_cards(candidate, (card,)) for card in cards)
    yield from (with_cards(candidate, kept) for kept in without_pieces(cards, len(cards) // 2) if kept)
    for place, card in enumerate(cards):
        hold_s = (card.heal_s - card.at_s) / 2
        if hold_s >= HOLD_S_MIN:
            shorter = replace(card, heal_s=round(card.at_s + hold_s, 3))
            yield with_cards(candidate, (*cards[:place], shorter, *cards[place + 1 :]))
    for servers in range(SERVERS_MIN, candidate.servers):
        if servers >= _servers_named(candidate.schedule):
            yield replace(candidate, servers=servers)
    if (begin_s := min(card.at_s for card in cards)) > EARLIEST_S:
        yield with_cards(candidate, tuple(moved(card, begin_s - EARLIEST_S) for card in cards))


def moved(card: Card, shift_s: float) -> Card:
    """Return the card with injection and heal this many seconds earlier."""
    return replace(card, at_s=round(card.at_s - shift_s, 3), heal_s=round(card.heal_s - shift_s, 3))


def with_cards(candidate: ShrinkCandidate, cards: tuple[Card, ...]) -> ShrinkCandidate:
    """Return a candidate with only these cards, at their times; a card whose `like` was removed becomes independent."""
    numbers = {card.number for card in cards}
    kept = []
    for card in cards:
        loses: dict[str, Any] = {} if card.like in numbers else {"like": 0}
        loses |= {} if card.after in numbers else {"after": 0, "moment": ""}
        loses |= {} if card.until_of in numbers else {"until_of": 0, "until": ""}
        kept.append(replace(card, **loses))
    faults = {number: fault for number, fault in candidate.schedule.faults.items() if number in numbers}
    return replace(candidate, schedule=Schedule(tuple(kept), faults))


def _servers_named(schedule: Schedule) -> int:
    """Return the highest number of a server in a resolved fault; servers are n1, n2, ..."""
    names = {n for fault in schedule.faults.values() for n in (*fault.nodes, *(e for link in fault.cut for e in link))}
    return max((int(name[1:]) for name in names if name.startswith("n") and name[1:].isdigit()), default=0)


@dataclass(frozen=True, slots=True)
class _Search:
    run: Run
    limits: Limits
    log: TrialLog
    say: Callable[[str], None]

    def first_failing(self, candidates: list[ShrinkCandidate]) -> ShrinkCandidate | None:
        """Return the first candidate that failed often enough; None if all passed or the time is up.  Stored runs
        count.
        """
        for turn in range(1, self.limits.times + 1):
            for one in candidates:
                if self._can_fail(one) and self.log.of(one).runs < turn and not self._fails(one):
                    if not self.limits.time_left():
                        return None
                    self.run_once(one)
                if self._fails(one):
                    return one
        return None

    def _fails(self, candidate: ShrinkCandidate) -> bool:
        return self.log.of(candidate).failed >= self.limits.needed

    def _can_fail(self, candidate: ShrinkCandidate) -> bool:
        tried = self.log.of(candidate)
        return tried.failed + self.limits.times - tried.runs >= self.limits.needed

    def run_once(self, candidate: ShrinkCandidate) -> None:
        failed, folder = self.run(candidate)
        self.log.note(candidate, failed, folder)
        place = f"{self.log.of(candidate).runs} of {self.limits.times}"
        other = other_symptom(Path(folder), self.limits.wanted) if failed else ""
        result = f"failed with another symptom, {other}" if other else "failed" if failed else "did not fail"
        self.say(f"  {candidate.words()}: {result} ({place}){_hit_nothing(folder)}")


def other_symptom(run: Path, wanted: frozenset[tuple[str, str]]) -> str:
    """Return the worst violation of a run in words if it shows none of the `wanted` ones; else ""."""
    shown = violations_in(read_results(run) or NO_RESULTS) if wanted else ()
    return f"{shown[0][0]}: {shown[0][1]}" if shown and not wanted & set(shown) else ""


def _hit_nothing(folder: str) -> str:
    """Return the cards of a run that hit nothing, with reasons (for example, no node had the role); "" if there are
    none.
    """
    try:
        skipped = [record for record in RunRecord(Path(folder)).faults if record.achieved is Achieved.SKIPPED]
    except BrokenFile:
        return ""
    return "".join(f"; {r.card.kind} {r.card.name} hit nothing: {r.reason}" for r in skipped)


def violated_run(run_folder: Path) -> tuple[Path, frozenset[tuple[str, str]]]:
    """Return the folder of an invalid run with faults, and its violations.  Raises WrongSpec for all other runs."""
    root = run_folder.resolve()
    for name in ("results.json", "schedule.json"):
        if not (root / name).exists():
            raise WrongSpec(f"{run_folder} cannot be run with fewer faults: it contains no {name}")
    wanted = frozenset(violations_in(read_results(root) or NO_RESULTS))
    if not wanted:
        raise WrongSpec(f"{run_folder} cannot be run with fewer faults: nothing in it was found to be invalid")
    return root, wanted


def lines_of(found: Shrunk, root: Path, folder: Path, wanted: frozenset[tuple[str, str]]) -> list[str]:
    """Return the result of a shrinking as lines for a terminal.

    root: folder of the original run
    folder: folder of the tried schedules
    """
    tried = found.tried
    others = Counter(filter(None, (other_symptom(Path(run), wanted) for run in tried.failing)))
    lines = ["", f"smallest: {found.smallest.words()}; it failed {tried.failed} of {tried.runs} times"]
    lines += [f"  {times} of them with another symptom than the original, {other}" for other, times in others.items()]
    if not found.in_time:
        lines += ["the time was up before every smaller schedule was run often enough: repeat the command to continue"]
    if found.passed:
        seldom = f", and {found.seldom} failed fewer times than --needed" if found.seldom else ""
        never = f"{plural(found.passed, 'schedule')} a little smaller never failed{seldom}"
        lines += [f"{never}; at most {100 * found.chance:.1f} % is the chance that one fails as often as the smallest"]
    lines += [f"schedule: {folder / f'{found.smallest.identity}.json'}"]
    same = [run for run in tried.failing if not other_symptom(Path(run), wanted)]
    for what, of in (("the original", root), ("the smallest", Path((same or tried.failing)[0]))):
        lines += [f"report of {what}: {of / 'report.html'}"]
    return lines


@dataclass(slots=True)
class Reruns:
    """Runs a candidate in its own process, each time with another seed.

    spec: spec of the original
    folder: folder for schedules, runs and output
    runs: number of runs so far
    """

    spec: Spec
    folder: Path
    runs: int = 0

    def __call__(self, candidate: ShrinkCandidate) -> tuple[bool, str]:
        """Run a candidate once.  Raises OSError with the path of the output if the run could not be executed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        schedule = self.folder / f"{candidate.identity}.json"
        schedule.write_text(schedule_json(candidate.schedule.cards, candidate.schedule.faults))
        output = self.folder / "output.log"
        self.runs += 1
        run = run_child(self.spec_of(candidate, schedule).words(), self.folder / "runs", output).judged
        if run is None:
            raise OSError(f"a run of the shrinking failed: see {output}")
        return bool(violations_in(read_results(run) or NO_RESULTS)), str(run)

    def spec_of(self, candidate: ShrinkCandidate, schedule: Path) -> Spec:
        """Return the spec of the original with this schedule, and with the candidate's number of servers."""
        return replace(
            self.spec,
            nodes=candidate.servers,
            time_limit_s=float(math.ceil(candidate.time_limit_s)),
            seed=self.spec.seed + self.runs,
            schedule=str(schedule),
            stop_on_violation=True,
            online=True,
            finding=None,
            clean=False,
        )


CONFIDENCE = 0.95
WHOLE = "all faults"


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed schedule. words: the change. least, most: bounds of the share of runs that show the violation."""

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
    """Return the unchanged schedule, and the schedule without each card, and with each card earlier and later."""
    cards = original.schedule.cards
    found = {WHOLE: original}
    for place, card in enumerate(cards):
        others = (*cards[:place], *cards[place + 1 :])
        again = sum((one.kind, one.name) == (card.kind, card.name) for one in cards) > 1
        name = f"the {card.kind} of {card.name}" + (f" at {card.at_s:.1f} s" if again else "")
        if others:
            found[f"without {name}"] = with_cards(original, others)
        for words, by_s in ((f"{shift_s:g} s earlier", min(shift_s, card.at_s)), (f"{shift_s:g} s later", -shift_s)):
            if by_s:
                found[f"{name} {words}"] = with_cards(original, (*others, moved(card, by_s)))
    return found


def attribute(
    original: ShrinkCandidate, shift_s: float, run: Run, limits: Limits, log: TrialLog, say: Callable[[str], None]
) -> list[Variant]:
    """Run every variant `limits.times` times, in turn; return how often each showed one of the `limits.wanted`
    violations.

    Runs of an earlier call that are in the log count.
    """
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
    """Return the variants with bounds and verdicts.

    counts: (the change, number of runs that showed the violation, number of runs); the unchanged schedule first
    """
    whole_least, whole_most = bounds(*counts[0][1:])
    found = []
    for words, shown, runs in counts:
        least, most = bounds(shown, runs)
        alike = runs > 0 and whole_least <= shown / runs <= whole_most
        verdict = "it matters" if most < whole_least else "no difference seen" if alike else "undecided"
        verdict = verdict if runs and words != WHOLE else ""
        found.append(Variant(words, shown, runs, least, most, verdict))
    return found


def bounds(shown: int, runs: int) -> tuple[float, float]:
    """Return the Clopper-Pearson bounds of the share of runs that show the violation."""
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
    """Write the results into the folder of the run, for its page."""
    rows = [asdict(one) | {"line": one.line()} for one in found]
    (folder / ATTRIBUTION).write_text(json.dumps({"variants": rows}, indent=1))
