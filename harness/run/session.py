"""One test from beginning to end: choose the backend, run, judge, and return the result.

Spark starts in the background before the first container, so that the user does not wait for Spark's cold start.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import io
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from checkers.base.results import Results
from checkers.base.verdict import EXIT_CODES, HARNESS_FAILED, Validity
from checkers.record.run_record import RunRecord
from checkers.spark.session import SparkJudge
from harness.backends.leftovers import KeptCluster
from harness.judge import results_before
from harness.judge.judge_run import judge, spec_of
from harness.judge.results_before import TRACEBACK, record_failure
from harness.lake.lake import Lake, existing_lake, lake_of
from harness.live import LiveFile, RunStatus, Watcher
from harness.plain_words import as_typed
from harness.registry import BACKENDS, check_names, with_limits
from harness.run.clock import MACHINE, RunClock, clock_of
from harness.run.conductor import Conductor, Once, interruptible, report_interruption, sigterm_as_ctrl_c
from harness.run.context import RunContext, prepare
from harness.run.exceptions_for_users import mistakes_in, not_of_the_harness, sentences
from harness.run.keeping import Keeper
from harness.run.recorder import RunFolder
from harness.run.refused_before_start import check_spec, choose_backend, with_every_kind
from harness.spec import Spec, WrongSpec, beside_of
from harness.story.findings import findings
from harness.terminal.progress import Progress
from harness.terminal.witness import show_witness

if TYPE_CHECKING:
    from harness.store import RunShelf, Store


IN_PROCESS = "in process"
"""Value of `where` that means: judge without Spark."""


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A judged run.

    results: content of results.json
    rerun: command that repeats the test
    stored: address of the uploaded run, or ""
    kept: cluster of the run, if it was left up
    exit_code: 0 valid, 1 invalid, 2 unknown, 3 the harness failed
    """

    folder: Path
    results: Results
    rerun: str
    stored: str = ""
    kept: KeptCluster | None = None

    @property
    def exit_code(self) -> int:
        return HARNESS_FAILED if self.results.exit_code is None else self.results.exit_code

    @property
    def verdict(self) -> str:
        return str(self.results.verdict)

    @property
    def summary(self) -> str:
        return self.results.summary or self.verdict

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def __str__(self) -> str:
        """Return the verdict, a drawing of the first witness, the report's path, and the rerun command."""
        drawn = io.StringIO()
        for finding in findings(self.results)[:1]:
            show_witness(finding.lead.witness, compact=True, file=drawn)
        witness = ["", *drawn.getvalue().splitlines(), ""] if drawn.getvalue() else []
        return "\n".join([self.summary, *witness, f"report: {self.report}", f"again:  {self.rerun}"])

    def _repr_html_(self) -> str:
        """Return the same text for a notebook, with a link to the report."""
        report = html.escape(str(self.report))
        return f'<pre>{html.escape(str(self))}</pre><a href="{report}">The report</a>'


def run(spec: Spec, results: str | Path = "results", *, spark_master: str | None = None) -> JudgedRun:
    """Run one test on this machine and judge it.  Progress is printed on stderr.

    Default limits of the spec are stretched by the same factor as the spec's faults, and the nemesis `all` is replaced
    by all kinds that fit.

    Raises WrongSpec for a test that cannot be run, BackendUnavailable and OSError only before the folder of the run
    exists, and KeyboardInterrupt after cleaning up.
    """
    check_names(spec)
    spec, _ = with_every_kind(with_limits(spec, dict(spec.to_json().items() - Spec().to_json().items())))
    check_spec(spec)
    return run_and_judge(spec, Path(results), spark_master, Console(stderr=True, soft_wrap=True))


@dataclass(frozen=True, slots=True)
class Aside:
    """Options of a run that are not part of its spec.

    metrics: ADDRESS:PORT at which to serve metrics, or ""
    store: address of the object store to which the run is uploaded at its end, or ""
    keeper: keeper that may leave the nodes up; its owner must call `stay`
    beside: see `RunFolder`
    """

    metrics: str = ""
    store: str = ""
    keeper: Keeper | None = None
    beside: tuple[str, ...] = ()


def run_and_judge(
    spec: Spec,
    results: Path,
    spark_master: str | None,
    console: Console,
    note_folder: Path | None = None,
    aside: Aside = Aside(),
) -> JudgedRun:
    """Run one test and judge it.  Write its results.json even if the run fails.

    note_folder: file to which the path of the run's folder is written as soon as the folder exists
    Raises BackendUnavailable and OSError only before the run's folder exists, and KeyboardInterrupt after cleaning up.
    """
    progress = Progress(console)
    spark = SparkJudge(spark_master)
    spark_end, watched, keeper = Once(spark.stop), ExitStack(), aside.keeper
    try:
        backend = choose_backend(spec, progress)
        if keeper is not None and (why := BACKENDS[backend].not_kept):
            raise WrongSpec(f"--keep: {why}")
        spark.start_in_background()
        threading.Thread(target=_prewarm_report, name="report", daemon=True).start()
        watchers = watched.enter_context(_watchers(spec, aside, progress.say))
        run = RunFolder.create(results.resolve(), spec, aside.beside)
        watchers.append(live := LiveFile(results.resolve(), run.run_id))
        watched.callback(live.remove)
        if note_folder is not None:
            note_folder.write_text(str(run.root))
        what = f"{spec.test}: {spec.subject} on {backend}, seed {spec.seed}"
        progress.say(what + (f", planted bug {spec.bug}" if spec.bug else ""))
        try:
            prepared = partial(prepare, spec, backend, run, progress, watchers=watchers)
            _conduct(prepared, BACKENDS[backend].virtual_time, spark_end.start, watchers, keeper)
            progress.phase("judging")
            for watcher in watchers:
                watcher.show(RunStatus(what, str(run.root), "judging", pid=os.getpid()))
            with keeper.agents_are_heard() if keeper else contextlib.nullcontext(), sigterm_as_ctrl_c():
                # trusted, because this process just created the run
                found = judge(run.root, spark, progress.detail, trust=True)
        except (KeyboardInterrupt, asyncio.CancelledError):
            spark_end.start()
            report_interruption(run.root, progress)
            raise KeyboardInterrupt from None
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - a run that began gets a verdict in every case
            found = _kept(run.root, problem, [Path(spec.workload)] if spec.workload.endswith(".py") else [])
        _note_in_lake(lake_of(results), run.root, progress.say)
        stored = _uploaded(run.root, aside.store, progress) if aside.store else ""
        if aside.store and not stored and found.exit_code != EXIT_CODES[Validity.INVALID]:
            found = replace(found, exit_code=HARNESS_FAILED)
        kept = keeper.decide(run.root, what, backend, found, progress.say) if keeper is not None else None
        return JudgedRun(run.root, found, spec.rerun(aside.beside), stored, kept)
    finally:
        watched.close()
        if keeper is not None:
            keeper.end()
        progress.stop()
        spark_end.start()
        spark_end.wait()


@contextlib.contextmanager
def _watchers(spec: Spec, aside: Aside, say: Callable[[str], None]) -> Iterator[list[Watcher]]:
    """Yield the observers of the run, and serve metrics until the context ends.  Raises OSError if metrics cannot be
    served."""
    if not aside.metrics:
        yield []
        return
    from harness.live import Metrics, address_of

    metrics = Metrics(Path(spec.subject).stem, Path(spec.workload).stem)
    host, port = address_of(aside.metrics)
    port, end = metrics.serve(host, port)
    try:
        say(f"metrics: http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
        yield [metrics]
    finally:
        end()


def _conduct(
    prepared: Callable[[RunClock], RunContext],
    virtual_time: bool,
    interrupted: Callable[[], None],
    watchers: Sequence[Watcher],
    keeper: Keeper | None = None,
) -> None:
    """Run the test to its end.  Raises as `interruptible` does.

    prepared: returns the context of the run, given a clock
    virtual_time: True if the backend needs virtual time
    interrupted: see `interruptible`"""
    if keeper is not None:
        conductor = Conductor(prepared(MACHINE), watchers, leaves_nodes=True)
        keeper.conduct(conductor, interruptible(conductor, interrupted))
        return
    if not virtual_time:
        asyncio.run(interruptible(Conductor(prepared(MACHINE), watchers), interrupted))
        return
    from simulation.loop import SimulatedLoop

    loop = SimulatedLoop()
    clock = clock_of(loop, datetime.now(UTC))
    run = prepared(clock)
    with run.progress.by(clock.monotonic_s):
        loop.run(interruptible(Conductor(run, watchers), interrupted))


def judge_again(
    root: Path,
    where: str | None,
    console: Console,
    trust: bool = False,
    came_from: Store | None = None,
) -> JudgedRun:
    """Judge the stored run in `root` again.

    where: Spark master; None for Spark in this process; IN_PROCESS to judge without Spark
    trust: see `judge`
    came_from: store from which the run in `root` was fetched; the nodes of a Spark cluster read the run there

    Raises as `judge` does.  Then results.json contains the reason, and the earlier results are kept (`results_before`).
    """
    progress = Progress(console)
    shelf: RunShelf | None = None
    if came_from is not None and where not in (None, IN_PROCESS):
        from harness.store import RunShelf

        shelf = RunShelf(came_from, root)
    spark = None if where == IN_PROCESS else SparkJudge(where, shelf=shelf)
    try:
        if spark is not None:
            spark.start_in_background()
        progress.phase("judging")
        results_before.set_aside(root)
        with sigterm_as_ctrl_c():
            found = judge(root, spark, progress.detail, trust=trust)
        spec = spec_of(root, trust)
        results_before.remove(root)
        if (lake := existing_lake(root.parent)) is not None:
            _note_in_lake(lake, root, progress.say)
        header = RunRecord(root).header
        return JudgedRun(root, found, spec.rerun(beside_of(header.rerun if header is not None else "")))
    except KeyboardInterrupt:
        results_before.refused(root, "it was interrupted while it was judged again")
        raise
    except (Exception, SystemExit) as problem:
        if results_before.disk_is_full(root, problem):
            results_before.restore(root)
            raise OSError(results_before.full_disk(root)) from problem
        words = " ".join(sentences(problem))
        reason = words or f"it could not be judged again ({type(problem).__name__}: {problem})"
        results_before.refused(root, reason, None if words else problem)
        raise
    finally:
        progress.stop()
        if spark is not None:
            spark.stop()
        if shelf is not None:
            try:
                shelf.clear()
            except OSError as problem:
                console.print(str(problem), highlight=False, markup=False)


def _uploaded(root: Path, store: str, progress: Progress) -> str:
    """Upload the run, and return its address; "" if the upload failed.  A failed upload changes neither the verdict nor
    the folder, but the exit code becomes that of a failed harness, unless the run is invalid.
    """
    from harness.store import Store

    progress.phase("uploading")
    try:
        return Store.at(store).upload(root)
    except (OSError, ValueError) as problem:
        progress.say(f"NOT UPLOADED: {problem}")
        return ""


def _note_in_lake(folder: Path, root: Path, say: Callable[[str], None]) -> None:
    """Add the run to the lake.  If that fails, print the reason; the verdict does not change, because the lake is no
    evidence."""
    try:
        Lake(folder).add(root)
    except (OSError, ValueError) as problem:
        say(f"the run is not in the lake {as_typed(folder)}: {problem}")


def _kept(root: Path, problem: Exception | SystemExit, own_files: Collection[Path]) -> Results:
    """Return the result of `_failed`.  If the run's folder can no longer be written, raise OSError with one
    sentence."""
    try:
        return _failed(root, problem, own_files)
    except OSError as refusal:
        first = " ".join(sentences(problem)) or f"{type(problem).__name__}: {problem}"
        words = f"the run has no verdict, because {as_typed(root)} cannot be written ({refusal.strerror or refusal})"
        raise OSError(f"{words}; the run had ended because of this: {first}") from problem


def _failed(root: Path, problem: Exception | SystemExit, own_files: Collection[Path] = ()) -> Results:
    """Record the failure of a run that could not continue, and return its results.  For a bug of the harness, keep the
    traceback too."""
    if isinstance(problem, SystemExit):
        ended = f"code of the system, the workload or a checker ended the program (SystemExit: {problem.code})"
        return record_failure(root, f"{ended}; where it did so is in {TRACEBACK}", problem)
    if mistakes := mistakes_in(own_files, problem):
        return record_failure(root, " ".join(mistakes), not_tested=True)
    if words := sentences(problem):
        return record_failure(root, " ".join(words), not_tested=not_of_the_harness(problem))
    reason = f"a mistake of the harness itself ({type(problem).__name__}: {problem}); its traceback is in {TRACEBACK}"
    return record_failure(root, reason, problem)


def _prewarm_report() -> None:
    """Compile the report's templates while nodes start, so that the user does not wait for them at the end."""
    from harness.report.render import prewarm

    prewarm()
