"""The Spark that judges: started in the background, one job for all parts, and never a stack trace.

A task is a part: file paths and parameters.  The worker opens the files itself with pyarrow, so no row crosses the
virtual machine; a whole run is one job of a few dozen tasks.  `local[*,4]`, the default, lives inside this process and
forgives a worker three deaths per task; any other master gets the code of `checkers` as a zip.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from checkers.spark.daemon import worker_memory_bytes
from checkers.spark.java import Java, SparkUnavailable, find_java
from checkers.tasks import Judged, Task, judge_task

LOCAL = "local[*,4]"
"""All cores, and four attempts per task: with plain local[*] one killed worker fails the whole job."""

POLL_S = 0.1
STOP_S = 20.0
"""How long `stop` waits for a start still under way; a virtual machine left behind ends with this process."""

__all__ = ["SparkJudge", "SparkUnavailable"]


class SparkJudge:
    """Judges tasks on Spark.  Start it early; `judge` waits until it is up.

    master: of a cluster (spark://, k8s://, yarn), whose nodes have this project's dependencies installed and can read
        the run folder under the same path; None for one inside this process.
    record_archive: where to record the class-data archive when the virtual machine ends (set-up only).
    """

    def __init__(self, master: str | None = None, *, record_archive: Path | None = None) -> None:
        self.master = master or LOCAL
        self._record_archive = record_archive
        self._starting: threading.Thread | None = None
        self._ready = threading.Event()
        self._context: Any = None
        self._gateway: Any = None
        self._failure = ""
        self._log: IO[bytes] | None = None
        self._code: Path | None = None
        self._groups = itertools.count()
        self._lock = threading.Lock()

    @property
    def description(self) -> str:
        """What judged, in words: the version of Spark, its master, and the memory its workers are held to."""
        import pyspark

        words = f"Spark {pyspark.__version__} on {self.master}"
        return f"{words}, {worker_memory_bytes() / 2**30:.0f} GiB a worker" if self._has_daemon else words

    @property
    def _has_daemon(self) -> bool:
        """Whether workers are forked from our own daemon: only where they can import it before any code is sent."""
        return self.master.startswith("local[")

    def start_in_background(self) -> None:
        """Begin to start; returns at once.  A failure to start is told by `judge`.  Calling it again does nothing."""
        with self._lock:
            if self._starting is None:
                self._starting = threading.Thread(target=self._start, name="spark-start", daemon=True)
                self._starting.start()

    def wait_until_started(self) -> None:
        """Raises SparkUnavailable, saying why, if Spark did not start."""
        self.start_in_background()
        while not self._ready.wait(POLL_S):  # in short waits, so that Ctrl-C is heard
            pass
        if self._failure:
            raise SparkUnavailable(self._failure)

    def judge(self, tasks: Sequence[Task], progress: Callable[[int, int], None] | None = None) -> list[Judged]:
        """Judge every task, in one job; the answers stand in the order of the tasks.

        progress is called with (done, total) a few times a second.  A task whose worker dies four times is a failure
        of its own; the others are still judged.  Ctrl-C cancels the job and goes on as KeyboardInterrupt.
        Raises SparkUnavailable if Spark did not start.
        """
        self.wait_until_started()
        if not tasks:
            return []
        judged = self._job(tasks, progress or (lambda done, total: None))
        if judged is not None:
            return judged
        one_by_one = []
        for task in tasks:
            alone = self._job([task], lambda done, total: None)
            one_by_one.append(alone[0] if alone else Judged(None, _died(task), 0.0))
        return one_by_one

    def stop(self) -> None:
        """End Spark and its virtual machine; returns when they are gone.  Harmless if it never started."""
        with self._lock:
            starting = self._starting
            self._starting = threading.current_thread()
        if starting is None or starting is threading.current_thread():
            return
        self._ready.wait(STOP_S)
        if self._context is not None:
            self._context.stop()
            self._context = None
        _end_gateway(self._gateway)
        if self._code is not None:
            self._code.unlink(missing_ok=True)
        if self._log is not None:
            self._log.close()

    def _start(self) -> None:
        try:
            self._context = self._new_context()
            self._context.parallelize(range(2), 2).map(_echo).collect()  # forks the workers, which load the kernels
        except SparkUnavailable as problem:
            self._failure = str(problem)
        except Exception as problem:  # noqa: BLE001 - Spark raises anything; it all means that it is not there
            self._failure = f"Spark did not start: {self._last_words(problem)}"
        finally:
            self._ready.set()

    def _new_context(self) -> Any:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        if SparkContext._active_spark_context is not None:
            raise SparkUnavailable("this process already runs a Spark, and it can run only one")
        java = find_java()
        os.environ["JAVA_HOME"] = str(java.home)
        if self.master.startswith("local"):
            os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
        conf = SparkConf(loadDefaults=False).setAll(sorted(self._settings(java).items()))
        self._log = tempfile.TemporaryFile(prefix="krucible-spark-")  # noqa: SIM115 - closed by `stop`
        self._gateway = launch_gateway(conf, {"stdout": self._log, "stderr": self._log})
        context = SparkContext(conf=conf, gateway=self._gateway)
        context.setLogLevel("OFF")
        return context

    def _settings(self, java: Java) -> dict[str, str]:
        import pyspark

        archive = self._record_archive or java.archive(pyspark.__version__)
        options = java.options(archive, record=self._record_archive is not None)
        settings = {
            "spark.master": self.master,
            "spark.app.name": "krucible",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": " ".join(options),
        }
        if self.master.startswith("local"):
            settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        if self._has_daemon:
            settings["spark.python.daemon.module"] = "checkers.spark.daemon"
            settings["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(filter(None, [str(_root()), *sys.path]))
        else:
            self._code = _zip_of_code()
            settings["spark.submit.pyFiles"] = str(self._code)
        return settings

    def _job(self, tasks: Sequence[Task], progress: Callable[[int, int], None]) -> list[Judged] | None:
        """Run one job, and say how far it is meanwhile; None if Spark gave it up."""
        from pyspark import InheritableThread

        context = self._context
        group = f"krucible-{next(self._groups)}"
        judged: list[Judged] = []
        failed = threading.Event()

        def run() -> None:
            try:
                context.setJobGroup(group, "judging", interruptOnCancel=True)
                judged.extend(context.parallelize(tasks, len(tasks)).map(judge_task).collect())
            except Exception:  # noqa: BLE001 - told apart below: the job was given up, whatever Spark calls it
                failed.set()

        thread = InheritableThread(target=run, name=group, daemon=True)
        thread.start()
        told = 0
        try:
            while thread.is_alive():
                thread.join(POLL_S)
                done = 0 if not thread.is_alive() else self._done(group)
                if done > told:
                    told = done
                    progress(told, len(tasks))
        except KeyboardInterrupt:
            context.cancelJobGroup(group)
            raise
        if failed.is_set():
            return None
        progress(len(tasks), len(tasks))
        return judged

    def _done(self, group: str) -> int:
        """How many tasks of a job group are done."""
        tracker = self._context.statusTracker()
        jobs = [job for number in tracker.getJobIdsForGroup(group) if (job := tracker.getJobInfo(number))]
        stages = [stage for job in jobs for number in job.stageIds if (stage := tracker.getStageInfo(number))]
        return sum(stage.numCompletedTasks for stage in stages)

    def _last_words(self, problem: Exception) -> str:
        """Why it did not start, in one line: what the virtual machine printed last, else the exception's first line."""
        printed = b""
        if self._log is not None:
            self._log.seek(0)
            printed = self._log.read()[-4000:]
        lines = [line.strip() for line in printed.decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line or "xception" in line]
        return (errors or lines or str(problem).splitlines() or [type(problem).__name__])[-1][:300]


def _echo(number: int) -> int:
    return number


def _died(task: Task) -> str:
    names = ", ".join(Path(path).name for path in task.part.paths) or "a part without files"
    return f"{names}: the worker died each time it tried to judge it"


def _root() -> Path:
    """The folder `checkers` is imported from."""
    return Path(__file__).resolve().parent.parent.parent


def _zip_of_code() -> Path:
    """`checkers` as a zip that the nodes of a cluster can import."""
    handle, name = tempfile.mkstemp(prefix="krucible-", suffix=".zip")
    with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted((_root() / "checkers").rglob("*.py")):
            archive.write(source, source.relative_to(_root()))
    return Path(name)


def _end_gateway(gateway: Any) -> None:
    """Let go of the virtual machine, which ends when its standard input does, and wait until it has."""
    from pyspark import SparkContext

    if gateway is None:
        return
    gateway.shutdown()
    if gateway.proc is not None:
        gateway.proc.stdin.close()
        gateway.proc.wait()
    with SparkContext._lock:
        SparkContext._gateway = None
        SparkContext._jvm = None
