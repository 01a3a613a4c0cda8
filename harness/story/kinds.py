"""Kinds of violations: how near each lies to its cause, and two sentences for a reader who has never met Raft.

A violation has causes and effects.  A node votes twice, so two nodes lead; two leaders write two logs, so an entry that
was committed disappears, and in the end a client reads an old value.  `Stage` numbers these steps.

The kinds are data: `kinds.toml` beside this file has a table for each.  A kind that is not there counts as a violation
of an answer and has no explanation; a test keeps the tables complete.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path


class Stage(IntEnum):
    """Distance of a violation from its cause: the smaller, the nearer."""

    STEP = 0
    VOTE = 1
    LEADER = 2
    LOG = 3
    COMMIT = 4
    LOSS = 5
    STATE = 6
    ANSWER = 7
    PROCESS = 8


MECHANISMS: Mapping[Stage, str] = {
    Stage.STEP: "Steps of the protocol",
    Stage.VOTE: "Votes",
    Stage.LEADER: "Leadership",
    Stage.LOG: "Logs",
    Stage.COMMIT: "Commits",
    Stage.LOSS: "Commits",
    Stage.STATE: "Applied states",
    Stage.ANSWER: "Answers to clients",
    Stage.PROCESS: "Server processes",
}
"""The part of the system that broke.  Violations of one mechanism are shown together."""

LOOK_AT: Mapping[Stage, str] = {
    Stage.STEP: "the code that writes this row of the trace: the protocol has no such step here",
    Stage.VOTE: "the code that stores a vote before it is sent, and compares it with earlier votes of its epoch",
    Stage.LEADER: "what a candidate counts as a majority, and what a voter compares before it votes",
    Stage.LOG: "the code that compares epoch and offset before a follower appends, and that truncates its log",
    Stage.COMMIT: "the code that advances the high watermark: which voters it counts, and what their disks hold",
    Stage.LOSS: "what is fsynced before it is reported as flushed, and who truncates a log",
    Stage.STATE: "what is applied in which order, and what a snapshot holds",
    Stage.ANSWER: "what the system checks between a request and its answer",
    Stage.PROCESS: "the last lines that the process wrote",
}
"""Part of a system's code in which a mistake of this stage lies."""
LOOK_AT_READS = "the read path: how a leader confirms, before it answers, that a majority still follows it"
LOOK_AT_LOSSES = (
    "what must hold before an answer, and what a change of leaders or a restart does to what was acknowledged"
)
LOOK_AT_TRANSACTIONS = "how transactions on one key exclude each other, and what a read may see of them"


@dataclass(frozen=True, slots=True)
class ViolationKind:
    """means: two sentences, "" for a kind that is not in the table.  known_as: its everyday name, if it has another.
    of_two: the answer contradicts another operation, so that a good witness names that one too.
    loss: what was acknowledged is gone.  look_at: as in `LOOK_AT`, where more can be said than of its stage."""

    stage: Stage
    means: str = ""
    known_as: str = ""
    of_two: bool = False
    loss: bool = False
    look_at: str = ""

    @property
    def mechanism(self) -> str:
        return MECHANISMS[self.stage]


_TABLE = tomllib.loads(Path(__file__).with_name("kinds.toml").read_text(encoding="utf-8"))

KINDS: Mapping[str, ViolationKind] = {
    name: ViolationKind(**{**entry, "stage": Stage[entry["stage"].upper()]}) for name, entry in _TABLE.items()
}
"""Kind of a witness (`checkers.base.verdict.Witness.kind`) -> what it means."""

_UNEXPLAINED = ViolationKind(Stage.ANSWER)


def kind_of(name: str) -> ViolationKind:
    """Return the entry of a kind; of a kind that is not in the table an empty explanation at the stage of answers."""
    return KINDS.get(name, _UNEXPLAINED)


def name_in_words(name: str) -> str:
    """Return the kind as a reader knows it, with the name of the theory behind it: `long fork (G-nonadjacent)`."""
    known_as = kind_of(name).known_as
    if known_as and known_as != name.replace("-", " "):
        return f"{known_as} ({name})"
    return known_as or name
