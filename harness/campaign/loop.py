"""A campaign: many runs that follow one plan, each in its own process, and their log.

A plan is a value: the tests, the expected result of each test, the number of replays of a finding, the end of the
campaign, and the runs to keep.  The night, the hunts, the findings and the replays are plans (`plans.py`), and this
loop runs all of them:

1. A finding that has fewer replays than the plan wants is replayed.
2. Then the campaign ends if its time is up, or if there is a finding and the plan ends with the first finding.  A run
   that has begun is completed first, and is replayed if it found something.
3. Otherwise the next tests are run, as many at once as the plan allows.

The next step follows from the log alone, so an interrupted campaign can be continued.

*Runs.*  Each test runs in its own process, as if a user had started it.  The child writes the path of its folder into a
file of the campaign, because `results/latest` may belong to another campaign.

The child leads its own session, so Ctrl-C and SIGTERM reach only the campaign.  The campaign forwards the first signal
and waits: the child removes its nodes, keeps its records, and ends.

*Log.*  All runs of a campaign so far, and its findings, in one file that is replaced after every run.

A **symptom** identifies a finding: checker and kind of the violation nearest to the cause, and the kinds of fault that
were injected before the violation showed.  Runs with the same symptom probably show the same bug of the system.  A
**replay** is the same test once more, with the same seed.  It has reproduced the violation if any of its violations has
a checker and kind that the first run saw, because chance decides which consequence of a bug shows first.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from checkers.base.results import NO_RESULTS, RESULTS, Results, read_results
from checkers.base.verdict import EXIT_CODES, HARNESS_FAILED, Validity
from checkers.record.files import write_json_whole
from checkers.record.header_and_outcome import RunOutcome
from checkers.record.run_record import RunRecord, read_object
from harness.plain_words import plural, shorten
from harness.registry import load_subject
from harness.run.conductor import sigterm_as_ctrl_c
from harness.spec import Spec, WrongSpec
from harness.story.findings import violations_by_cause
from harness.story.kinds import name_in_words

OUTPUT, RUNS, LOG, LOCK = "campaign.log", "runs", "campaign.json", ".lock"
FORMAT = 2
FAILED = "harness failed"
"""Verdict of a run that could not be executed or judged.  It proves nothing about the system."""
INCIDENCES_MIN = 4
"""Minimum number of runs with a finding from which the number of unseen symptoms is estimated."""
AS_EXPECTED, FOUND = EXIT_CODES[Validity.VALID], EXIT_CODES[Validity.INVALID]


@dataclass(frozen=True, slots=True)
class Symptom:
    """The symptom of a finding. faults: kinds of fault that were injected, in alphabetical order."""

    checker: str
    kind: str
    faults: tuple[str, ...]

    def words(self) -> str:
        """Return the symptom in words: stale read (linearizability) under kill and partition."""
        return f"{name_in_words(self.kind)} ({self.checker}) under {' and '.join(self.faults) or 'no fault'}"


@dataclass(frozen=True, slots=True)
class Planned:
    """One run to execute.

    number: number of its test, from 0
    replay: number of the replay; 0 for the first run of the test
    """

    number: int
    spec: Spec
    replay: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a run in a campaign.

    code: result as an exit code: 0 as expected, 1 a finding, 2 nothing was proved, 3 not executed or not judged
    words: the reason for the code
    seconds: from the start of the run to its verdict
    violations: (checker, kind), nearest to the cause first
    faults: kinds of fault that were injected before the first of these violations showed
    found_s: seconds of the main phase until a planted bug was found; -1 if none was found
    folder: folder of the run, relative to the folder of the campaign; "" if it was not kept
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
        """Return the symptom; None if the run has no violation."""
        return Symptom(*self.violations[0], self.faults) if self.violations else None

    def to_json(self) -> dict[str, Any]:
        row = asdict(self) | {"test": self.test.spec.to_json(), "rerun": self.test.spec.rerun()}
        return {"number": self.test.number, "replay": self.test.replay, **row}

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Ended:
        """Parse a row of the log.  Raises KeyError or WrongSpec if the row is invalid."""
        test = Planned(row["number"], Spec.from_json(row["test"]), row["replay"])
        pairs = tuple((str(checker), str(kind)) for checker, kind in row["violations"])
        plain = {name: row[name] for name in ("code", "verdict", "words", "seconds", "found_s", "folder")}
        return Ended(test, violations=pairs, faults=tuple(row["faults"]), **plain)


@dataclass(frozen=True, slots=True)
class FoundSymptom:
    """All runs that showed one symptom, except replays; and the replays of the earliest of these runs."""

    symptom: Symptom
    runs: tuple[Ended, ...]
    replays: tuple[Ended, ...]

    @property
    def seen_again(self) -> int:
        return seen_again(self.runs[0].violations, self.replays)

    def words(self) -> str:
        """Return in words how often the symptom was seen."""
        replays = f"{self.seen_again} of {plural(len(self.replays), 'replay')}"
        again = f"seen again in {replays}" if self.replays else "not replayed"
        return f"{again}; {plural(len(self.runs), 'test')} of this campaign saw it"

    def to_json(self) -> dict[str, Any]:
        first, words = self.runs[0], self.symptom.words()
        seen = {"words": words, "tests": [run.test.number for run in self.runs], "replays": len(self.replays)}
        again = {"seen_again": self.seen_again, "folder": first.folder, "rerun": first.test.spec.rerun()}
        return asdict(self.symptom) | seen | again


def seen_again(violations: Iterable[tuple[str, str]], replays: Iterable[Ended]) -> int:
    """Return the number of replays that saw at least one of these violations."""
    first = set(violations)
    return sum(bool(first & set(replay.violations)) for replay in replays)


@dataclass(slots=True)
class CampaignLog:
    """The log of a campaign. identity: a campaign with another identity must not continue in this folder."""

    folder: Path
    identity: Mapping[str, Any]
    runs: list[Ended] = field(default_factory=list)

    @staticmethod
    @contextlib.contextmanager
    def open(folder: Path, identity: Mapping[str, Any], goes_on: bool) -> Iterator[CampaignLog]:
        """Open the log of this folder, and lock out other campaigns until it is closed.  The log is empty unless the
        campaign is continued (`goes_on`).

        Raises BrokenFile, or WrongSpec if another campaign uses or used the folder.
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
        """Return the runs of the log, except runs that were not executed or judged: they are repeated."""
        kept = read_object(self.folder / LOG)
        theirs, mine = kept.get("identity"), json.loads(json.dumps(self.identity))
        if kept.get("format") != FORMAT or theirs != mine:
            raise WrongSpec(
                f"{self.folder} contains another campaign: {theirs or 'of an older format'}; this is {mine}"
            )
        runs = [Ended.from_json(row) for row in kept["runs"]]
        return [run for run in runs if run.code != HARNESS_FAILED]

    def note(self, run: Ended) -> None:
        """Write the log atomically, because a campaign may be killed at any moment."""
        self.runs.append(run)
        found, runs = ([one.to_json() for one in some] for some in (self.found(), self.runs))
        write_json_whole(self.folder / LOG, {"format": FORMAT, "identity": self.identity, "found": found, "runs": runs})

    @property
    def tests(self) -> list[Ended]:
        """Return the first run of every test."""
        return [run for run in self.runs if run.test.replay == 0]

    def found(self) -> list[FoundSymptom]:
        """Return the findings, in the order in which they were found."""
        seen: dict[Symptom, list[Ended]] = {}
        for run in self.tests:
            if run.code == FOUND and run.symptom is not None:
                seen.setdefault(run.symptom, []).append(run)
        return [FoundSymptom(one, tuple(runs), tuple(self.replays_of(runs[0]))) for one, runs in seen.items()]

    def unseen(self) -> str:
        """Estimate in one sentence the share of symptoms that no run has shown yet; "" if there are too few runs.

        With S symptoms seen, f1 of them in one run and f2 in two runs, Chao1 (1984) estimates f1 (f1 - 1) / 2 (f2 + 1)
        unseen symptoms.  Good and Turing (1953) estimate that a share of f1 / n further runs shows a new symptom, after
        n runs.  If n runs showed nothing, a symptom that occurs in more than 1 - 0.05^(1/n) of the runs would have been
        seen with a probability of 95 %.
        """
        runs = [run for run in self.tests if run.code in (AS_EXPECTED, FOUND)]
        often = Counter(len(one.runs) for one in self.found())
        if not often and runs:
            shown = 100 * (1 - 0.05 ** (1 / len(runs)))
            return (
                f"With a probability of 95 %, any symptom that occurs in at least {shown:.1f} % of these runs would "
                "have been seen."
            )
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
        """Return the next replay of a finding that has fewer than `times` replays; None if there is none."""
        group = next((group for group in self.found() if len(group.replays) < times), None)
        return None if group is None else replace(group.runs[0].test, replay=len(group.replays) + 1)

    def pending(self, specs: Iterable[Spec]) -> Iterator[Planned]:
        """Yield the tests that were not run yet, in order."""
        done = Counter(run.test.spec for run in self.tests)
        number = max((run.test.number for run in self.tests), default=-1)
        for spec in specs:
            if done[spec]:
                done[spec] -= 1
            else:
                number += 1
                yield Planned(number, spec)


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan of a campaign.

    name: name of the campaign
    words: description of its runs, in one sentence
    tests: specs in order, possibly endless
    identity: a campaign with another identity must not continue in its folder
    goes_on: True to continue the campaign in the folder
    expects_bugs: True if a planted bug or a known finding must be found; False if every violation is a finding
    every_run: True if each run must end as expected; False if one valid run is enough
    falsifies: True if checkers must also detect every falsified row of a run without planted bug
    minutes: time after which no test begins
    replays: number of replays of each finding
    ends_with_finding: True to end the campaign after the first finding
    keeps_all: True to keep the folders of all runs, False to keep only runs that found something or failed
    failures_max: number of failed runs in a row that ends the campaign, because the next run would fail as well
    at_once: number of tests that are passed to `run` together
    """

    name: str
    words: str
    tests: Iterable[Spec]
    identity: Mapping[str, Any] = field(default_factory=dict)
    goes_on: bool = True
    expects_bugs: bool = True
    every_run: bool = True
    falsifies: bool = False
    minutes: float = math.inf
    replays: int = 0
    ends_with_finding: bool = False
    keeps_all: bool = True
    failures_max: float = math.inf
    at_once: int = 1


Run = Callable[[Plan, Sequence[Planned], Path], Iterable[Ended]]
"""Executes runs of a plan, and yields their results in any order.  The path is the folder of the campaign."""


def campaign(plan: Plan, log: CampaignLog, say: Callable[[str], None], run: Run | None = None) -> int:
    """Execute the plan, add every run to the log, and return the exit code.

    say: prints one line of progress
    run: executes the runs; by default one after another, each in its own process

    Raises KeyboardInterrupt after the current run has cleaned up; that run is not added to the log.
    """
    began_s, failed, make = time.monotonic(), 0, run or one_after_another
    pending = log.pending(plan.tests)
    while failed < plan.failures_max:
        left_s = plan.minutes * 60 - (time.monotonic() - began_s)
        tests = next_tests(plan, log, pending, left_s > 0)
        if not tests:
            return exit_code(plan, log)
        for ended in make(plan, tests, log.folder):
            log.note(ended)
            failed = failed + 1 if ended.code == HARNESS_FAILED else 0
            say(_progress(plan, log, ended, left_s - ended.seconds))
    return HARNESS_FAILED


def next_tests(plan: Plan, log: CampaignLog, pending: Iterable[Planned], time_left: bool) -> list[Planned]:
    """Return the tests to run next; [] if the campaign is over."""
    if (replay := log.replay_due(plan.replays)) is not None:
        return [replay]
    if not time_left or (plan.ends_with_finding and log.found()):
        return []
    return list(itertools.islice(pending, plan.at_once))


def exit_code(plan: Plan, log: CampaignLog) -> int:
    """Return the exit code of a campaign.

    1 if there is a finding.  Otherwise, if every run counts: 3 if a run failed, 2 if a run proved nothing, else 0.
    If one valid run is enough: 0 if there is one, 2 if no run tested enough, 3 if all runs failed or there was none.
    """
    codes, unknown = {run.code for run in tests_of(plan, log)}, EXIT_CODES[Validity.UNKNOWN]
    worst_last = (AS_EXPECTED, unknown, HARNESS_FAILED)
    order = (FOUND, *(reversed(worst_last) if plan.every_run else worst_last))
    return next((code for code in order if code in codes), HARNESS_FAILED)


def tests_of(plan: Plan, log: CampaignLog) -> list[Ended]:
    """Return the first run of each test of this plan.  The folder may also contain tests of an earlier plan."""
    if not isinstance(plan.tests, Collection):
        return log.tests
    wanted = set(plan.tests)
    return [run for run in log.tests if run.test.spec in wanted]


def one_after_another(plan: Plan, tests: Sequence[Planned], folder: Path) -> Iterable[Ended]:
    """Run each test in its own process, as if a user had started it."""
    for test in tests:
        child = run_child(test.spec.words(), folder / RUNS, folder / OUTPUT)
        ended = became(plan, test, child, folder)
        if child.folder is not None and not plan.keeps_all and ended.verdict in (Validity.VALID, Validity.UNKNOWN):
            shutil.rmtree(child.folder)
            ended = replace(ended, folder="")
        yield ended


def became(plan: Plan, test: Planned, child: ChildRun, folder: Path) -> Ended:
    """Return the result of a test's run. folder: folder of the campaign."""
    where = str(child.folder.relative_to(folder.resolve())) if child.folder else ""
    if child.judged is None:
        reason = f"the run could not be made or judged (exit code {child.exit_code}); see {OUTPUT}"
        return Ended(test, HARNESS_FAILED, FAILED, reason, round(child.seconds, 1), folder=where)
    results = read_results(child.judged) or NO_RESULTS
    violations = violations_by_cause(results)
    faults = _injected(child.judged, violations[0].moment_ns if violations else -1)
    code, words, found_s = _counts_as(plan, test.spec, child, results)
    verdict, seconds = str(results.verdict), round(child.seconds, 1)
    return Ended(test, code, verdict, words, seconds, violations_in(results), faults, found_s, where)


def violations_in(results: Results) -> tuple[tuple[str, str], ...]:
    """Return (checker, kind) of all violations in results.json, nearest to the cause first."""
    pairs = [(violation.checker, violation.kind) for violation in violations_by_cause(results)]
    return tuple(dict.fromkeys(pairs or [(name, "violation") for name in results.invalid]))  # if none kept evidence


def _counts_as(plan: Plan, spec: Spec, child: ChildRun, results: Results) -> tuple[int, str, float]:
    """Return the code of a judged run, the reason for it, and the seconds until its planted bug was found."""
    if plan.expects_bugs and spec.bug:
        planted, run = results.planted, child.folder
        if planted is None or not planted.found or run is None:
            return EXIT_CODES[Validity.UNKNOWN], planted.reason if planted is not None else "", -1.0
        found_s = seconds_to_find(load_subject(spec).bugs[spec.bug].found_by, RunRecord(run))
        return AS_EXPECTED, results.words, found_s
    if plan.expects_bugs and spec.finding:
        return child.exit_code, results.words, -1.0
    code = HARNESS_FAILED if results.exit_code is None else results.exit_code
    if plan.falsifies and code == AS_EXPECTED and child.folder is not None:
        from harness.judge.judge_run import falsify

        if unnoticed := [mutant.name for mutant in falsify(child.folder) if not mutant.noticed]:
            return FOUND, f"falsified rows that no checker noticed: {', '.join(unnoticed)}", -1.0
    return code, results.words, -1.0


def seconds_to_find(checker: str, record: RunRecord) -> float:
    """Return the seconds from the beginning of the main phase until this checker has found the planted bug.  This is
    the time of the violation if an online check found it; otherwise the end of the last phase, because the sealed run
    is judged then.  Raises BrokenFile.
    """
    header, outcome = record.header, record.outcome or RunOutcome()
    began_ns = header.main_began_ns if header is not None else 0
    findings = outcome.online.findings if outcome.online is not None else ()
    found_ns = [violation.time_ns for violation in findings if violation.checker == checker]
    ends = [phase.end_ns for phase in outcome.phases]
    return round((min(found_ns) if found_ns else max(ends, default=began_ns)) / 1e9 - began_ns / 1e9, 1)


def _injected(run: Path, until_ns: int) -> tuple[str, ...]:
    """Return the kinds of fault that were injected before the violation showed. until_ns: -1 for the whole run."""
    done = (fault for fault in RunRecord(run).faults if fault.carried_out)
    return tuple(sorted({fault.kind for fault in done if until_ns < 0 or fault.injected_ns <= until_ns}))


def title(spec: Spec) -> str:
    rate = f"{spec.rate_hz:g}/s" if spec.rate_hz else "full rate"
    return f"{what(spec)}, {plural(spec.nodes, 'node')}, {rate}, seed {spec.seed}"


def what(spec: Spec) -> str:
    """Return a description of a run that is the same for all seeds."""
    if spec.finding:
        return spec.finding + (" without what breaks it" if spec.clean else "")
    bug = f" with {spec.bug}" if spec.bug else ""
    return f"{spec.test} {Path(spec.subject).name} {spec.workload}{bug}"


def _progress(plan: Plan, log: CampaignLog, run: Ended, left_s: float) -> str:
    test, parts, end = run.test, [f"{run.seconds:.0f} s"], run.verdict
    place = f"{test.number + 1}/{len(plan.tests)}" if isinstance(plan.tests, Collection) else f"{test.number + 1}"
    name = f"replay {test.replay} of test {place}" if test.replay else f"test {place}: {title(test.spec)}"
    if run.found_s >= 0:
        parts.insert(0, f"found after {run.found_s:.0f} s")
    if plan.minutes < math.inf:
        parts += [f"{max(left_s, 0) / 60:.0f} min left", f"{len(log.found())} found"]
    if plan.every_run:
        end += ", as expected" if run.code == AS_EXPECTED else ", NOT AS EXPECTED"
    why = run.symptom.words() if run.code == FOUND and run.symptom else run.words.removeprefix("Unknown: ")
    return f"{name}: {end}{f': {shorten(why)}' if run.code != AS_EXPECTED else ''} ({'; '.join(parts)})"


@dataclass(frozen=True, slots=True)
class ChildRun:
    """Result of a child process.

    folder: folder of its run; None if it created none
    seconds: from its start to its end
    """

    exit_code: int
    folder: Path | None
    seconds: float

    @property
    def judged(self) -> Path | None:
        """Return the folder if the run in it was judged, else None."""
        return self.folder if self.folder is not None and (self.folder / RESULTS).exists() else None


def run_child(words: Sequence[str], results: Path, output: Path) -> ChildRun:
    """Run `python -m harness WORDS --results RESULTS` and wait for its end. output: file to which its output is
    appended.

    Raises KeyboardInterrupt after the child has cleaned up.
    """
    began_s, note = time.monotonic(), output.with_name(f".folder-for-{os.getpid()}")
    note.unlink(missing_ok=True)
    try:
        with output.open("ab") as log:
            options = ["--results", str(results), "--note-folder", str(note)]
            code = _run([sys.executable, "-P", "-m", "harness", *words, *options], log)
        folder = Path(note.read_text()) if note.exists() else None
    finally:
        note.unlink(missing_ok=True)
    return ChildRun(code, folder, time.monotonic() - began_s)


def _run(command: Sequence[str], log: IO[bytes]) -> int:
    with sigterm_as_ctrl_c():
        child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            raise
        finally:
            if child.poll() is None:  # Ctrl-C was pressed again while the child cleaned up
                child.kill()
                child.wait()
