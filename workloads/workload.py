"""What a workload is: who asks what, in set-up, under faults and at the end, and which checkers judge it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from system_under_test.client import Placement, Request


class Generator(Protocol):
    """The requests of one thread; it goes on when a process is retired and another takes its place."""

    def next(self) -> Request: ...


class Workload(Protocol):
    name: str
    summary: str
    checkers: tuple[str, ...]
    """Names of the checkers that judge its histories (those over logs and traces come from the subject)."""

    def keys(self) -> Sequence[str]: ...

    def set_up(self) -> Sequence[Request]:
        """Asked one after another, each until ok, before the clock of the test starts (creates the keys)."""
        ...

    def generator(self, placement: Placement, rng: Random) -> Generator: ...

    def final(self) -> Sequence[Request]:
        """Asked after recovery, each repeated until ok: a last read of every key."""
        ...
