"""The plans of campaigns, as values: the night, a hunt, a hunt for planted bugs, the known findings, and replays.

A hunt draws random tests of one system: workload, kinds of fault, number of clients, seed.  Test number i of a hunt
follows from the hunt's seed and i alone, so an interrupted hunt continues with the tests that it would have run.
Workloads and kinds of fault are dealt like cards, without replacement: n tests use each of n names once.  Everything
else is drawn independently.

*Two sides.*  One test is run alternately with its own settings and with changed ones.

*Ledger.*  For each known finding, the runs that reproduced it, and the valid runs of its counterpart without the
violation, with revision and duration in seconds.  Each such run is called a try.

`find` adds every try to TRIES of its results folder.  `findings` runs all findings and copies their tries to
FINDINGS_LEDGER.  `docs/ledgers.py` makes tables of the ledger; a row counts the tries of the last revision on which its
finding was run.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from checkers.base.results import NO_RESULTS, read_results
from checkers.record.header_and_outcome import Revision
from checkers.record.run_record import RunRecord, read_object
from harness.campaign.loop import Ended, Plan
from harness.plain_words import listed, plural
from harness.real_systems import CLEAN_RUNS, FINDINGS, spec_of
from harness.registry import load_subject, offered_workloads
from harness.run.refused_before_start import check_spec, why_not, with_every_kind
from harness.spec import Spec, WrongSpec
from nemesis.kinds import EVERY, KINDS, NONE

PARTS = ("canary", "clean", "peer", "bugs")
NODES = (5, 4, 3)
"""Sizes of the clusters without planted bug, seed by seed.  Even sizes matter: their majority is one more than half."""
OTHER_RATE_HZ = 50.0
"""Operations per second for workloads over objects that are larger than registers."""
FAILURES_MAX = 3


def night(
    seeds: Sequence[int], parts: Sequence[str], base: Spec, kinds: Sequence[str] = (), bugs: Sequence[str] = ()
) -> Plan:
    """Return the plan of every test and every planted bug over several seeds.

    parts: parts of the night, of PARTS
    base: common part of all tests
    kinds: for a short night, only tests with one of these kinds of fault; empty for all
    bugs: for a short night, only these planted bugs of kraft; empty for all

    The canary runs whenever `parts` contains it, because it shows that the harness can fail.  A run without planted bug
    must be valid, and every falsified row of it must be detected (`checkers.judging`).  A planted bug counts as found
    only if the checker meant for it found it, with a witness of the planted mechanism.
    """
    words = "Every test and every planted bug.  A clean system must be valid, and a planted bug must be found."
    if kinds or bugs:
        words = f"A short night: only {listed([*kinds, *bugs])}.  " + words.partition(".  ")[2]
    tests = [spec for spec in _tests_of_night(seeds, parts, base) if _in_short_night(spec, kinds, bugs)]
    return Plan("nightly", words, tests, falsifies=True, goes_on=False)


def _in_short_night(spec: Spec, kinds: Sequence[str], bugs: Sequence[str]) -> bool:
    if spec.subject == "canary":
        return True
    return (spec.bug in bugs or not bugs) if spec.bug else (spec.nemesis in kinds or not kinds)


def _tests_of_night(seeds: Sequence[int], parts: Sequence[str], base: Spec) -> Iterator[Spec]:
    """Yield the tests seed by seed.  A system without planted bug is tested with every kind of fault that the system
    and
    the backend support: each kind alone, then all at once.  Other workloads are tested with one kind each, which
    changes with the seed.
    """
    systems = {"clean": "kraft", "peer": "etcd"}
    every = {
        system: with_every_kind(replace(base, subject=system, nemesis=EVERY))[0].nemesis
        for part, system in systems.items()
        if part in parts
    }
    for seed in seeds:
        if "canary" in parts:
            canary = Spec(subject="canary", nemesis="none", seed=seed, time_limit_s=5.0, rate_hz=2000.0)
            yield canary
            for name, bug in load_subject("canary").bugs.items():
                yield replace(canary, bug=name, workload=bug.workloads[0])
        for system, kinds in every.items():
            one = replace(base, subject=system, seed=seed, nodes=NODES[seed % len(NODES)])
            for nemesis in dict.fromkeys((*kinds.split(","), kinds)):
                yield replace(one, nemesis=nemesis)
            yield from _other_workloads(replace(one, rate_hz=OTHER_RATE_HZ), kinds.split(","))
        if "bugs" in parts:
            yield from _with_bugs(replace(base, subject="kraft", seed=seed))


def _other_workloads(one: Spec, kinds: Sequence[str]) -> Iterator[Spec]:
    for number, workload in enumerate(offered_workloads(load_subject(one.subject))):
        if workload != Spec().workload:
            yield replace(one, workload=workload, nemesis=kinds[(number + one.seed) % len(kinds)])


def _with_bugs(one: Spec, names: Sequence[str] = (), nemesis: str = "") -> Iterator[Spec]:
    """Yield one run for each planted bug that a run on nodes can show.

    names: only these bugs; empty for all
    nemesis: used instead of the bug's own nemesis
    """
    for name, bug in load_subject(one.subject).bugs.items():
        shown_by = nemesis or next((each for each in bug.shown_by if KINDS.keys() >= set(each.split(","))), "")
        if bug.in_containers and shown_by and name in (names or (name,)):
            yield replace(one, bug=name, nemesis=shown_by, workload=bug.workloads[0])


def hunt_for_bugs(names: Sequence[str], seeds: Iterable[int], base: Spec, nemesis: str = "") -> Plan:
    """Return the plan of every planted bug of a subject, each with a nemesis that can show it, seed by seed.

    names: empty for all bugs
    nemesis: used instead of the nemesis that the subject declares for a bug

    Raises WrongSpec for a bug that cannot be hunted.
    """
    known = load_subject(base.subject).bugs
    for name in names:
        if name not in known or not known[name].in_containers:
            raise WrongSpec(f"subject {base.subject} has no planted bug {name!r} that a run on nodes can show")
    tests = [spec for seed in seeds for spec in _with_bugs(replace(base, seed=seed), names, nemesis)]
    return Plan("hunt for planted bugs", "Every planted bug with a nemesis that can show it.", tests)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The endless sequence of random tests of a hunt."""

    choices: Choices
    seed: int

    def __iter__(self) -> Iterator[Spec]:
        return (draw(self.choices, self.seed, number) for number in itertools.count())


def hunt(choices: Choices, seed: int, minutes: float, replays: int, keeps_on: bool) -> Plan:
    """Return the plan of random tests of one system until something is found or the time is up.

    keeps_on: True to continue after a finding
    """
    return Plan(
        "hunt",
        "Random tests over one system.  A hunt that finds nothing proves little.",
        _Drawn(choices, seed),
        {"subject": choices.base.subject, "seed": seed},
        expects_bugs=False,
        every_run=False,
        minutes=minutes,
        replays=replays,
        ends_with_finding=not keeps_on,
        keeps_all=False,
        failures_max=FAILURES_MAX,
    )


def findings(names: Sequence[str], seeds: Sequence[int], backend: str) -> Plan:
    """Return the plan that runs each finding and its counterpart, or a test without planted bug, once for each seed."""
    ways = [(name, clean) for name in names for clean in _ways(name)]
    tests = [spec_of(name, seed, backend, clean) for name, clean in ways for seed in seeds]
    words = "Every known finding must be seen again, and its counterpart and the clean runs must be valid."
    return Plan("findings", words, tests, goes_on=False)


def _ways(name: str) -> tuple[bool, ...]:
    if name in CLEAN_RUNS:
        return (True,)
    return (False, True) if FINDINGS[name].clean is not None else (False,)


def replays(spec: Spec, times: int, run: Path) -> Plan:
    """Return the plan that repeats a test `times` times.  run: folder of the run that is replayed."""
    words = f"The run in {run} again, with its own seed."
    return Plan(
        "replay", words, [spec] * times, goes_on=False, expects_bugs=False, every_run=False, failures_max=FAILURES_MAX
    )


CONCURRENCIES = (8, 10, 16, 24)
KEYS = (1, 2, 5, 10)
OP_TIMEOUTS_S = (0.7, 2.0, 5.0)
MORE_KINDS = (0, 0, 1, 1, 2)
"""Numbers of kinds of fault that may be combined with the dealt kind; all entries are equally likely."""
SEEDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Choices:
    """Alternatives from which a hunt draws.

    base: common part of all tests
    kinds: kinds of fault, NONE among them
    left_out: (kind of fault that cannot be used here, reason)
    """

    base: Spec
    workloads: tuple[str, ...]
    kinds: tuple[str, ...]
    nodes: tuple[int, ...]
    rates_hz: tuple[float, ...]
    left_out: tuple[tuple[str, str], ...] = ()


def choices(
    base: Spec, workloads: Sequence[str], kinds: Sequence[str], nodes: Sequence[int], rates_hz: Sequence[float]
) -> Choices:
    """Return the alternatives for this system on this backend.

    base: its backend must be a specific name, not "auto"
    workloads, kinds: () for all that fit

    Raises WrongSpec if nothing fits, or if one of the names does not fit.
    """
    usable = tuple(name for name in workloads or offered_workloads(load_subject(base.subject)) if _fits(base, name))
    if not usable:
        raise WrongSpec(f"there is no workload with which {base.subject} can be hunted")
    first = replace(base, workload=usable[0])
    whys = {
        kind: next(filter(None, (why_not(replace(first, nodes=count), kind) for count in nodes)), "")
        for kind in kinds or (NONE, *KINDS)
    }
    left_out = [(kind, why) for kind, why in whys.items() if why]
    fitting = [kind for kind, why in whys.items() if not why]
    if left_out and kinds:
        raise WrongSpec(f"nemesis {left_out[0][0]} cannot be used here: {left_out[0][1]}")
    for name in workloads:
        check_spec(replace(base, workload=name, nemesis=fitting[0], nodes=nodes[0]))
    return Choices(base, usable, tuple(fitting), tuple(nodes), tuple(rates_hz), tuple(left_out))


def draw(choices: Choices, seed: int, number: int) -> Spec:
    """Return test `number` of the hunt with this seed; numbers begin with 0."""
    rng = Random(f"{seed}/{number}")
    kind, others = dealt(choices.kinds, seed, "kinds", number), [k for k in choices.kinds if k != NONE]
    nemesis = [kind]
    if kind != NONE:
        others.remove(kind)
        nemesis += rng.sample(others, min(rng.choice(MORE_KINDS), len(others)))
    return replace(
        choices.base,
        workload=dealt(choices.workloads, seed, "workloads", number),
        nemesis=",".join(nemesis),
        nodes=rng.choice(choices.nodes),
        rate_hz=rng.choice(choices.rates_hz),
        concurrency=rng.choice(CONCURRENCIES),
        keys=rng.choice(KEYS),
        op_timeout_s=rng.choice(OP_TIMEOUTS_S),
        seed=rng.randrange(SEEDS),
    )


def dealt(names: Sequence[str], seed: int, stream: str, number: int) -> str:
    """Return the card with this number from a deck that is shuffled again whenever it is used up."""
    turn, place = divmod(number, len(names))
    return Random(f"{seed}/{stream}/{turn}").sample(names, len(names))[place]


def _fits(base: Spec, workload: str) -> bool:
    """Return True if the workload can be used with the planted bug of this hunt; without a bug, every workload can."""
    bug = load_subject(base.subject).bugs.get(base.bug or "")
    return bug is None or workload in bug.workloads


WHOLE_RUN = "the run"


@dataclass(frozen=True, slots=True)
class TwoSides:
    """One test with its own settings, and with changed ones.  Both get the same seed, and so the same faults.

    one, other: their specs, which differ only in `set`
    """

    one: Spec
    other: Spec

    @staticmethod
    def of(spec: Spec, settings: str) -> TwoSides:
        """Return a spec, and the same spec with some changed settings.

        settings: NAME=VALUE, separated by commas, as in `--set`

        Raises WrongSpec if the settings change nothing.
        """
        plain = replace(spec, finding=None, clean=False)  # the finding is known for its own settings only
        merged = {**plain.settings, **replace(plain, set=settings).settings}
        if merged == plain.settings:
            raise WrongSpec(f"--against {settings!r:.60} changes nothing: name a setting that the run did not have")
        return TwoSides(plain, replace(plain, set=",".join(f"{name}={value}" for name, value in merged.items())))

    def in_turn(self, times: int) -> list[Spec]:
        """Return the tests in alternating order, so that changes of the machine's load affect both sides equally."""
        return [self.one, self.other] * times

    def differs(self) -> str:
        """Return the settings that differ, in one line."""
        one, other = self.one.settings, self.other.settings
        named = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
        words = [f"{name} {one.get(name, 'as usual')} | {other.get(name, 'as usual')}" for name in named]
        return f"differs: {', '.join(words)}; all else is equal, including seed {self.one.seed}"

    def table(self, runs: Sequence[Ended], folder: Path) -> list[str]:
        """Return the verdicts of both sides as lines: of the whole run, and of each checker that was not always valid.

        runs: all runs of both sides
        folder: folder of their campaign
        """
        counts = [_counts([run for run in runs if run.test.spec == side], folder) for side in (self.one, self.other)]
        names = [name for name in dict.fromkeys(name for each in counts for name in each) if _tells(counts, name)]
        rows = [("", "A", "B"), *((name, *(_in_words(each.get(name, Counter())) for each in counts)) for name in names)]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _counts(runs: Sequence[Ended], folder: Path) -> dict[str, Counter[str]]:
    """Return the number of each verdict, for WHOLE_RUN and for each checker."""
    counts = {WHOLE_RUN: Counter(run.verdict for run in runs)}
    for run in runs:
        results = (read_results(folder / run.folder) if run.folder else None) or NO_RESULTS
        for name, checker in results.checkers.items():
            counts.setdefault(name, Counter())[checker.verdict] += 1
    return counts


def _tells(counts: Sequence[dict[str, Counter[str]]], name: str) -> bool:
    return name == WHOLE_RUN or any(set(each.get(name, ())) - {"valid", "not applicable"} for each in counts)


def _in_words(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) or plural(0, "run")


# The ledger of findings

TRIES = "findings.jsonl"
FINDINGS_LEDGER = Path(__file__).resolve().parents[2] / "docs" / "findings-ledger.json"
REVISION_LENGTH = 7


@dataclass(frozen=True, slots=True)
class Try:
    """A run of a finding or of its counterpart.

    finding: name of the finding, or of a run without planted bug
    clean: True for a run without planted bug and for the counterpart of a finding
    as_expected: True if the finding was reproduced, or if the clean run was valid
    verdict: verdict of the run; an invalid clean run is a false alarm, an unknown one tested too little
    seconds: from the command to the verdict
    revision: revision of this repository, followed by `+` if files were changed
    """

    finding: str
    clean: bool
    as_expected: bool
    verdict: str
    seconds: float
    revision: str


def note(results: Path, name: str, clean: bool, as_expected: bool, seconds: float, run_folder: Path) -> None:
    """Add a try to TRIES of a results folder. run_folder: folder of its run, which contains revision and verdict."""
    header = RunRecord(run_folder).header
    git = header.git if header is not None else Revision()
    verdict = str((read_results(run_folder) or NO_RESULTS).verdict)
    revision = git.revision[:REVISION_LENGTH] + ("+" if git.dirty else "")
    with (results / TRIES).open("a") as file:
        file.write(json.dumps(asdict(Try(name, clean, as_expected, verdict, round(seconds, 1), revision))) + "\n")


def tries_in(results: Path) -> list[Try]:
    """Return the tries that `note` wrote into this folder, in order; [] if there is no such file."""
    path = results / TRIES
    return [Try(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def last_of(tries: Iterable[Try]) -> list[Try]:
    """Return, for each finding and counterpart, the tries of the last revision on which it was run."""
    kept: dict[tuple[str, bool], list[Try]] = {}
    for one in tries:
        before = kept.setdefault((one.finding, one.clean), [])
        before[:] = [*(each for each in before if each.revision == one.revision), one]
    return [one for several in kept.values() for one in several]


def read_findings(path: Path = FINDINGS_LEDGER) -> list[Try]:
    """Read the ledger of findings.  Raises BrokenFile if the file is no ledger."""
    return [Try(**row) for row in read_object(path)["tries"]] if path.exists() else []


def take_over_tries(results: Path, path: Path = FINDINGS_LEDGER) -> list[Try]:
    """Add the tries of a results folder to the ledger; return the whole content of the ledger.

    Outside of the repository, the ledger is in the results folder.
    """
    path = path if path.parent.exists() else results / FINDINGS_LEDGER.name
    known = read_findings(path)
    every = last_of([*known, *(one for one in tries_in(results) if one not in known)])
    lines = ",\n".join("  " + json.dumps(asdict(one)) for one in every)
    path.write_text('{"tries": [\n' + lines + "\n]}\n")
    return every
