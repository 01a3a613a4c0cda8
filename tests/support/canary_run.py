"""Runs of the canary as its harness leaves them: recorded on virtual time, not yet sealed or judged.

No machine is too slow for them, so a run tests as much as its spec says.  Requests and answers travel for a while, or
no two operations would overlap.
"""

import asyncio
import io
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from rich.console import Console

from harness.backends.in_process import InProcessClientHost
from harness.run.clock import clock_of
from harness.run.conductor import Conductor
from harness.run.context import prepare
from harness.run.recorder import RunFolder
from harness.spec import Spec
from harness.terminal.progress import Progress
from simulation.loop import SimulatedLoop
from system_under_test.client import Outcome, Request

AT_ONCE = 3
"""Operations under way, on average."""


def recorded(results: Path, spec: Spec) -> Path:
    """The folder of a run; `results` is created."""
    run = RunFolder.create(results, spec)
    loop, progress = SimulatedLoop(), Progress(Console(file=io.StringIO()))
    rng, answer, longest_s = Random(spec.seed), InProcessClientHost.invoke, AT_ONCE / spec.rate_hz

    async def invoke(host: InProcessClientHost, thread: int, request: Request, timeout_s: float) -> Outcome:
        await asyncio.sleep(rng.uniform(0, longest_s))
        outcome = await answer(host, thread, request, timeout_s)
        await asyncio.sleep(rng.uniform(0, longest_s))
        return outcome

    try:
        with patch.object(InProcessClientHost, "invoke", invoke):
            loop.run(Conductor(prepare(spec, "in-process", run, progress, clock_of(loop, datetime.now(UTC)))).run())
    finally:
        progress.stop()
    return run.root.resolve()


def canary_run(results: Path, seconds: float = 1.0, seed: int = 1, keys: int = 3, **more: Any) -> Path:
    """The folder of a clean run; `results` is created."""
    canary = Spec(subject="canary", nemesis="none", backend="in-process", workload="register", rate_hz=150.0)
    return recorded(results, replace(canary, time_limit_s=seconds, seed=seed, keys=keys, **more))
