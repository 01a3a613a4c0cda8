"""Which server processes ended during a run, by whose order, and of what nodes complained in their own logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.backends.backend import Exit
from system_under_test.subject import Complaint


def deaths(
    exits: Sequence[Exit],
    complaints: Sequence[Complaint],
    started_monotonic_ns: int,
    last_words: Callable[[Exit], str],
) -> list[dict[str, Any]]:
    """Every end of a server process, and every complaint in a node's own log (without a time, and not ordered).

    last_words: what a process that ended by itself printed last; most often it says why.
    A complaint may say which process wrote it and how soon before its end: `pid` and `lines_before_end`.
    """
    ended = [
        {
            "node": end.node,
            "pid": end.pid,
            "time_ns": end.monotonic_ns - started_monotonic_ns,
            "status": end.status,
            "ordered": end.ordered,
            "reason": f"killed by signal {-end.status}" if end.status < 0 else f"exited with status {end.status}",
            "excerpt": "" if end.ordered else last_words(end),
            **({"oom_kills": end.oom_kills} if end.oom_kills else {}),
        }
        for end in exits
    ]
    complained = [
        {
            "node": complaint.node,
            "time_ns": -1,
            "status": 0,
            "ordered": False,
            "reason": complaint.reason,
            "excerpt": complaint.excerpt,
            **{name: complaint.facts[name] for name in ("pid", "lines_before_end") if name in complaint.facts},
        }
        for complaint in complaints
    ]
    return ended + complained
