"""Next steps after a run, as commands to copy: after a violation, after an unknown verdict, after a pass.

    results.json + test.json ──next_steps──> what to try, most useful first
                             ──shortfalls──> of an unknown run: wanted, got, and the run that would make up for it

Commands begin in the way this process was started (`harness/started.py`): with make, krucible, or python -m harness.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from checkers.base.results import VACUITY, Criterion, Results, RunVerdict
from checkers.base.verdict import Validity
from checkers.record.header import Header
from harness.plain_words import amount, sentence, shorten
from harness.registry import BACKENDS
from harness.spec import LIMITS, Spec, WrongSpec, beside_of
from harness.started import by_make, program
from harness.story.findings import findings, title_of

_LENGTH_MOST = 600
_SAME_SEED = "Run the same seed again: the same operations, and faults drawn alike; later ones may differ."
_SAME_SEED_SAME_RUN = "Run the same seed again: on virtual time the run is byte for byte the same."

Change = Callable[[Spec], Spec]


@dataclass(frozen=True, slots=True)
class NextStep:
    """words: its purpose. command: to copy. short: the name of the step in one word."""

    words: str
    command: str
    short: str = "again"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One shortfall of a run. wanted, got: in words, "" if a checker gives no number."""

    what: str
    wanted: str
    got: str
    words: str
    command: str


def next_steps(results: Results, header: Header | None, folder: str, *, logs: bool, valid: str = "") -> list[NextStep]:
    """folder: of the run, as its reader types it. logs: the run kept logs in Kafka's format.
    valid: folder of the last valid run of the same test, "" if there is none here.
    """
    rerun = shorten(_rerun(header), _LENGTH_MOST)
    with_run = f"{program()} {{}} {shlex.quote(folder)}"
    spec = header.spec if header is not None else {}
    backend = BACKENDS.get(str(spec.get("backend", "")))
    out: list[NextStep] = []

    def step(words: str, command: str, short: str = "again") -> None:
        out.append(NextStep(words, command, short))

    if findings(results):
        if spec.get("nemesis") != "none":  # without faults there is nothing to replay or to shrink
            words = "Play the same faults on the same roles (the leader of that moment, a follower), five times."
            words += " This says how often the violation comes back."
            step(words, f"{with_run.format('replay')} --times 5", "replay")
            step("Look for the smallest schedule of faults that still fails.", with_run.format("shrink"), "shrink")
        if valid:
            compare = f"{with_run.format('compare')} {shlex.quote(valid)}"
            step("Compare it with the last valid run of its test, up to the first difference.", compare, "compare")
        finds = re.search(r"(?<!\S)find(-\S*)?(?!\S)", rerun) is not None
        if rerun and not finds and backend is not None and not backend.not_kept:
            keep = f"{rerun} {'KEEP=' if rerun.startswith('make ') else '--keep '}on-violation"
            words = "Run it again, and leave the cluster up if it fails: enter the nodes, and release them afterwards"
            step(f"{words} with {program()} release.", keep, "enter")
        if logs:
            step("Compare the logs that the nodes left, without any client.", with_run.format("check-logs"), "logs")
    if rerun:
        step(_SAME_SEED_SAME_RUN if backend is not None and backend.virtual_time else _SAME_SEED, rerun)
        if (other := _another_seed(header)) and results.verdict is RunVerdict.VALID:
            step("Run the next seed: other operations and other faults.", other)
    step("Judge this very run again, from what it left.", with_run.format("analyze"), "judge")
    return out


def shortfalls(results: Results, header: Header | None, folder: str) -> list[Shortfall]:
    """Return the shortfalls of an unknown run, one by one; [] for a run with another verdict, and for a system that
    never became ready: no other run makes up for that, and the first line says what is missing.
    """
    if results.verdict is not RunVerdict.UNKNOWN or results.not_tested:
        return []
    out = []
    for name, checker in results.checkers.items():
        if checker.verdict is not Validity.UNKNOWN:
            continue
        criteria = results.vacuity.criteria if name == VACUITY else ()
        missed = [criterion for criterion in criteria if criterion.demanded and not criterion.met]
        out += [_of_criterion(criterion, header) for criterion in missed]
        if not missed:
            again = f"{program()} analyze {shlex.quote(folder)}"
            reasons = (checker.reason or "it could not decide").split("; ")
            sentences = [sentence(shorten(reason.strip(), _LENGTH_MOST)) for reason in reasons]
            out += [Shortfall(title_of(name, checker), "", "", words, again) for words in sentences]
    if (bug := results.planted) is not None and not bug.found:
        what, words = f"planted bug {shorten(bug.bug, 40)}", "Another seed deals other faults."
        out.append(Shortfall(what, "found", "not found", words, _another_seed(header)))
    return out


def _of_criterion(criterion: Criterion, header: Header | None) -> Shortfall:
    name, value, least = shorten(criterion.name or "?", 80), criterion.value, criterion.least
    words = sentence(shorten(criterion.advice or criterion.words or name))
    remedy = _REMEDIES.get(name, _LONGER)
    if remedy is _SLOWER and "--time-limit" in criterion.advice:
        remedy = _LONGER  # nothing was measured far from faults, so the rate need not be too high
    command = _changed(header, lambda spec: _scaled(spec, remedy))
    if least == 1 and value in (0, 1) and name in YES_OR_NO:
        return Shortfall(name, "yes", "yes" if value else "no", words, command)
    return Shortfall(name, f"at least {figure(name, least)}", figure(name, value), words, command)


YES_OR_NO = {"ran to its end", "harness kept up", "nodes had their CPU"}


def figure(name: str, value: float) -> str:
    """Return the value of a criterion for readers."""
    if name.startswith("share"):
        return f"{100 * value:.0f} %"
    return amount(int(value) if value.is_integer() else value)


_LONGER, _SLOWER, _FEWER_KEYS = {"time_limit_s": 2.0}, {"rate_hz": 0.5}, {"keys": 0.5}
_REMEDIES: Mapping[str, Mapping[str, float]] = {
    "ran to its end": {},
    "elections won under a fault": {"holds": 2.0, **_LONGER},
    "keys with concurrency": _FEWER_KEYS,
    "keys with enough ok writes": _FEWER_KEYS,
    "keys read at the end": {"recovery_limit_s": 2.0},
    "share of the scheduled rate": _SLOWER,
    "harness kept up": _SLOWER,
    "nodes had their CPU": _SLOWER,
    "nodes with a final log": {},
    "nodes with a trace": {},
}
"""Criterion -> factors of fields of the spec that would meet it; for all others a run of twice the length."""


def _scaled(spec: Spec, factors: Mapping[str, float]) -> Spec:
    """Return a spec with some fields multiplied, at least 1, as far as the limits of a spec allow."""
    changes: dict[str, Any] = {}
    for name, factor in factors.items():
        before = getattr(spec, name) or 1.0
        most = LIMITS[name][1] if name in LIMITS else float("inf")
        changes[name] = type(before)(min(max(1, factor * before), most))
    return dataclasses.replace(spec, **changes)


def _changed(header: Header | None, change: Change) -> str:
    """Return the command that runs a test with a change, "" if the run does not contain its spec."""
    if header is None or not header.spec:
        return _rerun(header)
    if (recorded := _spec_of(header)) is None:
        return ""
    spec = change(recorded)
    words = [*spec.words(), *beside_of(header.rerun)]
    by = spec.rerun() if header.rerun.startswith("make ") else f"{program()} {shlex.join(words)}"
    return shorten(by, _LENGTH_MOST)


def _another_seed(header: Header | None) -> str:
    return _changed(header, lambda spec: dataclasses.replace(spec, seed=spec.seed + 1))


def _rerun(header: Header | None) -> str:
    """Return the command that repeats the test, as its user gave it, in the way this process was started."""
    recorded = header.rerun if header is not None else ""
    if recorded.startswith("make "):
        return recorded if by_make() else _changed(header, lambda spec: spec) or recorded
    start = re.search(r"\b(run|find) ", recorded)
    return recorded if start is None else f"{program()} {recorded[start.start() :]}"


def _spec_of(header: Header) -> Spec | None:
    """Return the spec of a run, with the requested backend; None if this version has no such test."""
    given = {"seed": header.seed or 0, **header.spec}
    if "backend" not in header.rerun.lower():
        given.pop("backend", None)  # the run chose the backend, and the next run may choose again
    try:
        return Spec.from_json(given)
    except (WrongSpec, TypeError):
        return None
