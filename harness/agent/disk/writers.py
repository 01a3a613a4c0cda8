"""Did the server write to the disk under test?

A fault on a disk that the server does not use changes nothing: its data lies in another folder, or in memory alone.

Two others write there, too: the agent itself, and the commands that the harness orders, which install programs and
configurations.  Each command has `COMMAND_MARK` in its environment, and all processes that it starts inherit it.  A
server never has this mark.  Every other writer counts as the server, even if the kernel hides its environment.  If a
write of a real server were missed, that server would be spared its faults.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mfusepy

from harness.agent.programs.children import COMMAND_MARK

_ANCESTORS = 64
"""A chain of parents is followed no further."""


def asking_thread() -> int:
    """The thread whose operation FUSE carries out now; 0 for one outside of this PID namespace."""
    return int(mfusepy.fuse_get_context()[2])


class Writers:
    """agent: the process whose writes do not count, because it writes configurations and probes."""

    def __init__(self, agent: int, asking: Callable[[], int] = asking_thread) -> None:
        self._agent = agent
        self._asking = asking
        self._command: tuple[int, int] | None = None
        self.server_wrote = False

    def note(self) -> None:
        """Called for each write.  After the first one of the server it costs only a look at a flag.

        Before it, each write costs two files of /proc, and a new thread costs three more for each ancestor.
        """
        if not self.server_wrote:
            thread = self._asking()
            self.server_wrote = thread > 0 and self._is_of_server(thread)

    def _is_of_server(self, thread: int) -> bool:
        try:
            process, _, started = _identity(thread)
        except OSError:  # it has ended; a server that lives writes again
            return False
        if process == self._agent or (thread, started) == self._command:
            return False
        if self._is_of_command(process):
            self._command = (thread, started)  # a command writes many pieces, one after the other
            return False
        return True

    def _is_of_command(self, process: int) -> bool:
        """Whether a process or one of its ancestors below the agent has the mark; False where none can be read."""
        for _ in range(_ANCESTORS):
            if process in (0, 1, self._agent):
                return False
            if _has_mark(process):
                return True
            try:
                _, process, _ = _identity(process)
            except OSError:  # it ended meanwhile
                return False
        return False


def _has_mark(process: int) -> bool:
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:  # it ended, or its user changed
        return False
    return any(word.startswith(f"{COMMAND_MARK}=".encode()) for word in words)


def _identity(thread: int) -> tuple[int, int, int]:
    """The process of a thread, the parent of that process, and when the thread started, in clock ticks since boot.

    Raises OSError if the thread has ended.
    """
    folder = Path(f"/proc/{thread}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
    started = (folder / "stat").read_bytes().rpartition(b")")[2].split()[19]
    return int(status["Tgid"]), int(status["PPid"]), int(started)
