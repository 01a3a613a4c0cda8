"""What a hunt has run so far, and what it found.

The log is kept in one file, which is written whole after every run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from checkers.base.json_file import number as whole
from checkers.base.json_file import read_object, read_objects
from checkers.record.reading import FAULTS
from harness.campaign.child_run import ChildRun
from harness.campaign.signatures import HuntRun, SignatureGroup, grouped, replays_of
from harness.explanations.violations_by_cause import violations_by_cause
from harness.spec import Spec

LOG = "hunt.json"
FORMAT = 1
HARNESS_FAILED = "harness failed"


@dataclass(slots=True)
class HuntLog:
    """subject, seed: of the hunt; another hunt may not go on in this folder."""

    folder: Path
    subject: str
    seed: int
    runs: list[HuntRun] = field(default_factory=list)

    @staticmethod
    def open(folder: Path, subject: str, seed: int) -> HuntLog:
        """The log of this folder; an empty one if there is none.  Raises BrokenFile, or ValueError for another hunt."""
        folder.mkdir(parents=True, exist_ok=True)
        log = HuntLog(folder, subject, seed)
        if not (folder / LOG).exists():
            return log
        kept = read_object(folder / LOG)
        if (kept.get("hunt"), kept.get("subject"), kept.get("seed")) != (FORMAT, subject, seed):
            raise ValueError(f"{folder} holds another hunt: of {kept.get('subject')} with seed {kept.get('seed')}")
        log.runs = [_run(row) for row in kept["runs"]]
        return log

    def note(self, run: HuntRun) -> None:
        """Keep it: whole or not at all, because a hunt may be killed at any moment."""
        self.runs.append(run)
        self.write()

    def write(self) -> None:
        kept = {"hunt": FORMAT, "subject": self.subject, "seed": self.seed, "found": self.found()}
        kept["runs"] = [asdict(run) for run in self.runs]
        part = self.folder / f".{LOG}.part"
        part.write_text(json.dumps(kept, indent=1) + "\n")
        part.replace(self.folder / LOG)

    @property
    def tests(self) -> list[HuntRun]:
        """The first run of every test."""
        return [run for run in self.runs if run.replay == 0]

    def groups(self) -> list[SignatureGroup]:
        """What was found, in the order in which it was found."""
        return grouped(self.runs)

    def replays_of(self, number: int) -> list[HuntRun]:
        return replays_of(self.runs, number)

    def found(self) -> list[dict[str, Any]]:
        """The groups for a program that reads the file."""
        return [
            {
                **asdict(group.signature),
                "words": group.signature.words(),
                "tests": [run.number for run in group.runs],
                "replays": len(group.replays),
                "seen_again": group.seen_again,
                "folder": group.runs[0].folder,
                "rerun": group.runs[0].rerun,
            }
            for group in self.groups()
        ]


def became(spec: Spec, number: int, replay: int, child: ChildRun, folder: Path) -> HuntRun:
    """What a run showed.  folder: of the hunt."""
    known = {"number": number, "replay": replay, "test": spec.to_json(), "seconds": round(child.seconds, 1)}
    where = str(child.folder.relative_to(folder.resolve())) if child.folder else ""
    if child.judged is None:
        reason = f"the run could not be made or judged (exit code {child.exit_code}); see hunt.log"
        return _run({**known, "verdict": HARNESS_FAILED, "summary": reason, "rerun": spec.rerun(), "folder": where})
    results = read_object(child.judged / "results.json")
    violations = violations_by_cause(results)
    pairs = [(v.checker, v.kind) for v in violations]
    if not pairs:  # no checker kept its evidence
        pairs = [(name, "violation") for name, c in results["checkers"].items() if c["verdict"] == "invalid"]
    return _run(
        {
            **known,
            "verdict": str(results.get("verdict")),
            "violations": list(dict.fromkeys(pairs)),
            "faults": _injected(child.judged, violations[0].moment_ns if violations else -1),
            "summary": str(results.get("summary") or results.get("reason") or ""),
            "rerun": spec.rerun(),
            "folder": where,
        }
    )


def _injected(run: Path, until_ns: int) -> list[str]:
    """The kinds of fault that were injected until the violation showed.  until_ns: -1 for the whole run."""
    at_ns = [(str(fault.get("kind")), whole(fault.get("injected_ns"), -1)) for fault in read_objects(run / FAULTS)]
    return sorted({kind for kind, ns in at_ns if ns >= 0 and (until_ns < 0 or ns <= until_ns)})


def _run(row: Mapping[str, Any]) -> HuntRun:
    pairs = tuple((str(checker), str(kind)) for checker, kind in row.get("violations") or ())
    return HuntRun(**{**row, "violations": pairs, "faults": tuple(row.get("faults") or ())})
