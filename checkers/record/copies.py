"""A copy that the harness took of a data directory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Copy:
    """One node's data directory, as copied into the run folder.

    copy: number of the copy; all nodes are copied under the same one.  when: "before heal 3", "between heals", "final".
    state: of the process when it was copied: "running", "stopped" or "dead".
    folder: of the copied files, relative to the run folder.
    trace_size_bytes: how long the trace of this node was; -1: not recorded.
    taken_ns: when the copy was complete, since the test began; -1: not recorded.
    """

    copy: int
    when: str
    node: str
    state: str
    folder: str
    trace_size_bytes: int = -1
    taken_ns: int = -1
