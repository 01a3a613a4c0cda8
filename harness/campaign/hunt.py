"""A hunt: random tests over one system until something is found or the time is up, and replays of what was found.

The steps follow from what was run so far, so a hunt that was broken off goes on where it stood:

1. What was found and has fewer replays than wanted is replayed.
2. Then the hunt ends, if something was found and it was not ordered to go on.
3. Then the hunt ends, if its time is up.  A run that has begun goes on to its end, and is replayed if it found
   something.
4. Otherwise the next random test is run.

Only runs that found something, or that failed, are kept; of all others one row stays, with the command that runs the
test again.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checkers.base.verdict import EXIT_CODES, HARNESS_FAILED, Validity
from harness.campaign.child_run import run_child
from harness.campaign.hunt_log import HARNESS_FAILED as FAILED
from harness.campaign.hunt_log import HuntLog, became
from harness.campaign.random_tests import Choices, draw
from harness.campaign.signatures import HuntRun
from harness.plain_words import plural, shorten
from harness.spec import Spec

OUTPUT = "hunt.log"
FAILED_MAX = 3
"""After so many runs in a row that could not be made or judged the hunt ends: the next one would fail as well."""


@dataclass(frozen=True, slots=True)
class Limits:
    """times: replays of each finding.  keep_on: go on after something was found."""

    minutes: float
    times: int
    keep_on: bool = False


@dataclass(frozen=True, slots=True)
class NextRun:
    number: int
    replay: int
    spec: Spec


def hunt(choices: Choices, log: HuntLog, limits: Limits, say: Callable[[str], None]) -> int:
    """Run tests and note them in the log; the exit code of the hunt.  say: prints one line of progress.

    Raises KeyboardInterrupt after the run that was going on has cleaned up; that run is not noted.
    """
    began_s, failed = time.monotonic(), 0
    while failed < FAILED_MAX:
        left_s = limits.minutes * 60 - (time.monotonic() - began_s)
        step = next_run(choices, log, limits, left_s > 0)
        if step is None:
            return exit_code(log)
        run = _run(step, log)
        failed = failed + 1 if run.verdict == FAILED else 0
        say(_progress(run, log, left_s - run.seconds))
    return HARNESS_FAILED


def next_run(choices: Choices, log: HuntLog, limits: Limits, time_left: bool) -> NextRun | None:
    """What to run next; None if the hunt is over."""
    groups = log.groups()
    for group in groups:
        if len(group.replays) < limits.times:
            first = group.runs[0]
            return NextRun(first.number, len(group.replays) + 1, first.spec)
    if (groups and not limits.keep_on) or not time_left:
        return None
    number = len(log.tests)
    return NextRun(number, 0, draw(choices, log.seed, number))


def exit_code(log: HuntLog) -> int:
    """As of one run: 1 if something was found; else 0 if some run was a real test, 2 if none was, 3 if all failed."""
    verdicts = {run.verdict for run in log.tests}
    seen = [validity for validity in (Validity.INVALID, Validity.VALID, Validity.UNKNOWN) if validity in verdicts]
    return EXIT_CODES[seen[0]] if seen else HARNESS_FAILED


def command_of(spec: Spec) -> list[str]:
    """The arguments of `python -m harness` that run this test."""
    options = {
        "subject": spec.subject,
        "workload": spec.workload,
        "nemesis": spec.nemesis,
        "backend": spec.backend,
        "nodes": spec.nodes,
        "time-limit": f"{spec.time_limit_s:g}",
        "rate": f"{spec.rate_hz:g}",
        "concurrency": spec.concurrency,
        "op-timeout": f"{spec.op_timeout_s:g}",
        "recovery-limit": f"{spec.recovery_limit_s:g}",
        "keys": spec.keys,
        "seed": spec.seed,
    } | ({"bug": spec.bug} if spec.bug else {})
    return ["run", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def summary(log: HuntLog) -> list[str]:
    """The hunt in a few lines: what was run, and what was found."""
    verdicts = Counter(run.verdict for run in log.tests)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())) or "none"
    lines = [f"{plural(len(log.tests), 'test')} of {Path(log.subject).name}: {counts}"]
    for group in log.groups():
        first = group.runs[0]
        lines += [f"found: {group.signature.words()}", f"  {first.summary}", f"  {group.words()}"]
        lines += [f"  report: {log.folder / first.folder / 'report.html'}", f"  again:  {first.rerun}"]
        lines += [f"  smaller: python -m harness shrink {log.folder / first.folder}"] if first.faults else []
    return lines if log.groups() else [*lines, "nothing was found, which proves little"]


def _run(step: NextRun, log: HuntLog) -> HuntRun:
    child = run_child(command_of(step.spec), log.folder / "runs", log.folder / OUTPUT)
    run = became(step.spec, step.number, step.replay, child, log.folder)
    if child.folder is not None and run.verdict in ("valid", "unknown"):
        shutil.rmtree(child.folder)
        run = run.without_folder()
    log.note(run)
    return run


def _progress(run: HuntRun, log: HuntLog, left_s: float) -> str:
    what = f"replay {run.replay} of test {run.number + 1}" if run.replay else f"test {run.number + 1}: {run.title()}"
    why = run.signature.words() if run.signature else run.summary.removeprefix("Unknown: ")
    found = "" if run.verdict == Validity.VALID else f": {shorten(why)}"
    left = f"{max(left_s, 0) / 60:.0f} min left, {len(log.groups())} found"
    return f"{what}: {run.verdict}{found} ({run.seconds:.0f} s; {left})"
