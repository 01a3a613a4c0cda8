"""One test on two sides: as it was, and with other settings.  Both get the same seed, and so the same faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from checkers.base.results import read_results
from harness.campaign.loop import Ended
from harness.plain_words import plural
from harness.spec import Spec, WrongSpec

WHOLE = "the run"


@dataclass(frozen=True, slots=True)
class TwoSides:
    """one, other: their specs, which differ in `set` alone."""

    one: Spec
    other: Spec

    @staticmethod
    def of(spec: Spec, settings: str) -> TwoSides:
        """Return a spec beside itself with some settings changed.

        settings: NAME=VALUE, with commas between, as in `--set`.  Raises WrongSpec if they change nothing."""
        plain = replace(spec, finding=None, clean=False)  # what is known of it holds for one side alone
        merged = {**plain.settings, **replace(plain, set=settings).settings}
        if merged == plain.settings:
            raise WrongSpec(f"--against {settings!r:.60} changes nothing: name a setting that the run did not have")
        return TwoSides(plain, replace(plain, set=",".join(f"{name}={value}" for name, value in merged.items())))

    def in_turn(self, times: int) -> list[Spec]:
        """Return the tests in order: what the machine does meanwhile meets both sides alike."""
        return [self.one, self.other] * times

    def differs(self) -> str:
        """Return in one line which settings differ."""
        one, other = self.one.settings, self.other.settings
        named = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
        words = [f"{name} {one.get(name, 'as usual')} | {other.get(name, 'as usual')}" for name in named]
        return f"differs: {', '.join(words)}; all else is equal, seed {self.one.seed} too"

    def table(self, runs: Sequence[Ended], folder: Path) -> list[str]:
        """Return the verdicts of both sides as lines: of the whole run, and of each checker that is not always valid.

        runs: all of both sides.  folder: of their campaign."""
        counts = [_counts([run for run in runs if run.test.spec == side], folder) for side in (self.one, self.other)]
        names = [name for name in dict.fromkeys(name for each in counts for name in each) if _tells(counts, name)]
        rows = [("", "A", "B"), *((name, *(_in_words(each.get(name, Counter())) for each in counts)) for name in names)]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _counts(runs: Sequence[Ended], folder: Path) -> dict[str, Counter[str]]:
    """Return how often each verdict was given: by WHOLE and by each checker."""
    counts = {WHOLE: Counter(run.verdict for run in runs)}
    for checker, verdict in (pair for run in runs for pair in _verdicts(run, folder)):
        counts.setdefault(checker, Counter())[verdict] += 1
    return counts


def _verdicts(run: Ended, folder: Path) -> Iterator[tuple[str, str]]:
    results = read_results(folder / run.folder) if run.folder else None
    for name, checker in (results.checkers if results is not None else {}).items():
        yield name, checker.verdict


def _tells(counts: Sequence[dict[str, Counter[str]]], name: str) -> bool:
    return name == WHOLE or any(set(each.get(name, ())) - {"valid", "not applicable"} for each in counts)


def _in_words(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) or plural(0, "run")
