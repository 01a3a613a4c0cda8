"""A standalone Spark cluster of two workers on this machine, and a driver in a process of its own.

    with Cluster(folder) as cluster, Driver(cluster.master, folder) as driver:
        job = driver.judge(run_folder, delay_s=0.3)
        job.wait_for(4)                              # parts judged
        os.kill(cluster.executors()[0], signal.SIGKILL)
        results = job.results()                      # the content of results.json

Run as a script this file is that driver: a process can hold only one Spark, and pytest's is `local[*,4]`.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from own_address import HOST, free_ports

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 600.0


class Cluster:
    """A master and workers of one core each, on the loopback; all of them end with the `with` block.

    Its nodes keep what they are sent in a cache of their own, which is empty at first.
    """

    def __init__(self, folder: Path, workers: int = 2, **environment: str) -> None:
        self.folder = folder
        self.master = f"spark://{HOST}:{free_ports(1)[0]}"
        self.environment = {"XDG_CACHE_HOME": str(folder / "cache")} | environment
        self.processes: list[subprocess.Popen[bytes]] = []
        self.count = workers

    def __enter__(self) -> Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        host, port = self.master.removeprefix("spark://").split(":")
        self._start("master", [], ["--host", host, "--port", port, "--webui-port", "0"])
        until(lambda: answers(host, int(port)), "the master to listen")
        for _ in range(self.count):
            self.add_worker()
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.executors():  # a stopped executor would outlive its worker
            end(pid)
        for process in reversed(self.processes):
            end(process.pid)
            process.wait(PATIENCE_S)

    def add_worker(self, hidden: Path | None = None) -> subprocess.Popen[bytes]:
        """One more worker.  hidden: a folder that it finds empty, as on a machine that does not share this disk."""
        name = f"worker-{len(self.processes)}"
        options = ["--host", "127.0.0.1", "--webui-port", "0", "-c", "1", "-m", "2g", "-d", str(self.folder / name)]
        worker = self._start(name, seeing_nothing_in(hidden) if hidden else [], [*options, self.master])
        until(lambda: b"Successfully registered" in (self.folder / f"{name}.log").read_bytes(), f"{name} to register")
        return worker

    @property
    def workers(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.processes[1:] if process.poll() is None]

    def executors(self) -> list[int]:
        """Process ids of the executors' virtual machines."""
        return [pid for worker in self.workers for pid in descendants(worker.pid) if runs(pid, "ExecutorBackend")]

    def _start(self, name: str, prefix: list[str], arguments: list[str]) -> subprocess.Popen[bytes]:
        import pyspark

        from checkers.spark.java import find_java

        kind = "master.Master" if name == "master" else "worker.Worker"
        home = Path(pyspark.__file__).parent
        guard = ["setpriv", "--pdeathsig", "TERM"]  # killed tests leave no processes running
        command = [*guard, *prefix, str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        environment = os.environ | {
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        environment.pop("PYTHONPATH", None)  # nodes must find only the parts of Krucible that were sent to them
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment | self.environment, cwd=self.folder
            )
        self.processes.append(process)
        return process


class Job:
    """A judging that is under way in a driver."""

    def __init__(self, driver: Driver, number: int) -> None:
        self._driver = driver
        self._number = number

    def wait_for(self, parts: int) -> None:
        """Until so many parts are judged."""
        for report in self._reports():
            if report.get("done", 0) >= parts:
                return
            assert "results" not in report, "the judging was over before it could be disturbed"

    def results(self) -> dict[str, Any]:
        """The content of results.json, without the seconds; `judged_by` apart, under "by"."""
        for report in self._reports():
            if "results" in report:
                results: dict[str, Any] = report["results"]
                return results
        raise AssertionError("the driver ended without results")

    def _reports(self) -> Iterator[dict[str, Any]]:
        """The reports of this job; a test that failed may have left some of an earlier one unread."""
        return (report for report in self._driver.says() if report["job"] == self._number)


class Driver:
    """A process with a SparkJudge for the cluster."""

    def __init__(self, master: str, folder: Path, **environment: str) -> None:
        self._errors = (folder / "driver.log").open("w+")
        self._jobs = 0
        self._process = subprocess.Popen(
            [sys.executable, __file__, master],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support"), str(Path(__file__).parent)]),
                "PYSPARK_PYTHON": sys.executable,
                "KRUCIBLE_SPARK_START_S": str(5 * PATIENCE_S),
            }
            | environment,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._errors.close()

    def judge(self, run_folder: Path, delay_s: float = 0.0) -> Job:
        """Begin to judge a run with every checker, each part delayed."""
        assert self._process.stdin is not None
        self._jobs += 1
        order = {"job": self._jobs, "run": str(run_folder), "delay_s": delay_s}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Job(self, self._jobs)

    def says(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)
        self._errors.seek(0)
        raise AssertionError(f"the driver ended: {self._errors.read()[-3000:]}")


def comparable(results: Mapping[str, Any]) -> dict[str, Any]:
    """results.json without what differs from one judging to the next: how long it took, and where it was."""
    checkers = {name: {k: v for k, v in e.items() if k != "seconds"} for name, e in results["checkers"].items()}
    return {k: v for k, v in results.items() if k != "judged_by"} | {"checkers": checkers}


def assert_same(results: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compare results.json with `expected`, which is comparable.  A failure names the place, and each other checker."""
    found = comparable(results)
    names = sorted(found["checkers"].keys() | expected["checkers"].keys())
    pairs = [(name, found["checkers"].get(name), expected["checkers"].get(name)) for name in names]
    differing = [f"{name}: {here}\n  expected: {there}" for name, here, there in pairs if here != there]
    assert found == expected, "\n".join([f"judged by {results.get('judged_by')}", *differing])


def seeing_nothing_in(folder: Path) -> list[str]:
    """What to put before a command so that it finds a folder empty."""
    hide = f'mount -t tmpfs none {shlex.quote(str(folder))} && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", hide, "sh"]


def can_hide_folders() -> bool:
    """Whether this machine lets us make namespaces of mounts."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*seeing_nothing_in(Path("/mnt")), "true"], capture_output=True, check=False).returncode == 0


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, tasks.read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *descendants(child))]


def runs(pid: int, word: str) -> bool:
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def delayed(judge: Callable[..., Any], delay_s: float, part: Any, budget: Any) -> Any:
    time.sleep(delay_s)
    return judge(part, budget)


def drive(master: str) -> None:
    from wrong_run import DEMANDS

    from checkers.base.results import as_object
    from checkers.base.stored_run import StoredRun
    from checkers.catalog import CATALOG
    from checkers.judging import judge_run, results_of
    from checkers.spark.session import SparkJudge

    job = 0

    def say(**what: Any) -> None:
        print(json.dumps({"job": job, **what}), flush=True)

    def report_progress(words: str) -> None:
        if words.startswith("judged "):
            say(done=int(words.split()[1]))

    spark = SparkJudge(master)
    spark.start_in_background()
    for line in sys.stdin:
        order = json.loads(line)
        job = order["job"]
        slow = [
            replace(c, judge=functools.partial(delayed, c.judge, order["delay_s"])) if order["delay_s"] else c
            for c in CATALOG.values()
        ]
        root = Path(order["run"])
        demands = pickle.loads((root.parent / DEMANDS).read_bytes())
        say(results=as_object(results_of(judge_run(StoredRun(root, demands), slow, spark, report_progress))))
    spark.stop()


if __name__ == "__main__":
    drive(sys.argv[1])
