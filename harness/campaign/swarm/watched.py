"""Parts that the watch of a swarm sees of a voter, and of a server that may become one."""

from __future__ import annotations

from typing import Protocol

from system_under_test.kraft.raft.voters import VoterHistory, VoterSet


class Watched(Protocol):
    """A voter, as the watch sees it.  lives: how often it was started.  key: names it together with its disk.

    may_stop: its disk fails, or its log is damaged, so it may refuse to go on.  may_forget: its log was damaged and it
    lost power before it started again, so it may take what it held durably for a torn tail."""

    name: str
    lives: int
    may_stop: bool
    may_forget: bool

    @property
    def key(self) -> str: ...

    @property
    def flushed(self) -> int:
        """Up to where its log is durable, as it says."""
        ...

    @property
    def durable_end(self) -> int:
        """Up to where its log is durable, as its disk says."""
        ...

    @property
    def end(self) -> tuple[int, int]:
        """(epoch, offset) of the end of its log."""
        ...

    @property
    def log_start(self) -> int:
        """Return where its log begins: all below it is in a snapshot."""
        ...

    @property
    def snapshot_end(self) -> int:
        """Return where its newest snapshot ends; 0: it has none."""
        ...

    def prefix(self, offset: int) -> int | None:
        """Identifies all entries below this offset; None if it is not the end of one, or the log begins behind it."""
        ...


class Member(Watched, Protocol):
    """A server that votes, or may come to."""

    epoch: int

    def voter_history(self) -> VoterHistory:
        """Return the voters as its log names them."""
        ...

    def snapshot_voters(self) -> VoterSet | None:
        """Those that its newest snapshot names."""
        ...
