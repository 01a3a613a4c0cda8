"""A run of the canary as its harness leaves it: recorded in a second, not yet sealed or judged."""

import asyncio
import io
from pathlib import Path

from rich.console import Console

from harness.run.conductor import Conductor
from harness.run.progress import Progress
from harness.run.run_folder import RunFolder
from harness.spec import Spec


def canary_run(results: Path, seconds: float = 1.0, seed: int = 1, keys: int = 3, workload: str = "register") -> Path:
    """The folder of a clean run; `results` is created."""
    spec = Spec(
        subject="canary",
        nemesis="none",
        backend="in-process",
        time_limit_s=seconds,
        rate_hz=150,
        keys=keys,
        seed=seed,
        workload=workload,
    )
    run = RunFolder.create(results, spec)
    progress = Progress(Console(file=io.StringIO()))
    try:
        asyncio.run(Conductor(spec, "in-process", run, progress).run())
    finally:
        progress.stop()
    return run.root.resolve()
