"""Who owns a run: a process with an unmistakable name, and whether it still lives.

The name travels as a label on everything a run makes.  A process number alone would be reused, so the name holds when
the process started and in which boot.  It also holds the pid namespace and the host, because a process elsewhere that
shares a Docker engine cannot be seen from here.  What cannot be seen counts as alive.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def current_owner() -> str:
    """This process: `pid:start:boot:namespace:host`."""
    pid = os.getpid()
    return ":".join((str(pid), _start(pid) or "?", _boot(), _pid_namespace(), socket.gethostname()))


def is_dead(owner: str) -> bool:
    """Whether the process has certainly ended; False where that cannot be seen from here."""
    parts = owner.split(":", 4)
    if len(parts) != 5 or not parts[0].isdigit() or parts[4] != socket.gethostname():
        return False
    pid, start, boot, namespace, _ = parts
    if boot != _boot():
        return True
    if namespace != _pid_namespace():
        return False
    return _start(int(pid)) != start


def of_an_earlier_boot(owner: str) -> bool:
    """Whether the process ran on this host before it was started anew."""
    parts = owner.split(":", 4)
    return len(parts) == 5 and parts[4] == socket.gethostname() and parts[2] != _boot()


def _start(pid: int) -> str | None:
    """Field 22 of /proc/<pid>/stat, in clock ticks since boot; None if there is no such process, or only its corpse."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)
