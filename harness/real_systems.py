"""Runs of real systems: known findings, their counterparts, and clean runs; and the story of each run.

Each run is a table in `real_systems.toml` beside this file.  A finding is reproduced if its checker is invalid, with a
witness of one of the finding's kinds; another violation is another finding.  The counterpart of a finding has the same
faults and a configuration in which the system keeps the promise.  There the harness must find nothing, which shows that
the configuration causes the finding.  A clean run has no finding, and shows that the harness raises no false alarm.
The story of a run tells whether it ended as expected.  It is shown in results.json (under `finding`), in the report and
on the terminal, and changes no verdict.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from checkers.base.results import FindingStory, Results, RunVerdict
from checkers.base.verdict import Witness
from harness.spec import Spec, WrongSpec, unknown_name
from harness.story.kinds import name_in_words

_TREE = Path(__file__).resolve().parents[1]
EXAMPLES = next(path for path in (_TREE / "examples", _TREE / "krucible" / "examples") if path.exists())
"""Folder of the examples: at the top of a source tree, or inside the package `krucible` of a wheel."""


@dataclass(frozen=True, slots=True)
class Clean:
    """The counterpart of a finding.  Fields other than `words` replace those of the finding.

    words: the difference from the finding
    schedule: contains the cards of the finding's schedule, and more.  A system that survives the finding's faults must
        still work under a fault, or the run is no real test of the system.
    """

    words: str = ""
    file: str = ""
    workload: str = ""
    schedule: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRun:
    """A run of a system that keeps its promise.

    file: file in EXAMPLES, with a class after a colon if it defines several systems; "" for a bundled `subject`
    workload: name of a workload, or file in EXAMPLES
    schedule: file in EXAMPLES; "" generates the schedule by `nemesis`
    """

    system: str
    configuration: str
    workload: str
    nemesis: str
    file: str = ""
    subject: str = ""
    schedule: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, name: str, seed: int, backend: str, clean: bool, other: Clean = Clean()) -> Spec:
        """Return the spec of the run with this name.

        other: replacements for the counterpart of a finding"""
        workload, schedule = other.workload or self.workload, other.schedule or self.schedule
        return Spec(
            subject=self.subject or str(EXAMPLES / (other.file or self.file)),
            workload=str(EXAMPLES / workload) if workload.endswith(".py") else workload,
            nemesis=self.nemesis,
            schedule=str(EXAMPLES / schedule) if schedule else None,
            backend=backend,
            seed=seed,
            finding=name,
            clean=clean,
            **{**self.options, **other.options},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFinding(CleanRun):
    """A run that reproduces a finding.

    checker: name of the checker that finds it
    summary: the finding in a few words
    words: effect of the finding on a user's data, with {names} of numbers in `looked_at`
    published: where the finding was published
    kinds: kinds of witnesses that show the finding; empty for all kinds
    missing: name of a number in `looked_at` that must not be 0, if the kind of a witness does not suffice
    says: text that the summary of the witness must contain, if the kind does not suffice
    complaint: (text in a server's log that also shows the finding, what the server has detected), or ("", "")
    bug: planted bug, if the system's controllers are bundled; "" for a finding in a real system
    clean: the counterpart, or None
    """

    checker: str
    summary: str
    words: str
    published: str
    kinds: tuple[str, ...] = ()
    missing: str = ""
    says: str = ""
    complaint: tuple[str, ...] = ("", "")
    bug: str = ""
    clean: Clean | None = None

    def spec(self, name: str, seed: int, backend: str, clean: bool, other: Clean = Clean()) -> Spec:
        """Return the spec of the run with this name.  The counterpart of a planted bug has the same faults and no
        bug."""
        return replace(CleanRun.spec(self, name, seed, backend, clean, other), bug=None if clean else self.bug or None)


_TABLES = tomllib.loads(Path(__file__).with_name("real_systems.toml").read_text(encoding="utf-8"))


def _finding(entry: Mapping[str, Any]) -> KnownFinding:
    lists = {name: tuple(entry[name]) for name in ("kinds", "complaint") if name in entry}
    clean = Clean(**entry["clean"]) if "clean" in entry else None
    return KnownFinding(**{**entry, **lists, "clean": clean})


FINDINGS: Mapping[str, KnownFinding] = {name: _finding(entry) for name, entry in _TABLES["findings"].items()}
CLEAN_RUNS: Mapping[str, CleanRun] = {name: CleanRun(**entry) for name, entry in _TABLES["clean_runs"].items()}


def names_of_runs() -> list[str]:
    """Return the names of the findings, then those of the clean runs."""
    return [*FINDINGS, *CLEAN_RUNS]


def spec_of(name: str, seed: int, backend: str, clean: bool) -> Spec:
    """Return the spec of a finding's run, or of its counterpart or a clean run if `clean` is set.  Raises WrongSpec if
    there is none."""
    if name in FINDINGS:
        other = FINDINGS[name].clean if clean else Clean()
        if other is None:
            raise WrongSpec(f"finding {name} has no clean counterpart")
        return FINDINGS[name].spec(name, seed, backend, clean, other)
    if name not in CLEAN_RUNS:
        raise WrongSpec(unknown_name("finding", name, names_of_runs()))
    if not clean:
        raise WrongSpec(f"{name} is a clean run, in which nothing may be found; call it with --clean")
    return CLEAN_RUNS[name].spec(name, seed, backend, clean)


def found(finding: KnownFinding, results: Results) -> bool:
    """Return True if the results of a run show this finding."""
    checker = results.invalid.get(finding.checker)
    if witness_of(finding, results) is None:
        return False
    if checker is None:
        return _complaint_of(finding, results) is not None
    return not finding.missing or checker.figure(finding.missing) > 0


def witness_of(finding: KnownFinding, results: Results) -> Witness | None:
    """Return the first witness that shows the finding, else a complaint of a server that shows it, else None."""
    judged = results.checkers.get(finding.checker)
    witnesses = judged.witness if judged is not None else ()
    return next(
        (w for w in witnesses if (not finding.kinds or w.kind in finding.kinds) and finding.says in w.summary),
        _complaint_of(finding, results),
    )


def _complaint_of(finding: KnownFinding, results: Results) -> Witness | None:
    text, _ = finding.complaint
    stayed_up = results.invalid.get("nodes-stay-up")
    witnesses = stayed_up.witness if stayed_up is not None and text else ()
    return next((w for w in witnesses if text in w.summary), None)


def in_words(finding: KnownFinding, results: Results) -> str:
    """Return the effect of the finding on a user's data, with the numbers of this run."""
    if finding.checker not in results.invalid and _complaint_of(finding, results) is not None:
        return finding.complaint[1]
    figures = results.checkers[finding.checker].looked_at
    looked_at = {name: f"{value:,}" if isinstance(value, int) else value for name, value in figures.items()}
    return finding.words.format_map(defaultdict(lambda: "some", looked_at))


def witness_in_words(finding: KnownFinding, results: Results) -> str:
    """Return the witness of a reproduced finding, after the usual name of its kind: `lost update: T1 and T2 both read
    …`."""
    witness = witness_of(finding, results)
    assert witness is not None
    return f"{name_in_words(witness.kind)}: {witness.summary.removeprefix(f'{witness.kind}: ')}"


def story_of(spec: Spec, results: Results) -> FindingStory | None:
    """Return the story of a judged run; None if the run was not made for a finding."""
    name = spec.finding
    if name is None or (name not in FINDINGS and not (spec.clean and name in CLEAN_RUNS)):
        return None
    if spec.clean:
        return _of_clean(name, results)
    finding = FINDINGS[name]
    about = finding.system, finding.configuration
    if not found(finding, results):
        unseen = f"This run was made to show a finding: {finding.summary}. It did not show it."
        return FindingStory(name, False, False, *about, unseen)
    witness = witness_in_words(finding, results)
    return FindingStory(name, False, True, *about, f"{in_words(finding, results)}.", witness, finding.published)


def _of_clean(name: str, results: Results) -> FindingStory:
    valid = results.verdict is RunVerdict.VALID
    kept = ", and it did." if valid else ". This run does not show that it did."
    what = f"The system must keep its promise here{kept}"
    if (run := CLEAN_RUNS.get(name)) is not None:
        return FindingStory(name, True, valid, run.system, run.configuration, what)
    finding = FINDINGS[name]
    words = f"This is the counterpart of a finding: {finding.summary}. {what}"
    configuration = finding.clean.words if finding.clean else "as it is"
    return FindingStory(name, True, valid, finding.system, configuration, words)
