"""A run of the canary as its harness leaves it: recorded in a second, not yet sealed or judged."""

import asyncio
import io
import shutil
from pathlib import Path

from rich.console import Console

from checkers.base.results import VACUITY
from checkers.base.verdict import Validity
from harness.judge.judge_run import judge
from harness.run.clock import MACHINE
from harness.run.conductor import Conductor
from harness.run.context import prepare
from harness.run.run_folder import RunFolder
from harness.spec import Spec
from harness.terminal.progress import Progress

ATTEMPTS = 10
"""A machine that stands still for most of a second lets a run do too little to be a real test."""


def canary_run(
    results: Path,
    seconds: float = 1.0,
    seed: int = 1,
    keys: int = 3,
    workload: str = "register",
    rate_hz: float = 150.0,
) -> Path:
    """The folder of a clean run that was a real test; `results` is created."""
    spec = Spec(
        subject="canary",
        nemesis="none",
        backend="in-process",
        time_limit_s=seconds,
        rate_hz=rate_hz,
        keys=keys,
        seed=seed,
        workload=workload,
    )
    for attempt in range(ATTEMPTS):
        run = _recorded(results / str(attempt), spec)
        copy = shutil.copytree(run, results / "tried" / str(attempt))
        short = judge(copy, None, lambda _: None, report=False).checkers[VACUITY]
        if short.verdict is Validity.VALID:
            return run
    raise AssertionError(f"in {ATTEMPTS} runs this machine let the canary do too little: {short}")


def _recorded(results: Path, spec: Spec) -> Path:
    run = RunFolder.create(results, spec)
    progress = Progress(Console(file=io.StringIO()))
    try:
        asyncio.run(Conductor(prepare(spec, "in-process", run, progress, MACHINE)).run())
    finally:
        progress.stop()
    return run.root.resolve()
