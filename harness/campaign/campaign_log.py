"""Log of what a campaign has run so far, in one file that is written whole after every run, and what it found.

A **symptom** names a finding: the checker and the kind of the violation that lies nearest to the cause, and the kinds
of fault that were injected until it showed.  Runs of one symptom probably show one mistake of the system, and one of
them is enough to study it.

A **replay** is the same test once more, with the same seed.  It has seen the violation again if any of its violations
is of a checker and kind that the first run saw: chance decides which consequence of a mistake shows first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from checkers.base.json_file import read_object
from checkers.base.verdict import EXIT_CODES, HARNESS_FAILED, Validity
from harness.plain_words import plural
from harness.spec import Spec, WrongSpec
from harness.story.kinds import name_in_words

LOG, LOCK = "campaign.json", ".lock"
FORMAT = 2
FAILED = "harness failed"
"""The verdict of a run that could not be made or judged.  It says nothing about the system."""
INCIDENCES_MIN = 4
"""Runs with a finding from which something can be estimated about symptoms that none has shown."""
AS_EXPECTED, FOUND = EXIT_CODES[Validity.VALID], EXIT_CODES[Validity.INVALID]


@dataclass(frozen=True, slots=True)
class Symptom:
    """faults: the kinds that were injected, in alphabetical order."""

    checker: str
    kind: str
    faults: tuple[str, ...]

    def words(self) -> str:
        """Such as: stale read (linearizability) under kill and partition."""
        return f"{name_in_words(self.kind)} ({self.checker}) under {' and '.join(self.faults) or 'no fault'}"


@dataclass(frozen=True, slots=True)
class Planned:
    """One run to make.  number: of its test, from 0.  replay: 0 for the first run of the test, else which replay."""

    number: int
    spec: Spec
    replay: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """Ways in which a run ends.

    code: how the campaign counts it, as an exit code: 0 as expected, 1 a finding, 2 it proved nothing, 3 it could not
        be made or judged.
    words: why.  seconds: from its start to its verdict.
    violations: (checker, kind), the nearest to the cause first.  faults: the kinds that were injected until the first
        of them showed.
    found_s: seconds of the main phase until a planted bug was found; -1 if none was.
    folder: of the run, relative to the campaign's; "" if it was not kept.
    """

    test: Planned
    code: int
    verdict: str
    words: str
    seconds: float
    violations: tuple[tuple[str, str], ...] = ()
    faults: tuple[str, ...] = ()
    found_s: float = -1.0
    folder: str = ""

    @property
    def symptom(self) -> Symptom | None:
        """None if nothing was violated."""
        return Symptom(*self.violations[0], self.faults) if self.violations else None

    def to_json(self) -> dict[str, Any]:
        row = asdict(self) | {"test": self.test.spec.to_json(), "rerun": self.test.spec.rerun()}
        return {"number": self.test.number, "replay": self.test.replay, **row}

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Ended:
        """Raises KeyError or WrongSpec for a row that is none."""
        test = Planned(row["number"], Spec.from_json(row["test"]), row["replay"])
        pairs = tuple((str(checker), str(kind)) for checker, kind in row["violations"])
        plain = {name: row[name] for name in ("code", "verdict", "words", "seconds", "found_s", "folder")}
        return Ended(test, violations=pairs, faults=tuple(row["faults"]), **plain)


@dataclass(frozen=True, slots=True)
class FoundSymptom:
    """All first runs of one symptom, and the replays of the first of them."""

    symptom: Symptom
    runs: tuple[Ended, ...]
    replays: tuple[Ended, ...]

    @property
    def seen_again(self) -> int:
        return seen_again(self.runs[0].violations, self.replays)

    def words(self) -> str:
        """Return how often it was seen."""
        replays = f"{self.seen_again} of {plural(len(self.replays), 'replay')}"
        again = f"seen again in {replays}" if self.replays else "not replayed"
        return f"{again}; {plural(len(self.runs), 'test')} of this campaign saw it"

    def to_json(self) -> dict[str, Any]:
        first = self.runs[0]
        return {
            **asdict(self.symptom),
            "words": self.symptom.words(),
            "tests": [run.test.number for run in self.runs],
            "replays": len(self.replays),
            "seen_again": self.seen_again,
            "folder": first.folder,
            "rerun": first.test.spec.rerun(),
        }


def seen_again(violations: Iterable[tuple[str, str]], replays: Iterable[Ended]) -> int:
    """Return how many of the replays saw one of these violations."""
    first = set(violations)
    return sum(bool(first & set(replay.violations)) for replay in replays)


@dataclass(slots=True)
class CampaignLog:
    """identity: a campaign with another one may not go on in this folder."""

    folder: Path
    identity: Mapping[str, Any]
    runs: list[Ended] = field(default_factory=list)

    @staticmethod
    @contextlib.contextmanager
    def open(folder: Path, identity: Mapping[str, Any], goes_on: bool) -> Iterator[CampaignLog]:
        """The log of this folder, which no other campaign may use meanwhile; an empty one unless the campaign goes on.

        Raises BrokenFile, or WrongSpec if another campaign is at work here or was.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy = f"another campaign works in {folder}: wait for its end, or name another folder with --results"
                raise WrongSpec(busy) from None
            log = CampaignLog(folder, identity)
            if goes_on and (folder / LOG).exists():
                log.runs = log._read()
            yield log

    def _read(self) -> list[Ended]:
        """Return what was run; a run that could not be made or judged is made again."""
        kept = read_object(self.folder / LOG)
        theirs, mine = kept.get("identity"), json.loads(json.dumps(self.identity))
        if kept.get("format") != FORMAT or theirs != mine:
            raise WrongSpec(f"{self.folder} holds another campaign: {theirs or 'of an older format'}; this is {mine}")
        runs = [Ended.from_json(row) for row in kept["runs"]]
        return [run for run in runs if run.code != HARNESS_FAILED]

    def note(self, run: Ended) -> None:
        """Keep it: the file is old or new, because a campaign may be killed at any moment."""
        self.runs.append(run)
        found = [group.to_json() for group in self.found()]
        kept = {"format": FORMAT, "identity": self.identity, "found": found}
        kept["runs"] = [one.to_json() for one in self.runs]
        part = self.folder / f".{LOG}.part"
        part.write_text(json.dumps(kept, indent=1) + "\n")
        part.replace(self.folder / LOG)

    @property
    def tests(self) -> list[Ended]:
        """The first run of every test."""
        return [run for run in self.runs if run.test.replay == 0]

    def found(self) -> list[FoundSymptom]:
        """The findings, in the order in which they were found."""
        seen: dict[Symptom, list[Ended]] = {}
        for run in self.tests:
            if run.code == FOUND and run.symptom is not None:
                seen.setdefault(run.symptom, []).append(run)
        return [FoundSymptom(one, tuple(runs), tuple(self.replays_of(runs[0]))) for one, runs in seen.items()]

    def unseen(self) -> str:
        """Estimate what further runs of the same tests would show that no run has shown yet, in one sentence.

        With S symptoms seen, f1 of them in one run and f2 in two, Chao1 (1984) estimates f1 (f1 - 1) / 2 (f2 + 1) more,
        and Good and Turing (1953) estimate that f1 of n further runs show a new one.  Where n runs showed nothing, a
        symptom that shows in more than 1 - 0.05^(1/n) of the runs would have been seen with 95 %.  "" for too few runs.
        """
        runs = [run for run in self.tests if run.code in (AS_EXPECTED, FOUND)]
        often = Counter(len(one.runs) for one in self.found())
        if not often and runs:
            shown = 100 * (1 - 0.05 ** (1 / len(runs)))
            return f"What shows in {shown:.1f} % of such runs or more would have been seen with 95 %."
        if sum(times * count for times, count in often.items()) < INCIDENCES_MIN:
            return ""
        more = often[1] * (often[1] - 1) / (2 * (often[2] + 1))
        unseen, new = 100 * more / (often.total() + more), 100 * often[1] / len(runs)
        return (
            f"About {unseen:.0f} % of the symptoms that these tests can show are unseen (Chao1), and {new:.0f} % of "
            "further runs would show a new one (Good-Turing)."
        )

    def replays_of(self, first: Ended) -> list[Ended]:
        return [run for run in self.runs if run.test.replay and run.test.number == first.test.number]

    def replay_due(self, times: int) -> Planned | None:
        """The next replay of a finding that has fewer than so many."""
        for group in self.found():
            if len(group.replays) < times:
                first = group.runs[0].test
                return Planned(first.number, first.spec, len(group.replays) + 1)
        return None

    def pending(self, specs: Iterable[Spec]) -> Iterator[Planned]:
        """The tests that were not run yet, in order."""
        done = Counter(run.test.spec for run in self.tests)
        number = max((run.test.number for run in self.tests), default=-1)
        for spec in specs:
            if done[spec]:
                done[spec] -= 1
            else:
                number += 1
                yield Planned(number, spec)
