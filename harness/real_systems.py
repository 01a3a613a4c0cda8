"""Runs of real systems: known findings, their counterparts and clean runs, and the story of each run.

All of them are data: `real_systems.toml` beside this file has a table for each.  A finding is reproduced if its checker
is invalid, with a witness of one of its kinds: another violation is another finding.  Its counterpart has the same
faults on the configuration that keeps the promise, which shows that one option decides: there the harness must find
nothing.  A clean run has no finding: it shows that the harness stays silent.  An invalid one is a false alarm, or a
finding.  results.json (under `finding`), the page and the terminal show the story of a run.  It changes no verdict.
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
"""In the tree they are at its top; a wheel contains them inside the package `krucible`."""


@dataclass(frozen=True, slots=True)
class Clean:
    """The counterpart of a finding. words: the difference.  The other fields replace the finding's own.

    schedule: it contains the cards of the finding's own schedule, and more.  A system that survives the faults of the
    finding must still be seen to work under a fault, or the run was no real test of it.
    """

    words: str = ""
    file: str = ""
    workload: str = ""
    schedule: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRun:
    """A run of a system that keeps its promise.

    file: of EXAMPLES, with a class after a colon if the file holds several systems; "" for a bundled `subject`.
    workload: a name, or a file of EXAMPLES.
    schedule: a file of EXAMPLES, "" to deal from the decks of `nemesis`.
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
        """Return the run of this name, with the replacements in `other`."""
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

    summary: the finding in a few words. words: its effect on a user's data, with {names} of `looked_at`.
    published: where it was published. kinds: of witnesses; empty for any.
    missing: a number of `looked_at` that must not be 0, if a kind of witness alone would not be this finding.
    says: a text that the summary of the witness must contain, for the same reason.
    complaint: a text in a server's own log that also shows the finding, before any client meets it, and what the server
        has detected, in words.  ("", ""): there is none.
    bug: a planted one, if the system's own controllers are bundled; "" for a finding in a real system.
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
        """Return the run of this name; the counterpart of a planted bug has the same faults and no bug."""
        return replace(CleanRun.spec(self, name, seed, backend, clean, other), bug=None if clean else self.bug or None)


_TABLES = tomllib.loads(Path(__file__).with_name("real_systems.toml").read_text(encoding="utf-8"))


def _finding(entry: Mapping[str, Any]) -> KnownFinding:
    lists = {name: tuple(entry[name]) for name in ("kinds", "complaint") if name in entry}
    clean = Clean(**entry["clean"]) if "clean" in entry else None
    return KnownFinding(**{**entry, **lists, "clean": clean})


FINDINGS: Mapping[str, KnownFinding] = {name: _finding(entry) for name, entry in _TABLES["findings"].items()}
CLEAN_RUNS: Mapping[str, CleanRun] = {name: CleanRun(**entry) for name, entry in _TABLES["clean_runs"].items()}


def names_of_runs() -> list[str]:
    """Return the findings, followed by the clean runs."""
    return [*FINDINGS, *CLEAN_RUNS]


def spec_of(name: str, seed: int, backend: str, clean: bool) -> Spec:
    """Return the run of a finding; with `clean` its counterpart, or a clean run.  Raises WrongSpec if there is none."""
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
    """Return whether the results of a run show this finding."""
    checker = results.invalid.get(finding.checker)
    if witness_of(finding, results) is None:
        return False
    if checker is None:
        return _complaint_of(finding, results) is not None
    return not finding.missing or checker.figure(finding.missing) > 0


def witness_of(finding: KnownFinding, results: Results) -> Witness | None:
    """Return the first witness that shows the finding, else a complaint that does; None if there is neither."""
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
    """Return the finding for a user of that system, with the numbers of this run."""
    if finding.checker not in results.invalid and _complaint_of(finding, results) is not None:
        return finding.complaint[1]
    figures = results.checkers[finding.checker].looked_at
    looked_at = {name: f"{value:,}" if isinstance(value, int) else value for name, value in figures.items()}
    return finding.words.format_map(defaultdict(lambda: "some", looked_at))


def witness_in_words(finding: KnownFinding, results: Results) -> str:
    """Return the witness of a reproduced finding, led by the name that users of databases know: `lost update: T1 and T2
    both read …`.
    """
    witness = witness_of(finding, results)
    assert witness is not None
    return f"{name_in_words(witness.kind)}: {witness.summary.removeprefix(f'{witness.kind}: ')}"


def story_of(spec: Spec, results: Results) -> FindingStory | None:
    """Return the story of a judged run; None if `find` did not make it."""
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
