"""Did anybody but the agent write to the disk under test?

A fault on a disk that the server does not use changes nothing: its data lies in another folder, or in memory alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mfusepy


def asking_thread() -> int:
    """The thread whose operation FUSE carries out now; 0 for one outside of this PID namespace."""
    return int(mfusepy.fuse_get_context()[2])


class Writers:
    """agent: the process whose writes do not count, because it writes configurations and probes."""

    def __init__(self, agent: int, asking: Callable[[], int] = asking_thread) -> None:
        self._agent = agent
        self._asking = asking
        self.others_wrote = False

    def note(self) -> None:
        """Called for each write.  Only the first one of another process costs anything more than a look at a flag."""
        if not self.others_wrote:
            thread = self._asking()
            self.others_wrote = thread > 0 and _process_of(thread) not in (0, self._agent)


def _process_of(thread: int) -> int:
    """The process of a thread, 0 if it has ended."""
    try:
        status = Path(f"/proc/{thread}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(next(line for line in status.splitlines() if line.startswith("Tgid:")).split()[1])
