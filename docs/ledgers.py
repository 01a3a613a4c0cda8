"""Tables of docs/findings.md and docs/notebook/hunting.md, made from the ledgers; and the ledger of hunts.

*Hunts.*  The ledger lists hunted systems, with time, tests and findings.

    python docs/ledgers.py results/hunts/turso-41

copies the campaign of a hunt to HUNTS_LEDGER.  Only hunts of systems of EXAMPLES count.  The docstring of an example
begins with the system's version; its paragraph that begins with "Promised" states the promise that the hunt tested.
"""

from __future__ import annotations

import ast
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from checkers.record.run_record import mapping, read_object, real, sequence
from harness.campaign.loop import LOG
from harness.campaign.plans import Try
from harness.real_systems import CLEAN_RUNS, EXAMPLES, FINDINGS, CleanRun, KnownFinding
from nemesis.kinds import KINDS

DOCS = Path(__file__).resolve().parent
PAGES = DOCS / "findings"
"""Folder with one page per finding, which explains the cause."""


def finding_rows(tries: Sequence[Try], findings: Mapping[str, KnownFinding] = FINDINGS) -> list[tuple[str, ...]]:
    """Return the table of the ledger, one row per finding, in the order of the findings."""
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
    """Return the table of planted bugs of the bundled controllers that clients of Kafka can see, one row per bug."""
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
    """Return the table of the clean runs, one row per run."""
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


HUNTS_LEDGER = DOCS / "hunts-ledger.json"
PROMISED = "Promised"
VERDICTS = ("valid", "unknown", "invalid")
_LISTED = ("workloads", "kinds", "found")


@dataclass(frozen=True, slots=True)
class Hunt:
    """subject: a file of EXAMPLES, followed by a colon and a class if the file defines several systems.
    minutes: total minutes of all tests and replays.
    tests: verdict -> number of tests, without replays.
    workloads: workloads of tests that were valid or invalid.
    kinds: kinds of fault that were in force in any test.
    found: findings in words, each with its number of successful replays.
    """

    subject: str
    seed: int
    minutes: float
    tests: dict[str, int]
    workloads: tuple[str, ...]
    kinds: tuple[str, ...]
    found: tuple[str, ...]


def hunt_in(folder: Path) -> Hunt:
    """Return the hunt that is stored in this folder.  Raises ValueError if there is no hunt of an example."""
    campaign = read_object(folder / LOG)
    identity = mapping(campaign.get("identity"))
    if identity.get("campaign") != "hunt":
        raise ValueError(f"{folder} keeps no hunt")
    path, colon, name = str(identity.get("subject")).partition(":")
    if not (EXAMPLES / Path(path).name).is_file():
        raise ValueError(f"{folder} keeps a hunt over {path}, which is no example")
    runs = [mapping(run) for run in sequence(campaign.get("runs"))]
    tests = [run for run in runs if not run.get("replay")]
    judged = [run for run in tests if run.get("verdict") in ("valid", "invalid")]
    return Hunt(
        subject=Path(path).name + colon + name,
        seed=int(real(identity.get("seed"), 0)),
        minutes=round(sum(real(run.get("seconds"), 0) for run in runs) / 60, 1),
        tests=dict(Counter(verdict for run in tests if (verdict := str(run.get("verdict"))) in VERDICTS)),
        workloads=_in_order(str(mapping(run.get("test")).get("workload")) for run in judged),
        kinds=_in_order(str(kind) for run in tests for kind in sequence(run.get("faults"))),
        found=tuple(
            f"{found['words']} (seen again in {found['seen_again']} of {found['replays']} replays)"
            for found in map(mapping, sequence(campaign.get("found")))
        ),
    )


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def read_hunts(path: Path = HUNTS_LEDGER) -> list[Hunt]:
    """Return the hunts of a ledger, none if the file does not exist.  Raises BrokenFile if the file is no ledger."""
    found: list[dict[str, Any]] = read_object(path)["hunts"] if path.exists() else []
    return [Hunt(**{**row, **{name: tuple(row[name]) for name in _LISTED}}) for row in found]


def take_over_hunt(folder: Path, path: Path = HUNTS_LEDGER) -> list[Hunt]:
    """Add a hunt to the ledger, replacing an earlier state of the same hunt, and return all hunts of the ledger."""
    new = hunt_in(folder)
    known = [one for one in read_hunts(path) if (one.subject, one.seed) != (new.subject, new.seed)]
    every = sorted([*known, new], key=lambda one: (one.subject, one.seed))
    lines = ",\n".join("  " + json.dumps(asdict(one)) for one in every)
    path.write_text('{"hunts": [\n' + lines + "\n]}\n")
    return every


def hunt_rows(hunts: Sequence[Hunt]) -> list[tuple[str, ...]]:
    """Return the table of the ledger, one row per system."""
    table: list[tuple[str, ...]] = []
    for subject in dict.fromkeys(hunt.subject for hunt in hunts):
        mine = [hunt for hunt in hunts if hunt.subject == subject]
        tests = sum((Counter(hunt.tests) for hunt in mine), Counter[str]())
        kinds = {kind for hunt in mine for kind in hunt.kinds}
        version, promise = said_of(subject)
        table.append(
            (
                f"[{version}](../examples/{subject.partition(':')[0]})",
                promise,
                f"{sum(hunt.minutes for hunt in mine):.0f}",
                ", ".join(f"{tests[verdict]} {verdict}" for verdict in VERDICTS if tests[verdict]),
                ", ".join(f"`{name}`" for name in _in_order(name for hunt in mine for name in hunt.workloads)),
                ", ".join(f"`{kind}`" for kind in KINDS if kind in kinds) or "none",
                "; ".join(dict.fromkeys(words for hunt in mine for words in hunt.found)) or "nothing",
                ", ".join(str(hunt.seed) for hunt in mine),
            )
        )
    return table


def said_of(subject: str) -> tuple[str, str]:
    """Return the two texts of an example's docstring: system with version, and promise."""
    text = ast.get_docstring(ast.parse((EXAMPLES / subject.partition(":")[0]).read_text())) or ""
    first, *others = text.split("\n\n")
    version = " ".join(first.split()).partition(":")[0].rstrip(".")
    promise = next((" ".join(each.split()) for each in others if each.startswith(PROMISED)), "")
    return version, promise


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        take_over_hunt(Path(argument))
