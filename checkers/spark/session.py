"""Judges on Spark.  Spark starts in the background, runs one job for all parts and never shows a stack trace.

A task is a part: file paths and parameters.  The worker opens the files itself with pyarrow, so no row passes through
the virtual machine.  A whole run is one job of a few dozen tasks.  The default master, `local[*,4]`, runs inside this
process and judges a task again up to three times if its worker dies.  To a cluster, the driver sends the sources and
the machine code (`bundle`), and the bytes of files if nodes cannot read the run folder (`shipping`).  The verdicts are
the same everywhere, bit for bit.

Each job runs in a separate thread, so that Ctrl-C works.  A job is abandoned if no executor works on it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from checkers.base.checker import Judged, Task, judge_task, named
from checkers.spark import bundle, settings, shipping
from checkers.spark.daemon import WorkerHost, ask
from checkers.spark.java import (
    Java,
    SparkUnavailable,
    end_gateway,
    find_java,
    how_it_ended,
    launch_gateway,
    stop_context,
)
from checkers.spark.shipping import FileContent, Moved, RemoteTask, Unreadable

POLL_S = 0.1
START_S_MAX = 60.0
"""Maximum time in seconds without any executor of a cluster, at the start and later.  START_VARIABLE overrides it."""

START_VARIABLE = "KRUCIBLE_SPARK_START_S"
READY_S_MAX = 300.0
"""Maximum time in seconds until all nodes are ready.  A node with another processor compiles the kernels first."""

STOP_S_MAX = 20.0
"""Maximum time in seconds that `stop` waits for an unfinished start, and for the end of the virtual machine."""

RECORD_S_MAX = 180.0
"""Maximum time in seconds that `stop` waits for the end of a virtual machine that writes its class-data archive."""

__all__ = ["SparkJudge", "SparkUnavailable"]

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]


class SparkJudge:
    """Judges tasks on Spark.  Call `start_in_background` early; `judge` waits until Spark is up.

    master: the master of a cluster (spark://, k8s://, yarn), whose nodes have Python with numba, numpy and pyarrow;
        None to run Spark inside this process
    record_archive: path of the class-data archive to record when the virtual machine ends (set-up only); or None
    shelf: the place where nodes of a cluster read files that they cannot read by path; or None
    """

    def __init__(
        self, master: str | None = None, *, record_archive: Path | None = None, shelf: shipping.Shelf | None = None
    ) -> None:
        self._shelf = shelf
        self.master = master or settings.LOCAL
        self._local = settings.is_local(self.master)
        self._record_archive = record_archive
        self._starting: threading.Thread | None = None
        self._began = 0.0
        self._alone_s_max = _seconds(os.environ.get(START_VARIABLE, ""), START_S_MAX)
        self._ready = threading.Event()
        self._context: Any = None
        self._gateway: Any = None
        self._failure = ""
        self._log: IO[bytes] | None = None
        self._files = ExitStack()
        self._lock = threading.Lock()
        self._nodes: list[WorkerHost] = []
        self._moved = Moved()

    @property
    def description(self) -> str:
        """Return the version of Spark, its master and the memory limit of its workers, in words.

        On a cluster, the text also names the kernels that nodes compiled, and the bytes that were sent to nodes.
        """
        import pyspark

        words = [f"Spark {pyspark.__version__} on {self.master}"]
        if not self._local:
            hosts = ", ".join(sorted({n.host for n in self._nodes}))
            words.append(f"{len(self._nodes)} executors ({hosts})")
        if self._nodes:
            words.append(f"{min(n.worker_memory_bytes for n in self._nodes) / 2**30:.0f} GiB a worker")
        for one in self._nodes:
            if one.compiled and not self._local:
                words.append(f"{one.host} compiled {one.compiled} kernels anew ({one.compile_s:.0f} s)")
        if self._shelf is not None and self._moved.stored_bytes:
            words.append(f"nodes read {self._moved.stored_bytes / 1e6:.1f} MB of files from {self._shelf.name}")
        if self._moved.sent_bytes:
            why = "nodes cannot read the run folder"
            if self._moved.store_failure:
                why = f"{why} or its store ({self._moved.store_failure})"
            words.append(f"{self._moved.sent_bytes / 1e6:.1f} MB of files were sent, because {why}")
        return ", ".join(words)

    def start_in_background(self) -> None:
        """Begin to start Spark, and return at once.  `judge` reports a failed start.  A second call does nothing."""
        with self._lock:
            if self._starting is None:
                self._began = time.monotonic()
                self._starting = threading.Thread(target=self._start, name="spark-start", daemon=True)
                self._starting.start()

    def wait_until_started(self) -> None:
        """Start Spark and wait until it is up.  Raises SparkUnavailable, with the reason, if Spark did not start."""
        self.start_in_background()
        while not self._ready.wait(POLL_S):  # in short waits, so that Ctrl-C works
            waited = time.monotonic() - self._began
            if not self._local and self._context is None and waited > self._alone_s_max:
                raise SparkUnavailable(f"{self.master} did not answer within {self._alone_s_max:.0f} s")
        if self._failure:
            raise SparkUnavailable(self._failure)

    def sql_session(self) -> Any:
        """Return a `pyspark.sql.SparkSession` on this Spark, after waiting until Spark is up.

        Raises SparkUnavailable, with the reason, if Spark did not start.
        """
        self.wait_until_started()  # before the import: concurrent imports of pyspark see a partly initialised module
        from pyspark.sql import SparkSession

        return SparkSession(self._context)

    def judge(self, tasks: Sequence[Task], progress: Progress | None = None) -> list[Judged]:
        """Judge every task in one job.  Returns the results in the order of the tasks.

        progress: called with (finished tasks, all tasks) a few times a second
        If the worker of a task dies four times, this task fails, and the other tasks are still judged.  Ctrl-C cancels
        the job and raises KeyboardInterrupt.  Raises SparkUnavailable if Spark did not start, or if its cluster or its
        virtual machine ended.
        """

        def say(done: int) -> None:
            if progress is not None:
                progress(done, len(tasks))

        with self._started():
            if self._local:
                return self._answers(judge_task, tasks, say, lambda task: task)
            return self._judged_on_nodes(tasks, say)

    def _judged_on_nodes(self, tasks: Sequence[Task], progress: shipping.Progress) -> list[Judged]:
        """Judge on a cluster, and then remove the bytes that were sent to its nodes."""
        shared: list[Any] = []

        def share(content: bytes) -> FileContent:
            shared.append(self._context.broadcast(content))
            broadcast: FileContent = shared[-1]
            return broadcast

        def run(
            remote: Sequence[RemoteTask], contents: shipping.Contents, progress: shipping.Progress
        ) -> list[Judged | Unreadable]:
            judge = partial(shipping.judge_remote, contents=contents)
            return self._answers(judge, remote, progress, lambda each: each.task)

        try:
            judged, self._moved = shipping.judge_on_nodes(tasks, run, share, progress, self._shelf)
        finally:
            if not stopped(self._context):
                for broadcast in shared:
                    broadcast.destroy()
        return judged

    def _answers(
        self, judge: Callable[[T], R], items: Sequence[T], progress: Callable[[int], None], task_of: Callable[[T], Task]
    ) -> list[R | Judged]:
        """Run judge(item) for all items.  If the job fails, try each item alone, so that one bad item fails alone."""
        try:
            return run_job(self._context, judge, items, progress, alone_s_max=self._alone_s_max)
        except JobFailed:
            pass  # the next step tries each item separately
        answers: list[R | Judged] = []
        for item in items:
            try:
                answers += run_job(self._context, judge, [item], lambda _: None, alone_s_max=self._alone_s_max)
            except JobFailed as problem:
                why = "the worker died in each attempt to judge this part" if problem.died else str(problem)
                answers.append(Judged(None, f"{named(task_of(item).part)}: {why}", 0.0))
        return answers

    def run(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return function(item) of every item, each as a task.  The nodes of a cluster need the function's module.

        Ctrl-C cancels the job and raises KeyboardInterrupt.  Raises SparkUnavailable, with the reason.
        """
        with self._started():
            try:
                return run_job(self._context, function, items, lambda _: None, alone_s_max=self._alone_s_max)
            except JobFailed as problem:
                raise SparkUnavailable(str(problem)) from problem

    @contextlib.contextmanager
    def _started(self) -> Iterator[None]:
        """Wait until Spark is up.  Raises SparkUnavailable if Spark does not start, or if its virtual machine ends."""
        from py4j.protocol import Py4JError

        self.wait_until_started()
        try:
            yield
        except (Py4JError, OSError) as problem:  # the virtual machine ended; a failed job raises JobFailed
            raise SparkUnavailable("; ".join(how_it_ended(self._gateway)) or self._last_words(problem)) from problem

    def stop(self) -> None:
        """End Spark and its virtual machine, and return after both have ended.  Does nothing if Spark never started.

        An unfinished start is terminated.
        """
        with self._lock:
            starting = self._starting
            self._starting = threading.current_thread()
        if starting is None or starting is threading.current_thread():
            return
        until = time.monotonic() + STOP_S_MAX
        while self._context is None and not self._ready.wait(POLL_S) and time.monotonic() < until:
            terminate_children(starting)
        if self._context is not None:
            stop_context(self._context)
            self._context = None
        self._ready.wait(STOP_S_MAX)
        end_gateway(self._gateway, RECORD_S_MAX if self._record_archive else STOP_S_MAX)
        self._files.close()

    def _start(self) -> None:
        try:
            if problem := settings.problem_with(self.master):
                raise SparkUnavailable(problem)
            settings.await_master(self.master)
            self._context = self._new_context()
            self._nodes = self._await_nodes()
        except SparkUnavailable as why:
            self._failure = str(why)
        except Exception as why:  # noqa: BLE001 - Spark raises any exception; each means that Spark did not start
            self._failure = f"Spark did not start: {self._last_words(why)}"
        finally:
            self._ready.set()

    def _await_nodes(self) -> list[WorkerHost]:
        """Fork the workers, and return the `WorkerHost` of each node.  Raises SparkUnavailable if one cannot judge."""
        if not self._local:
            self._await_executor()
        tasks = range(2 if self._local else 2 * self._context.defaultParallelism)
        limits = {"alone_s_max": self._alone_s_max, "seconds_max": READY_S_MAX}
        found = run_job(self._context, ask, tasks, lambda _: None, **limits)
        nodes = {(one.host, one.pid): one for one in found}
        for one in nodes.values():
            if one.problem:
                raise SparkUnavailable(f"the workers on {one.host} (Python {one.python}) cannot judge: {one.problem}")
        return [nodes[name] for name in sorted(nodes)]

    def _await_executor(self) -> None:
        while not executors(self._context):
            if stopped(self._context):
                raise SparkUnavailable(f"{self.master} refused: {self._last_words(RuntimeError('it gave no reason'))}")
            if time.monotonic() - self._began > self._alone_s_max:
                raise SparkUnavailable(
                    f"{self.master} gave us no executor within {self._alone_s_max:.0f} s: it has no worker with a free "
                    "core and 1 GiB, or its workers cannot call this machine back"
                )
            time.sleep(POLL_S)

    def _new_context(self) -> Any:
        from pyspark import SparkConf, SparkContext

        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_not_of_py4j)
        if SparkContext._active_spark_context is not None:
            raise SparkUnavailable("this process already runs a Spark, and it can run only one")
        java = find_java()
        os.environ["JAVA_HOME"] = str(java.home)
        if self._local:
            os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
        of_spark = self._settings(java)
        self._began = time.monotonic()  # the time to build the bundle does not count as waiting for the cluster
        self._log = tempfile.TemporaryFile(prefix="krucible-spark-")  # noqa: SIM115 - closed by `stop`
        self._files.enter_context(self._log)
        fixed = SparkConf(loadDefaults=False).setAll(sorted(of_spark.fixed.items()))
        self._gateway = launch_gateway(fixed, {"stdout": self._log, "stderr": self._log})
        conf = SparkConf(_jvm=self._gateway.jvm)  # it includes the user's spark-defaults.conf
        for name, value in of_spark.defaults.items():
            conf.setIfMissing(name, value)
        context = SparkContext(conf=conf, gateway=self._gateway)
        if not self._local:  # a local context has no logger
            context.setLogLevel("OFF")
        # otherwise pyspark prints a traceback if the virtual machine ends
        context._accumulatorServer.handle_error = lambda *_: None
        return context

    def _settings(self, java: Java) -> settings.Settings:
        import pyspark

        archive = self._record_archive or java.archive(pyspark)
        options = java.options(archive, record=self._record_archive is not None)
        if self._local:
            return settings.local_settings(self.master, options)
        folder = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="krucible-cluster-")))
        starter = folder / f"{bundle.MODULE}.py"
        shutil.copyfile(bundle.__file__, starter)
        return settings.cluster_settings(self.master, options, starter, bundle.make_bundle())

    def _last_words(self, problem: Exception) -> str:
        """Return the reason of a failed start in one line.

        It is an error that the virtual machine printed, its exit status, its last output, or the exception's first
        line.
        """
        printed = b""
        if self._log is not None:
            self._log.seek(0)
            printed = self._log.read()[-4000:]
        texts = (type(problem).__name__, str(problem), printed.decode(errors="replace"))
        lines = [line.strip(" :") for text in texts for line in text.splitlines() if line.strip()]
        errors = [line for line in lines[1:] if "rror" in line or "xception" in line]
        return (errors or how_it_ended(self._gateway) or lines)[-1][:300]


def _seconds(named: str, default: float) -> float:
    return float(named) if named.isdigit() else default


def terminate_children(thread: threading.Thread) -> None:
    """End the processes that a thread of this process started.  Does nothing if the kernel does not list them."""
    listed = Path(f"/proc/self/task/{thread.native_id}/children")
    with contextlib.suppress(OSError):
        for pid in listed.read_text().split():
            os.kill(int(pid), signal.SIGTERM)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Reject py4j's log records: py4j logs to the root logger the stack traces of a virtual machine that has ended."""
    return Path(record.pathname).parent.name != "py4j"


# Jobs

JOB_POLL_S = 0.25
"""Seconds between two requests for the progress of a job; each request costs the virtual machine some milliseconds."""

TASKS_PER_CORE = 4
"""Maximum number of tasks per core of this machine.  A cluster gets one task per part, because its nodes may freeze."""

_groups = itertools.count()


class JobFailed(RuntimeError):
    """Spark gave up a job.

    died: True if a task's worker died in each attempt; otherwise the message gives the reason
    """

    def __init__(self, problem: str) -> None:
        super().__init__(_last_python_line(problem))
        self.died = "Traceback" not in problem


def run_job(
    context: Any,
    function: Callable[[T], R],
    items: Sequence[T],
    progress: Callable[[int], None],
    *,
    alone_s_max: float,
    seconds_max: float | None = None,
) -> list[R]:
    """Run function(item) for every item.  Returns the results in the order of the items.

    On a cluster each item is a task.  Spark inside this process gets fewer tasks, because each costs 20 ms of CPU time.
    Neighbouring items often cost the same, so each task gets items from all over the list.

    progress: called with the number of finished items each time this number grows
    alone_s_max: maximum time in seconds without an executor
    seconds_max: maximum duration of the job in seconds; None for no limit
    Ctrl-C cancels the job and raises KeyboardInterrupt.  Raises JobFailed if Spark gave up the job.  Raises
    SparkUnavailable if one of the limits was exceeded or the cluster ended the session.
    """
    from pyspark import InheritableThread

    group = f"krucible-{next(_groups)}"
    tasks = len(items)
    if context._jsc.isLocal():
        tasks = min(tasks, TASKS_PER_CORE * context.defaultParallelism)
    order = [place for first in range(tasks) for place in range(first, len(items), tasks)]
    results: dict[int, R] = {}
    problems: list[str] = []

    def run() -> None:
        try:
            context.setJobGroup(group, "judging", interruptOnCancel=True)
            # otherwise Spark describes each RDD in JSON for its web pages, and loading the JSON writer takes long
            context.setLocalProperty("spark.rdd.scope.noOverride", "true")
            found = context.parallelize([items[place] for place in order], tasks).map(function).collect()
            results.update(zip(order, found, strict=True))
        except Exception as problem:  # noqa: BLE001 - Spark raises any exception; each means that it gave up the job
            problems.append(str(problem))

    thread = InheritableThread(target=run, name=group, daemon=True)
    began = seen_at = time.monotonic()
    thread.start()
    reported = 0
    try:
        while thread.is_alive():
            thread.join(JOB_POLL_S)
            if not thread.is_alive():
                break
            now = time.monotonic()
            if (done := _done(context, group) * len(items) // tasks) > reported:
                reported = done
                progress(reported)
            if executors(context):
                seen_at = now
            if now - seen_at > alone_s_max:
                raise SparkUnavailable(f"no executor of {context.master} was left for {alone_s_max:.0f} s")
            if seconds_max is not None and now - began > seconds_max:
                raise SparkUnavailable(f"{context.master} did not answer within {seconds_max:.0f} s")
    except (KeyboardInterrupt, SparkUnavailable):
        _cancel(context, group)
        raise
    if problems:
        if stopped(context):
            raise SparkUnavailable(f"the cluster ended the session: {_first_line(problems[0])}")
        raise JobFailed(problems[0])
    progress(len(items))
    return [results[place] for place in range(len(items))]


def _cancel(context: Any, group: str) -> None:
    """Cancel a job.  If the virtual machine is gone, the job has already ended."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, OSError):
        context.cancelJobGroup(group)


def executors(context: Any) -> int:
    """Return the number of executors: 1 if Spark runs inside this process, 0 if the cluster has ended the session."""
    if stopped(context):
        return 0
    known = int(context._jsc.sc().getExecutorMemoryStatus().size())
    return known if context._jsc.isLocal() else known - 1  # Spark includes the driver in the count


def stopped(context: Any) -> bool:
    """Return True if the session has ended because a cluster refused it or ended."""
    return bool(context._jsc.sc().isStopped())


def _done(context: Any, group: str) -> int:
    """Return the number of finished tasks of a job group."""
    tracker = context.statusTracker()
    jobs = [job for number in tracker.getJobIdsForGroup(group) if (job := tracker.getJobInfo(number))]
    stages = [stage for job in jobs for number in job.stageIds if (stage := tracker.getStageInfo(number))]
    return sum(stage.numCompletedTasks for stage in stages)


def _last_python_line(problem: str) -> str:
    """Return the exception of a worker from Spark's message; if there is none, the message's first line."""
    if "Traceback" not in problem:
        return _first_line(problem)
    inside = problem[problem.rindex("Traceback") :].split("\n\n")[0]
    return _first_line(inside.splitlines()[-1])


def _first_line(problem: str) -> str:
    """Return the line that names the exception: the first one after Py4J's 'An error occurred while calling ...'."""
    lines = [line.strip(" :") for line in problem.splitlines() if line.strip() and "An error occurred" not in line]
    return (lines or ["Spark printed nothing"])[0][:300]
