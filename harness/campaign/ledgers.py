"""The ledger of findings: the tries that reproduced each, with revision and seconds; and the valid clean runs.

`find` adds every try to TRIES of its results folder.  `findings` runs them all and copies the tries to FINDINGS_LEDGER;
`docs/ledgers.py` makes tables of it, in which a row counts the tries of the last revision that ran its finding.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from checkers.base.results import NO_RESULTS, read_results
from checkers.record.header import Revision
from checkers.record.reading import RunRecord, read_object

TRIES = "findings.jsonl"
FINDINGS_LEDGER = Path(__file__).resolve().parents[2] / "docs" / "findings-ledger.json"
REVISION_LENGTH = 7


@dataclass(frozen=True, slots=True)
class Try:
    """finding: its name, or that of a clean run. clean: a clean run, or the counterpart of the finding.
    as_expected: the finding was reproduced, or the clean run was valid.
    verdict: of the run.  An invalid clean run is a false alarm; an unknown one was no real test.
    seconds: from the command to the verdict.
    revision: of this repository, followed by `+` if files were changed.
    """

    finding: str
    clean: bool
    as_expected: bool
    verdict: str
    seconds: float
    revision: str


def note(results: Path, name: str, clean: bool, as_expected: bool, seconds: float, run_folder: Path) -> None:
    """Add a try to TRIES of a results folder. run_folder: its run, whose files contain the revision and the verdict."""
    header = RunRecord(run_folder).header
    git = header.git if header is not None else Revision()
    verdict = str((read_results(run_folder) or NO_RESULTS).verdict)
    revision = git.revision[:REVISION_LENGTH] + ("+" if git.dirty else "")
    with (results / TRIES).open("a") as file:
        file.write(json.dumps(asdict(Try(name, clean, as_expected, verdict, round(seconds, 1), revision))) + "\n")


def tries_in(results: Path) -> list[Try]:
    """Return the tries that `note` wrote there, in order; nothing if there is no such file."""
    path = results / TRIES
    return [Try(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def last_of(tries: Iterable[Try]) -> list[Try]:
    """Return, per finding and counterpart, the tries of the last revision that ran it."""
    kept: dict[tuple[str, bool], list[Try]] = {}
    for one in tries:
        before = kept.setdefault((one.finding, one.clean), [])
        before[:] = [*(each for each in before if each.revision == one.revision), one]
    return [one for several in kept.values() for one in several]


def read_findings(path: Path = FINDINGS_LEDGER) -> list[Try]:
    """Raises BrokenFile where the file is no ledger."""
    return [Try(**row) for row in read_object(path)["tries"]] if path.exists() else []


def take_over_tries(results: Path, path: Path = FINDINGS_LEDGER) -> list[Try]:
    """Add the tries of a results folder to the ledger, and return its whole content.

    Outside of the repository the ledger is in the results folder.
    """
    path = path if path.parent.exists() else results / FINDINGS_LEDGER.name
    known = read_findings(path)
    every = last_of([*known, *(one for one in tries_in(results) if one not in known)])
    lines = ",\n".join("  " + json.dumps(asdict(one)) for one in every)
    path.write_text('{"tries": [\n' + lines + "\n]}\n")
    return every
