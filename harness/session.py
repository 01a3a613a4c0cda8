"""One call of the command line: choose the backend, run, judge, hand back what to tell the user.

Spark starts in the background before the first container does, so that its cold start costs the user nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

from rich.console import Console

from checkers.spark.session import SparkJudge
from checkers.verdict import HARNESS_FAILED
from harness.conduct import Conductor
from harness.judging import judge, outcome_of, spec_of
from harness.progress import Progress
from harness.registry import load_subject
from harness.spec import Spec
from harness.store import RunFolder


def choose_backend(spec: Spec, progress: Progress) -> str:
    """The backend that `auto` stands for on this machine; says so where it is not the first choice."""
    if not load_subject(spec.subject).declares.nodes:
        return "in-process"
    if spec.backend != "auto":
        return spec.backend
    from harness.backends.docker import why_unavailable

    reason = why_unavailable()
    if reason is None:
        return "docker"
    progress.say(f"no Docker here ({reason}): the same test runs on network namespaces instead")
    return "namespaces"


def run_and_judge(spec: Spec, results: Path, spark_master: str | None, console: Console) -> dict[str, Any]:
    """Run one test and judge it.  Raises BackendUnavailable and OSError; KeyboardInterrupt after cleaning up."""
    progress = Progress(console)
    spark = SparkJudge(spark_master)
    try:
        backend = choose_backend(spec, progress)
        spark.start_in_background()
        threading.Thread(target=_prewarm_report, name="report", daemon=True).start()
        run = RunFolder.create(results.resolve(), spec)
        what = f"{spec.test}: {spec.subject} on {backend}, seed {spec.seed}"
        progress.say(what + (f", planted bug {spec.bug}" if spec.bug else ""))
        conductor = Conductor(spec, backend, run, progress)
        try:
            asyncio.run(_interruptible(conductor))
        except (KeyboardInterrupt, asyncio.CancelledError):
            shown = _shown(run.root)
            progress.say(
                f"interrupted; all that was recorded is kept.  Judge it with: python -m harness analyze {shown}"
            )
            raise KeyboardInterrupt from None
        progress.phase("judging")
        found = dict(judge(run.root, spark, progress.detail))
        return _to_tell(run.root, found, spec, conductor.outcome.set_up_failure)
    finally:
        progress.stop()
        spark.stop()


def judge_again(root: Path, spark_master: str | None, in_process: bool, console: Console) -> dict[str, Any]:
    """Judge the stored run in `root` again."""
    progress = Progress(console)
    spark = None if in_process else SparkJudge(spark_master)
    try:
        if spark is not None:
            spark.start_in_background()
        progress.phase("judging")
        found = dict(judge(root, spark, progress.detail))
        return _to_tell(root, found, spec_of(root), str(outcome_of(root).get("set_up_failure") or ""))
    finally:
        progress.stop()
        if spark is not None:
            spark.stop()


def _prewarm_report() -> None:
    """Plots take a second to import; better while nodes come up than while the user waits for the report."""
    from harness.report import prewarm

    prewarm()


async def _interruptible(conductor: Conductor) -> None:
    """SIGTERM (a cancelled CI job) cleans up exactly as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await conductor.run()


def _to_tell(root: Path, results: dict[str, Any], spec: Spec, set_up_failure: str) -> dict[str, Any]:
    """results.json and what the terminal adds.  A subject that never got ready, and broke no invariant either, was not
    tested: that is a failure of the harness' call, not a verdict."""
    told = {**results, "report": _shown(root / "report.html"), "rerun": spec.rerun()}
    if set_up_failure and results["exit_code"] != 1:
        told |= {"exit_code": HARNESS_FAILED, "summary": f"the subject never became ready: {set_up_failure}"}
    return told


def _shown(path: Path) -> str:
    """A path as a user would type it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
