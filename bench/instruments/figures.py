"""Figures of bench scripts as data, and the speed of this machine, which scales the goals.

*Figures.*  Every bench script prints its figures on the terminal, and stores them as JSON lines for tables and plots.

    {"figure": "linearizability, 100000 keys, on Spark", "size": 10000000, "of": "events", "value": 0.58, "unit": "s",
     "goal": 0.6}

`size` and `of` give the size of the input; figures with one name and several sizes make one line of the plot.  `goal`
is null if there is none.  A value reaches its goal if it is not above the goal; a rate ("1/s"), if it is not below.

Goals are stated for one machine and scaled to this machine.  The stored `goal` is the scaled one.

*Speed.*  One number states how fast this machine is.  Goals are scaled by it.

The speed is measured by a kernel that sorts, sums and walks over a few hundred thousand integers, which is typical of
judging.  The minimum of several runs counts, in CPU seconds, so other processes disturb it little.  Goals were set on a
machine where the kernel took REFERENCE_S; here, a goal is multiplied by `factor()`.

*Memory.*  Samples of the memory and the CPU time of a process and all its descendants.

    with ProcessWatch(pid) as watch: ...
    watch.peak_mb, watch.peak_by_role_mb, watch.cpu_s

Memory is resident memory (VmRSS), summed over all processes at each sample.  Pages that forked workers share are
counted once for each worker, so the sum is an upper bound.  A peak between two samples is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from checkers.base.cache_folder import cache_folder


@dataclass(frozen=True, slots=True)
class BenchFigure:
    """One measurement; the fields are described at the top of this file."""

    figure: str
    size: int
    of: str
    value: float
    unit: str
    goal: float | None = None

    @property
    def reached(self) -> bool:
        """Return True if the figure reaches its goal, or has none."""
        if self.goal is None:
            return True
        return self.value >= self.goal if self.unit.endswith("/s") else self.value <= self.goal

    def in_words(self) -> str:
        goal = "" if self.goal is None else f"   goal {self.goal:g}{'' if self.reached else ', missed'}"
        return f"{self.figure:<62} {self.size:>11,} {self.of:<12} {_short(self.value):>9} {self.unit:<4}{goal}"


class Sheet:
    """Output for the figures of a script: the terminal and, if a path is given, JSON lines appended to that file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def add(self, figure: str, size: int, of: str, value: float, unit: str = "s", goal: float | None = None) -> None:
        """Print and store a figure. goal: on the machine for which goals were set."""
        one = BenchFigure(figure, size, of, value, unit, goal_here(goal, unit))
        self.keep(one, one.in_words())

    def keep(self, one: BenchFigure, shown: str) -> None:
        """Print and store a figure. shown: its line on the terminal."""
        print(shown, flush=True)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(one)) + "\n")


Measure = Callable[[argparse.Namespace, Sheet], None]


def script(doc: str | None, measure: Measure | Mapping[str, Measure], **options: Mapping[str, Any]) -> None:
    """Run a bench script, and print how busy the machine was.

    measure: function of the script; or its parts by name, of which the first argument chooses one
    options: name -> arguments of `add_argument`; in addition, `--json` names the file that gets the figures
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if isinstance(measure, Mapping):
        parser.add_argument("part", choices=measure)
    for name, how in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    parser.add_argument("--json", type=Path, help="file to add the figures to, as JSON lines")
    given = parser.parse_args()
    (measure[given.part] if isinstance(measure, Mapping) else measure)(given, Sheet(given.json))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def goal_here(goal: float | None, unit: str) -> float | None:
    """Return the goal on this machine: a slower machine gets more seconds and fewer per second; other units stay."""
    if goal is None or unit not in ("s", "ms", "1/s"):
        return goal
    return goal / factor() if unit == "1/s" else goal * factor()


def read(path: Path) -> list[BenchFigure]:
    """Return the figures in a file, in the order of measurement; if name and size are equal, only the last one."""
    latest = {}
    for line in path.read_text().splitlines():
        one = BenchFigure(**json.loads(line))
        latest[one.figure, one.size, one.unit] = one
    return list(latest.values())


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def taken_s(work: Callable[[], object], times: int) -> list[float]:
    """Return the seconds of each run, in the order of the runs."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return taken


def least_s(work: Callable[[], object], times: int = 1) -> float:
    """Return the seconds of the fastest run, because other processes can only make runs longer."""
    return min(taken_s(work, times))


def processor_s(command: list[str]) -> float:
    """Return the CPU seconds of a command in a separate process."""
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


NUMPY = [sys.executable, "-c", "import numpy"]
"""A command that costs about as much as the start of any check, for comparison with other commands."""


def keep_bytecode() -> None:
    """Let processes that are started from here on store their bytecode, as they do for a user.

    With PYTHONDONTWRITEBYTECODE, each process compiles NumPy and Numba again, which takes longer than the measurement.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(cache_folder() / "bytecode"))


REFERENCE_S = 0.036
"""CPU seconds of the kernel on the machine on which the goals were set."""

_REPEATS = 7
_SIZE = 400_000


@cache
def factor() -> float:
    """Return the kernel's time here, divided by its time where the goals were set; measured once per process."""
    return min(reference_s() for _ in range(_REPEATS)) / REFERENCE_S


def reference_s() -> float:
    """Return the CPU seconds of one run of the kernel."""
    numbers = np.random.default_rng(1).integers(0, 1 << 40, _SIZE)
    began = time.process_time()
    ordered = np.sort(numbers, kind="stable")
    total = int(np.cumsum(ordered)[-1])
    for number in ordered[: _SIZE // 4].tolist():
        total ^= number
    assert total
    return time.process_time() - began


EVERY_S = 0.05
DRIVER = "driver"


class ProcessWatch:
    """Samples of the memory and the processor time of a process and its descendants.

    peak_mb: largest sum over all processes
    peak_by_role_mb: largest sum over the processes of each role
    cpu_s, cpu_by_role_s: processor time of all processes and of each role, until the last sample of each process
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="memory", daemon=True)
        self.peak_mb = 0.0
        self.peak_by_role_mb: dict[str, float] = {}
        self._cpu_s: dict[int, float] = {}
        self._role: dict[int, str] = {}

    @property
    def cpu_s(self) -> float:
        return sum(self._cpu_s.values())

    @property
    def cpu_by_role_s(self) -> dict[str, float]:
        return {r: sum(s for pid, s in self._cpu_s.items() if self._role[pid] == r) for r in set(self._role.values())}

    def _look_on(self) -> None:
        while not self._over.wait(EVERY_S):
            now: dict[str, float] = {}
            for pid in descendants(self._pid):
                role = role_of(pid)
                # a process that is just starting or ending has no command line
                if role != DRIVER or pid not in self._role:
                    self._role[pid] = role
                now[role] = now.get(role, 0.0) + resident_mb(pid)
                self._cpu_s[pid] = max(cpu_s_of(pid), self._cpu_s.get(pid, 0.0))
            self.peak_mb = max(self.peak_mb, sum(now.values()))
            for role, held in now.items():
                self.peak_by_role_mb[role] = max(held, self.peak_by_role_mb.get(role, 0.0))

    def __enter__(self) -> ProcessWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def descendants(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    above = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(folder.name)):
            above[int(folder.name)] = int(fields[1])
    mine = {pid} & above.keys()
    while grown := {child for child, parent in above.items() if parent in mine} - mine:
        mine |= grown
    return sorted(mine)


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MB; 0 if the process has ended."""
    return _status_mb(pid, "VmRSS:")


def peak_mb(pids: Iterable[int]) -> float:
    """Return the largest peak of resident memory of any process, since its start or the last call of `forget_peaks`."""
    return max((_status_mb(pid, "VmHWM:") for pid in pids), default=0.0)


def forget_peaks(pids: Iterable[int]) -> None:
    """Reset the kernel's peak memory counters of some processes (proc(5), clear_refs)."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status_mb(pid: int, field: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(field)), 0.0)


def cpu_s_of(pid: int) -> float:
    """Return the user and system time of a process in seconds; 0 if the process has ended."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on (proc(5)); [] if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def role_of(pid: int) -> str:
    """Return "jvm", "workers" (of Spark) or "driver"."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return DRIVER
    if "java" in words.partition(" ")[0]:
        return "jvm"
    return "workers" if "checkers.spark.daemon" in words or "pyspark.daemon" in words else DRIVER
