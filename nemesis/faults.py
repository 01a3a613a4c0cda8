"""Faults as data, and the record each leaves behind.

A schedule is a list of `Card`s: what to inject, when, and for how long.  It is plain JSON, so the same file runs on
every backend.  What a card means for *this* cluster (who is the leader now?) is resolved when it is injected, and the
resolved fault is recorded, so that a run can be replayed exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from nemesis.cluster import Link


class Achieved(StrEnum):
    """What became of a fault.  Only INSTALLED, and SKIPPED for a stated reason, let a run be valid."""

    INSTALLED = "installed"
    SKIPPED = "skipped"
    INDETERMINATE = "indeterminate"
    NOT_ACHIEVED = "not achieved"


@dataclass(frozen=True, slots=True)
class Card:
    """One entry of a schedule.  at_s, heal_s: seconds since the main phase began."""

    number: int
    kind: str  # "partition", "pause", "kill"
    name: str  # e.g. "halves", "leader-with-c1", "isolate-leader"
    at_s: float
    heal_s: float


@dataclass(frozen=True, slots=True)
class Partition:
    """Directed links that lose everything, and the words for it."""

    cut: frozenset[Link]
    words: str
    kind: str = "partition"


@dataclass(frozen=True, slots=True)
class Pause:
    nodes: tuple[str, ...]
    words: str
    kind: str = "pause"


@dataclass(frozen=True, slots=True)
class Kill:
    nodes: tuple[str, ...]
    words: str
    kind: str = "kill"


Fault = Partition | Pause | Kill


@dataclass(frozen=True, slots=True)
class Proof:
    """Measured right after inject or heal.  links: "a>b" -> [sent, received]; states: node -> process state."""

    verdict: str  # "as ordered", "not as ordered", "indeterminate"
    links: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()  # what was not as ordered, in words


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """Everything known of one fault; times are ns since the test began; -1 = did not happen."""

    card: Card
    achieved: Achieved
    words: str
    reason: str = ""  # for skipped, indeterminate and not achieved
    leader: str | None = None  # as resolved at injection, if the card names one
    epoch: int = -1
    cut: tuple[Link, ...] = ()
    nodes: tuple[str, ...] = ()
    injected_ns: int = -1  # when the order had been carried out
    heal_ordered_ns: int = -1
    healed_ns: int = -1
    apply_ms: float = -1.0  # how long the inject order took
    inject_proof: Proof | None = None
    heal_proof: Proof | None = None

    def to_json(self) -> dict[str, Any]:
        """The entry in faults.json."""
        return asdict(self)
