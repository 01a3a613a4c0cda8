"""What Linux measured of processors: who waited for one, for how long, and what a hypervisor took away."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

NOT_KNOWN_S = -1.0
"""Stands for what this kernel does not measure."""


def steal_s() -> float:
    """CPU seconds since boot, over all CPUs, that a hypervisor gave to others (field 8 of /proc/stat)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def pressure_s(file: Path = Path("/proc/pressure/cpu")) -> float:
    """Seconds since boot in which at least one process of the machine waited for a processor.

    NOT_KNOWN_S where the kernel does not measure it (before Linux 4.20, or without CONFIG_PSI)."""
    try:
        some = file.read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return NOT_KNOWN_S


def of_processes(pids: Iterable[int], proc: Path = Path("/proc")) -> tuple[float, float]:
    """(seconds that the living threads of these processes waited for a processor, seconds that they ran).

    NOT_KNOWN_S for both where there is no process, or where the kernel has no schedstat."""
    waited_ns = ran_ns = 0
    found = False
    for pid in pids:
        for thread in _threads(proc / str(pid)):
            try:
                ran, waited, _ = (thread / "schedstat").read_text().split()
                ran_ns, waited_ns, found = ran_ns + int(ran), waited_ns + int(waited), True
            except (OSError, ValueError):  # the thread ended meanwhile
                continue
    return (waited_ns / 1e9, ran_ns / 1e9) if found else (NOT_KNOWN_S, NOT_KNOWN_S)


def _threads(process: Path) -> list[Path]:
    """The folders of its threads; none where the process ended meanwhile."""
    try:
        return list((process / "task").iterdir())
    except OSError:
        return []
