"""Failures that a night keeps: what failed is run again on every revision until it is fixed, and stays as a regression.

A failure is kept with its spec and the schedule that was played.  Those that fail are tried first: the fastest first,
and of equally fast ones the oldest.  A failure counts as fixed after PASSES runs in a row that passed, each on another
revision; from then on it is a regression test of every night.  One that fails again counts as failing at once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from checkers.base.json_file import read_objects
from harness.campaign.campaign_log import AS_EXPECTED, FOUND, Ended
from harness.spec import Spec

FILE, SCHEDULES = "failures.json", "schedules"
PASSES = 3
KEPT_MAX = 50
"""More failing schedules than these would leave no time for anything else; the slowest are dropped."""


@dataclass(frozen=True, slots=True)
class Failure:
    """words: of its symptom.  seconds: of the run that found it.  found: when, in ISO 8601 (UTC).
    passes: runs in a row that passed since it failed last.  tried: the revision that was tried last."""

    spec: Spec
    words: str
    seconds: float
    found: str
    passes: int = 0
    tried: str = ""

    @property
    def fixed(self) -> bool:
        return self.passes >= PASSES

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"spec": self.spec.to_json()}

    @staticmethod
    def from_json(row: dict[str, Any]) -> Failure:
        """Raises KeyError, TypeError or WrongSpec for a row that is none."""
        return Failure(**{**row, "spec": Spec.from_json(row["spec"])})


def kept(folder: Path) -> list[Failure]:
    """The failures kept in the folder of a campaign.  Raises BrokenFile."""
    return [Failure.from_json(row) for row in read_objects(folder / FILE)]


def keep(folder: Path, failures: Sequence[Failure]) -> None:
    """The file is old or new, because a campaign may be killed at any moment."""
    part = folder / f".{FILE}.part"
    part.write_text(json.dumps([failure.to_json() for failure in failures], indent=1) + "\n")
    part.replace(folder / FILE)


def due(failures: Iterable[Failure], revision: str) -> list[Spec]:
    """What to try on this revision, before all other tests.  revision: "" if it is not known, or files differ."""
    wanted = [one for one in failures if one.fixed or not revision or one.tried != revision]
    return [one.spec for one in sorted(wanted, key=lambda one: (one.fixed, one.seconds, one.found))]


def after(failures: Sequence[Failure], runs: Iterable[Ended], folder: Path, revision: str, now: str) -> list[Failure]:
    """The failures after a night: those that were tried again, and new ones, whose schedules are copied.

    folder: of the campaign.  now: in ISO 8601.
    """
    known = {one.spec: one for one in failures}
    for run in runs:
        spec = run.test.spec
        if run.test.replay or spec.bug or spec.finding:
            continue
        if spec in known:
            known[spec] = _tried(known[spec], run, revision)
        elif run.code == FOUND and run.symptom is not None and run.folder:
            one = Failure(_with_schedule(spec, folder, run), run.symptom.words(), run.seconds, now, 0, revision)
            known[one.spec] = one
    order = sorted(known.values(), key=lambda one: (one.fixed, one.seconds, one.found))
    return order[:KEPT_MAX]


def _tried(failure: Failure, run: Ended, revision: str) -> Failure:
    if run.code == FOUND:
        return replace(failure, passes=0, tried=revision, seconds=run.seconds)
    if run.code == AS_EXPECTED:
        again = failure.tried == revision and revision != ""
        return replace(failure, passes=failure.passes + (not again), tried=revision)
    return failure  # it proved nothing: it is due again


def _with_schedule(spec: Spec, folder: Path, run: Ended) -> Spec:
    """The spec with the schedule that was played, if the run kept one."""
    played = folder / run.folder / "schedule.json"
    if not played.exists():
        return spec
    copy = folder / SCHEDULES / f"{Path(run.folder).name}.json"
    copy.parent.mkdir(exist_ok=True)
    shutil.copyfile(played, copy)
    return replace(spec, schedule=str(copy.resolve()))
