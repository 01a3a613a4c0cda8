"""Runs a candidate of a shrinking as a process of its own, and says whether it failed as the original did."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.campaign.child_run import run_child
from harness.campaign.shrink import ShrinkCandidate
from harness.spec import Spec
from nemesis.cards.schedule_files import schedule_json

Violated = frozenset[tuple[str, str]]
"""What was wrong with a run: (checker, kind of witness)."""


def violated_in(results: Mapping[str, Any]) -> Violated:
    """What results.json says was violated."""
    return frozenset(
        (name, str(witness["kind"]))
        for name, entry in (results.get("checkers") or {}).items()
        if entry["verdict"] == "invalid"
        for witness in entry["witness"]
    )


@dataclass(slots=True)
class Reruns:
    """spec: of the original.  wanted: what was wrong with it.  folder: where schedules, runs and output go."""

    spec: Spec
    wanted: Violated
    folder: Path
    runs: int = 0

    def __call__(self, candidate: ShrinkCandidate) -> tuple[bool, str]:
        """Raises OSError with the last line of its output if the run could not be made."""
        self.folder.mkdir(parents=True, exist_ok=True)
        schedule = self.folder / f"{candidate.identity}.json"
        schedule.write_text(schedule_json(candidate.schedule.cards, candidate.schedule.faults))
        output = self.folder / "output.log"
        self.runs += 1
        run = run_child(self.words(candidate, schedule), self.folder / "runs", output).judged
        if run is None:
            raise OSError(f"a run of the shrinking failed: see {output}")
        found = violated_in(json.loads((run / "results.json").read_text()))
        return bool(found & self.wanted), str(run)

    def words(self, candidate: ShrinkCandidate, schedule: Path) -> list[str]:
        """The arguments of the command line; every run gets a seed of its own."""
        spec = self.spec
        options = {
            "subject": spec.subject,
            "workload": spec.workload,
            "backend": spec.backend,
            "nodes": candidate.servers,
            "time-limit": math.ceil(candidate.time_limit_s),
            "rate": f"{spec.rate_hz:g}",
            "concurrency": spec.concurrency,
            "op-timeout": f"{spec.op_timeout_s:g}",
            "recovery-limit": f"{spec.recovery_limit_s:g}",
            "keys": spec.keys,
            "seed": spec.seed + self.runs,
            "schedule": schedule,
        } | {name: value for name, value in (("bug", spec.bug), ("inventory", spec.inventory)) if value}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return ["run", *words, "--stop-on-violation", *(["--over-budget"] if spec.over_budget else [])]
