"""The ledger of hunts: which systems were hunted, for how long, with which tests, and what was found.

    python -m harness.campaign.hunts_ledger results/hunts/turso-41

takes the campaign of a hunt over into LEDGER, which stands in the repository; `docs/generate.py` makes the table of
docs/hunting.md from it.  Only hunts over systems of EXAMPLES count.  The first line of such a file names the version,
and its words behind "Promised" what the hunt held against the system.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from checkers.record.reading import mapping, read_object, real, sequence
from harness.campaign.loop import LOG
from harness.real_systems import EXAMPLES
from nemesis.catalog import KINDS

LEDGER = Path(__file__).resolve().parents[2] / "docs" / "hunts-ledger.json"
PROMISED = "Promised"
VERDICTS = ("valid", "unknown", "invalid")
_LISTED = ("workloads", "kinds", "found")


@dataclass(frozen=True, slots=True)
class Hunt:
    """subject: a file of EXAMPLES, with a class behind a colon where it holds several systems.
    minutes: minutes of its tests and replays together.  tests: verdict -> number of tests, without replays.
    workloads: those of valid or invalid tests.  kinds: kinds of fault that were in force in any test.
    found: each finding in words, with the number of times that it was seen again."""

    subject: str
    seed: int
    minutes: float
    tests: dict[str, int]
    workloads: tuple[str, ...]
    kinds: tuple[str, ...]
    found: tuple[str, ...]


def hunt_in(folder: Path) -> Hunt:
    """The hunt that is kept in this folder.  Raises ValueError where there is none, or none over an example."""
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


def read_ledger(path: Path = LEDGER) -> list[Hunt]:
    """Raises BrokenFile where the file is no ledger."""
    found: list[dict[str, Any]] = read_object(path)["hunts"] if path.exists() else []
    return [Hunt(**{**row, **{name: tuple(row[name]) for name in _LISTED}}) for row in found]


def take_over(folder: Path, path: Path = LEDGER) -> list[Hunt]:
    """Add a hunt to the ledger, in place of the same one with fewer tests, and return all that it holds then."""
    new = hunt_in(folder)
    known = [one for one in read_ledger(path) if (one.subject, one.seed) != (new.subject, new.seed)]
    every = sorted([*known, new], key=lambda one: (one.subject, one.seed))
    rows = ",\n".join("  " + json.dumps(asdict(one)) for one in every)
    path.write_text('{"hunts": [\n' + rows + "\n]}\n")
    return every


def rows(hunts: Sequence[Hunt]) -> list[tuple[str, ...]]:
    """The table of the ledger, one row a system."""
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
    """Return what the file of an example says of the system and its version, and of its promise, on one line each."""
    text = ast.get_docstring(ast.parse((EXAMPLES / subject.partition(":")[0]).read_text())) or ""
    first, *others = text.split("\n\n")
    version = " ".join(first.split()).partition(":")[0].rstrip(".")
    promise = next((" ".join(each.split()) for each in others if each.startswith(PROMISED)), "")
    return version, promise


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        take_over(Path(argument))
