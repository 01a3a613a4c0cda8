"""Runs on virtual time, for tests: conducted, and not yet judged.  As a program: `simulated_runs.py RESULTS SPEC`."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from harness.run.clock import clock_of
from harness.run.conductor import Conductor
from harness.run.context import prepare
from harness.run.recorder import RunFolder
from harness.spec import Spec
from harness.terminal.progress import Progress
from simulation.loop import SimulatedLoop


def conducted(results: Path, spec: Spec) -> RunFolder:
    loop = SimulatedLoop()
    clock = clock_of(loop, datetime.now(UTC))
    folder = RunFolder.create(results, spec)
    progress = Progress(Console(file=io.StringIO()), clock.monotonic_s)
    try:
        loop.run(Conductor(prepare(spec, "simulator", folder, progress, clock)).run())
    finally:
        progress.stop()
    return folder


if __name__ == "__main__":
    print(conducted(Path(sys.argv[1]), Spec.from_json(json.loads(sys.argv[2]))).root)
