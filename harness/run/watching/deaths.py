"""Which server processes ended during a run, by whose order, and of what nodes complained in their own logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from checkers.record.outcome import Death
from harness.backends.backend import Exit
from system_under_test.subject import Complaint


def deaths(
    exits: Sequence[Exit],
    complaints: Sequence[Complaint],
    started_monotonic_ns: int,
    last_words: Callable[[Exit], str],
) -> tuple[Death, ...]:
    """Every end of a server process, and every complaint in a node's own log (without a time, and not ordered).

    last_words: what a process that ended by itself printed last; most often it says why.
    A complaint may say which process wrote it and how soon before its end: `pid` and `lines_before_end`.
    """
    ended = [
        Death(
            node=end.node,
            time_ns=end.monotonic_ns - started_monotonic_ns,
            status=end.status,
            ordered=end.ordered,
            reason=f"killed by signal {-end.status}" if end.status < 0 else f"exited with status {end.status}",
            excerpt="" if end.ordered else last_words(end),
            pid=end.pid,
            oom_kills=end.oom_kills,
        )
        for end in exits
    ]
    complained = [
        Death(
            node=complaint.node,
            reason=complaint.reason,
            excerpt=complaint.excerpt,
            pid=complaint.facts.get("pid"),
            lines_before_end=complaint.facts.get("lines_before_end", -1),
        )
        for complaint in complaints
    ]
    return (*ended, *complained)
