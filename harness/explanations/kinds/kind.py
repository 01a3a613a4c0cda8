"""Every kind of violation: how deep it lies, and two sentences for a reader who has never met Raft.

A violation has causes and effects.  A node votes twice, so two nodes lead; two leaders write two logs, so an entry that
was committed disappears, and in the end a client reads an old value.  `Stage` numbers these steps.  A page that names
the deepest violation first names the cause, or what lies nearest to it.

`means` explains a kind in two sentences: what the system promises, and what happened here.  `known_as` is the name that
users of databases know, where a checker uses the name of a theory (Adya 1999; Cerone & Gotsman 2016).  `of_two` marks
an answer that contradicts another operation, so that a good witness names that one too.  The kinds stand in one file
for each subject; `catalog.py` joins them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class Stage(IntEnum):
    """How far a violation lies from its cause: the smaller, the nearer."""

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
    Stage.PROCESS: "Processes",
}
"""Which part of the system broke.  Violations of one mechanism are shown together."""


@dataclass(frozen=True, slots=True)
class ViolationKind:
    """means: two sentences, "" for a kind that is not in the table.  known_as: its everyday name, if it has another."""

    stage: Stage
    means: str = ""
    known_as: str = ""
    of_two: bool = False

    @property
    def mechanism(self) -> str:
        return MECHANISMS[self.stage]


def kinds(stage: Stage, means: Mapping[str, str], *, of_two: bool = False) -> dict[str, ViolationKind]:
    """Kinds that lie equally near to their causes.  means: by name."""
    return {name: ViolationKind(stage, words, of_two=of_two) for name, words in means.items()}


def named_kinds(stage: Stage, known_as_and_means: Mapping[str, tuple[str, str]]) -> dict[str, ViolationKind]:
    """The same, of kinds that also have an everyday name."""
    return {name: ViolationKind(stage, words, known_as) for name, (known_as, words) in known_as_and_means.items()}
