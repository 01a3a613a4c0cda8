"""The ledger of findings: which tries saw which finding, at which revision, and in how many seconds; and which of the
clean runs were valid.

`find` notes every try in TRIES of its results folder.  `findings` runs them all and takes the tries over into LEDGER,
which stands in the repository; `docs/generate.py` makes the tables of docs/findings.md from it.  A row counts the
tries of the last revision that ran its finding.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from checkers.base.results import NO_RESULTS, read_results
from checkers.record.header import Revision
from checkers.record.reading import RunRecord, read_object
from harness.real_systems import CLEAN_RUNS, FINDINGS, CleanRun, KnownFinding

TRIES = "findings.jsonl"
LEDGER = Path(__file__).resolve().parents[2] / "docs" / "findings-ledger.json"
PAGES = LEDGER.with_name("findings")
"""Folder of the pages of single findings, with their causes."""
REVISION_LENGTH = 7


@dataclass(frozen=True, slots=True)
class Try:
    """finding: its name, or that of a clean run.  clean: a clean run, or the counterpart of the finding.
    as_expected: the finding was seen, or the clean run was valid.
    verdict: of the run.  An invalid clean run is a false alarm; an unknown one was no real test.
    seconds: from the command to the verdict.
    revision: of this repository, with a `+` behind it where files were changed."""

    finding: str
    clean: bool
    as_expected: bool
    verdict: str
    seconds: float
    revision: str


def note(results: Path, name: str, clean: bool, as_expected: bool, seconds: float, run_folder: Path) -> None:
    """Add a try to TRIES of a results folder.  run_folder: its run, whose files name the revision and the verdict."""
    header = RunRecord(run_folder).header
    git = header.git if header is not None else Revision()
    verdict = str((read_results(run_folder) or NO_RESULTS).verdict)
    revision = git.revision[:REVISION_LENGTH] + ("+" if git.dirty else "")
    with (results / TRIES).open("a") as file:
        file.write(json.dumps(asdict(Try(name, clean, as_expected, verdict, round(seconds, 1), revision))) + "\n")


def tries_in(results: Path) -> list[Try]:
    """Return what `note` wrote there, in order; nothing where there is no such file."""
    path = results / TRIES
    return [Try(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def last_of(tries: Iterable[Try]) -> list[Try]:
    """Per finding and counterpart: the tries of the revision that ran it last."""
    kept: dict[tuple[str, bool], list[Try]] = {}
    for one in tries:
        before = kept.setdefault((one.finding, one.clean), [])
        if before and before[-1].revision != one.revision:
            before.clear()
        before.append(one)
    return [one for several in kept.values() for one in several]


def read_ledger(path: Path = LEDGER) -> list[Try]:
    """Raises BrokenFile where the file is no ledger."""
    return [Try(**row) for row in read_object(path)["tries"]] if path.exists() else []


def take_over(results: Path, path: Path = LEDGER) -> list[Try]:
    """Add the tries of a results folder to the ledger, and return all that it holds then.

    Outside of the repository the ledger stands in the results folder."""
    path = path if path.parent.exists() else results / LEDGER.name
    known = read_ledger(path)
    every = last_of([*known, *(one for one in tries_in(results) if one not in known)])
    rows = ",\n".join("  " + json.dumps(asdict(one)) for one in every)
    path.write_text('{"tries": [\n' + rows + "\n]}\n")
    return every


def rows(tries: Sequence[Try], findings: Mapping[str, KnownFinding] = FINDINGS) -> list[tuple[str, ...]]:
    """The table of the ledger, one row a finding, in the order of the findings."""
    table: list[tuple[str, ...]] = []
    for name, finding in findings.items():
        seen = [one for one in tries if one.finding == name and not one.clean]
        clean = [one for one in tries if one.finding == name and one.clean]
        seconds = [one.seconds for one in seen if one.as_expected]
        table.append(
            (
                f"`make find-{name}`",
                f"{finding.system}: {finding.configuration}",
                f"[{finding.summary}](findings/{name}.md)" if (PAGES / f"{name}.md").exists() else finding.summary,
                finding.published,
                f"{statistics.median(seconds):.0f}" if seconds else "",
                _count(seen),
                f"{finding.clean.words}: {_count(clean)}" if finding.clean else "",
            )
        )
    return table


def planted_rows(tries: Sequence[Try]) -> list[tuple[str, ...]]:
    """The table of the planted bugs of bundled controllers that users of Kafka meet, one row each."""
    return [
        (
            f"`krucible find {name}`",
            f"`{finding.bug}`",
            _kinds(finding),
            finding.summary,
            *(_count([one for one in tries if one.finding == name and one.clean is clean]) for clean in (False, True)),
        )
        for name, finding in FINDINGS.items()
        if finding.bug
    ]


def clean_rows(tries: Sequence[Try]) -> list[tuple[str, ...]]:
    """The table of the clean runs, one row each."""
    return [
        (
            f"`krucible find {name} --clean`",
            f"{run.system}: {run.configuration}",
            f"`{run.workload}`",
            _kinds(run),
            _count([one for one in tries if one.finding == name]),
        )
        for name, run in CLEAN_RUNS.items()
    ]


def _kinds(run: CleanRun) -> str:
    return ", ".join(f"`{kind}`" for kind in run.nemesis.split(","))


def _count(tries: Sequence[Try]) -> str:
    if not tries:
        return "not run yet"
    where = tries[-1].revision or "an unknown revision"
    others = Counter(one.verdict for one in tries if not one.as_expected)
    rest = "".join(f", {count} {verdict}" for verdict, count in sorted(others.items()))
    return f"{sum(one.as_expected for one in tries)} of {len(tries)} at {where}{rest}"
