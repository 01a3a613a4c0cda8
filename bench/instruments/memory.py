"""Sample the memory and the CPU time of a process and all its descendants.

    with ProcessWatch(pid) as watch: ...
    watch.peak_mb, watch.peak_by_role_mb, watch.cpu_s

Memory is resident memory (VmRSS), added up over the processes of one look.  Pages that forked workers share are counted
once for each of them, so the sum is rather too high.  A peak between two looks is missed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

EVERY_S = 0.05
DRIVER = "driver"


class ProcessWatch:
    """peak_mb: the largest sum.  peak_by_role_mb: the largest of each role alone, summed over its processes.
    cpu_s, cpu_by_role_s: processor time of all of them and of each role, up to the last look at each."""

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
                if role != DRIVER or pid not in self._role:  # a process that ends, or begins, has no command line
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
    """A process and all that descend from it."""
    above = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(folder.name)):
            above[int(folder.name)] = int(fields[1])
    mine = {pid} & above.keys()
    while grown := {child for child, parent in above.items() if parent in mine} - mine:
        mine |= grown
    return sorted(mine)


def resident_mb(pid: int) -> float:
    """0 once the process has ended."""
    return _status_mb(pid, "VmRSS:")


def peak_mb(pids: Iterable[int]) -> float:
    """Return the largest peak of resident memory of some processes, since their start or the last `forget_peaks`."""
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
    """User and system time; 0 once the process has ended."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on (proc(5)); none once the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def role_of(pid: int) -> str:
    """ "jvm", "workers" (of Spark) or "driver"."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return DRIVER
    if "java" in words.partition(" ")[0]:
        return "jvm"
    return "workers" if "checkers.spark.daemon" in words or "pyspark.daemon" in words else DRIVER
