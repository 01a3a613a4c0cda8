"""Spark: the same verdicts as in process, even if its workers fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pyspark
import pytest
from histories import by_construction, write_stream
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from waiting import until

from checkers.base.checker import Budget, Part, Task
from checkers.base.history import Type
from checkers.base.results import as_object
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity
from checkers.judging import Verdicts, judge_run, results_of
from checkers.registers.checker import LINEARIZABILITY
from checkers.run_quality.history_figures import STATISTICS
from checkers.sealing.seal import seal
from checkers.spark.java import stop_context
from checkers.spark.session import SparkJudge, terminate_children

pytestmark = pytest.mark.spark

CHECKERS = [LINEARIZABILITY, STATISTICS]


def a_run(folder: Path, operations: int = 4000) -> StoredRun:
    """A run of 20 keys, some of them wrong."""
    events = list(by_construction(Random(6), operations, processes=10, keys=20, crash=0.01))
    for read in [e for e in events if e.f == "read" and e.type is Type.OK][300::40]:
        events[read.index] = replace(read, value=10**6)
    seal(write_stream(folder, events))
    return StoredRun(folder)


def apart_from_seconds(verdicts: Verdicts) -> dict[str, object]:
    entries = as_object(results_of(verdicts))["checkers"]
    return {name: {k: v for k, v in entry.items() if k != "seconds"} for name, entry in entries.items()}


def test_a_start_that_is_given_up_ends_what_its_thread_has_started_and_nothing_else() -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        ended: list[int] = []

        def start() -> None:
            with subprocess.Popen(["sleep", "600"]) as started:
                begun.set()
                ended.append(started.wait())

        begun = threading.Event()
        thread = threading.Thread(target=start)
        thread.start()
        begun.wait()
        terminate_children(thread)
        thread.join()
        assert ended == [-signal.SIGTERM]
        assert other.poll() is None
        other.kill()


def test_verdicts_and_witnesses_are_those_judged_in_process(spark: SparkJudge, tmp_path: Path) -> None:
    files = a_run(tmp_path)
    reports: list[str] = []
    on_spark = judge_run(files, CHECKERS, spark, reports.append)
    in_process = judge_run(files, CHECKERS)
    assert on_spark["linearizability"].validity is Validity.INVALID
    assert apart_from_seconds(on_spark) == apart_from_seconds(in_process)
    assert "local[*,4]" in on_spark.judged_by
    parts = len(list(files.buckets.glob("bucket-*")))
    assert reports[-1] == f"judged {parts} of {parts} parts"


def squared(part: Part, budget: Budget) -> int:
    time.sleep(0.3)
    return int(part.params["n"]) ** 2


def raises_or_takes_all_memory(part: Part, budget: Budget) -> int:
    if part.params["n"] == 1:
        raise ValueError("a kernel that is wrong\nwith a second line")
    return int(np.zeros(1 << 45, np.int8)[0]) if part.params["n"] == 2 else 0


def dies_once(part: Part, budget: Budget) -> int:
    """The first time it is judged, its worker is killed in the middle, as the kernel's out-of-memory killer would."""
    marker = Path(part.paths[0])
    if part.params["n"] == 1 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 7


def dies_always(part: Part, budget: Budget) -> int:
    if part.params["n"] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 7


def tasks(judge: object, path: str = "some.parquet") -> list[Task]:
    return [Task(judge, Part((path,), {"n": n}), Budget()) for n in range(4)]  # type: ignore[arg-type]


def test_answers_stand_in_the_order_of_the_tasks_and_progress_is_reported(spark: SparkJudge) -> None:
    reported: list[tuple[int, int]] = []
    judged = spark.judge(tasks(squared), lambda done, total: reported.append((done, total)))
    assert [j.finding for j in judged] == [0, 1, 4, 9]
    assert reported[-1] == (4, 4) and reported == sorted(reported)
    assert spark.judge([]) == []


def sources_of_spark(part: Part, budget: Budget) -> list[str | None]:
    return [sys.modules[name].__file__ for name in ("pyspark", "pyspark.worker", "py4j")]


def test_workers_import_installed_sources_and_none_from_a_zip(spark: SparkJudge) -> None:
    site = Path(pyspark.__file__).parents[1]
    installed = [str(site / name) for name in ("pyspark/__init__.py", "pyspark/worker.py", "py4j/__init__.py")]
    assert spark.judge(tasks(sources_of_spark))[0].finding == installed


def test_a_kernel_that_raises_or_wants_all_memory_is_a_failure_of_its_part_alone(spark: SparkJudge) -> None:
    first, raised, wanted, last = spark.judge(tasks(raises_or_takes_all_memory))
    assert raised.failure == "some.parquet: ValueError: a kernel that is wrong"
    assert wanted.failure.startswith("some.parquet: ") and "emory" in wanted.failure
    assert (first.failure, last.failure) == ("", "")


def test_a_worker_killed_in_the_middle_changes_nothing(spark: SparkJudge, tmp_path: Path) -> None:
    judged = spark.judge(tasks(dies_once, str(tmp_path / "died")))
    assert [j.finding for j in judged] == [7, 7, 7, 7]
    assert (tmp_path / "died").exists()


@pytest.mark.nightly
def test_a_part_that_kills_every_worker_is_unknown_and_the_others_are_judged(spark: SparkJudge) -> None:
    judged = spark.judge(tasks(dies_always))
    assert [j.finding for j in judged] == [7, None, 7, 7]
    assert judged[1].failure == "some.parquet: the worker died in each attempt to judge this part"


def test_a_second_spark_in_one_process_is_refused_and_the_run_still_judged(spark: SparkJudge, tmp_path: Path) -> None:
    spark.wait_until_started()
    files = a_run(tmp_path, operations=300)
    second = SparkJudge()
    reports: list[str] = []
    verdicts = judge_run(files, CHECKERS, second, reports.append)
    second.stop()
    assert verdicts.judged_by == "in process (this process already runs a Spark, and it can run only one)"
    assert reports[0].startswith("judging in process: ")
    assert verdicts["statistics"].validity is Validity.VALID
    assert spark.judge(tasks(squared))[3].finding == 9


SLEEPS_IN_A_PROCESS_OF_ITS_OWN = """
import sys
from pathlib import Path
from checkers.base.checker import Budget, Part, Task
from checkers.spark.session import SparkJudge

def sleeps(part, budget):
    import time
    Path(part.paths[0]).touch()
    time.sleep(1000)

if __name__ == "__main__":
    spark = SparkJudge()
    try:
        print("starting", flush=True)
        spark.judge([Task(sleeps, Part((sys.argv[1],)), Budget())])
    except KeyboardInterrupt:
        print("interrupted")
    finally:
        spark.stop()
"""


def _heed_ctrl_c() -> None:
    """What a shell starts in the background, such as a nightly job, ignores it, and so would all its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.nightly
def test_ctrl_c_ends_the_judging_at_once_and_without_a_trace(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    script = tmp_path / "script.py"
    script.write_text(SLEEPS_IN_A_PROCESS_OF_ITS_OWN)
    process = subprocess.Popen(
        [sys.executable, script, begun],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        cwd=tmp_path,
        preexec_fn=_heed_ctrl_c,
    )
    until(lambda: begun.exists() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=1000)
    assert out == "starting\ninterrupted\n"
    assert err == ""
    assert process.returncode == 0


class AVirtualMachineThatIsGone:
    """What a context holds of its virtual machine once that has ended: each call raises."""

    def __init__(self, problem: Exception) -> None:
        self.problem = problem

    def stop(self) -> None:
        raise self.problem


@pytest.mark.parametrize("noticed", [Py4JNetworkError("answer from Java side is empty"), ConnectionRefusedError()])
def test_a_context_whose_virtual_machine_is_gone_is_forgotten_without_a_word(
    noticed: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    # py4j raises either error, depending on how soon it notices the closed connection.
    context = object.__new__(SparkContext)
    context._jsc = AVirtualMachineThatIsGone(noticed)
    # restores the live context of other tests afterwards
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stop_context(context)
    assert context._jsc is None
    assert SparkContext._active_spark_context is None


ITS_VIRTUAL_MACHINE_IS_KILLED = """
import os, signal, sys
from pathlib import Path
from checkers.base.checker import Budget, CannotJudge, Part, Task
from checkers.spark.session import SparkJudge

def squared(part, budget):
    return part.params["number"] ** 2

def judged(spark, number):
    return spark.judge([Task(squared, Part((), {"number": number}), Budget())])[0].finding

def child_with(word):
    listed = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [int(pid) for path in listed for pid in path.read_text().split()]
    return next(pid for pid in pids if word in Path(f"/proc/{pid}/cmdline").read_bytes())

if __name__ == "__main__":
    first = SparkJudge()
    print(judged(first, 3), flush=True)
    os.kill(child_with(b"SparkSubmit"), signal.SIGKILL)
    try:
        judged(first, 4)
    except CannotJudge as problem:
        print(type(problem).__name__)
    first.stop()
    second = SparkJudge()
    print(judged(second, 5))
    second.stop()
"""


def test_a_virtual_machine_that_is_killed_leaves_no_trace_and_another_may_start(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ITS_VIRTUAL_MACHINE_IS_KILLED)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, script], text=True, capture_output=True, env=environment, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("9\nSparkUnavailable\n25\n", "")
    assert done.returncode == 0
