"""Kinds of violations: distance of each kind from the cause, and two sentences for a reader who does not know Raft.

A violation has causes and effects.  A node votes twice, so there are two leaders; two leaders write two logs, so a
committed entry disappears, and in the end a client reads an old value.  `Stage` numbers these steps.

The kinds are data beside this file: `kinds.toml` has a table for each kind, `stages.toml` one for each stage.  A kind
without a table counts as a violation of an answer and has no explanation; a test keeps the tables complete.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any


class Stage(IntEnum):
    """Distance of a violation from its cause; the smallest number is the nearest."""

    STEP = 0
    VOTE = 1
    LEADER = 2
    LOG = 3
    COMMIT = 4
    LOSS = 5
    STATE = 6
    ANSWER = 7
    PROCESS = 8


def _read(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


_STAGES = {Stage[name.upper()]: words for name, words in _read("stages.toml").items()}
MECHANISMS: Mapping[Stage, str] = {stage: words["mechanism"] for stage, words in _STAGES.items()}
"""The part of the system that failed.  Violations of one mechanism are shown together."""
LOOK_AT: Mapping[Stage, str] = {stage: words["look_at"] for stage, words in _STAGES.items()}
"""Part of a system's code in which to look for the bug, by stage of the violation."""
LOOK_AT_READS = "the read path: how a leader confirms, before it answers, that a majority still follows it"
LOOK_AT_LOSSES = "the conditions for an acknowledgement, and the effect of elections and restarts on acknowledged data"
LOOK_AT_TRANSACTIONS = "the mutual exclusion of transactions on one key, and the versions that a read may see"


@dataclass(frozen=True, slots=True)
class ViolationKind:
    """The meaning of a kind.

    means: two sentences, "" for a kind that is not in the table
    known_as: its common name, if that differs
    of_two: True if the answer contradicts another operation, which a good witness also names
    loss: True if acknowledged data is gone
    look_at: part of the code in which to look for the bug, if it is more specific than `LOOK_AT` of the stage
    """

    stage: Stage
    means: str = ""
    known_as: str = ""
    of_two: bool = False
    loss: bool = False
    look_at: str = ""

    @property
    def mechanism(self) -> str:
        return MECHANISMS[self.stage]


KINDS: Mapping[str, ViolationKind] = {
    name: ViolationKind(**{**entry, "stage": Stage[entry["stage"].upper()]})
    for name, entry in _read("kinds.toml").items()
}
"""Kind of a witness (`checkers.base.verdict.Witness.kind`) -> its meaning."""

_UNEXPLAINED = ViolationKind(Stage.ANSWER)


def kind_of(name: str) -> ViolationKind:
    """Return the entry of a kind; for a kind that is not in the table, an empty explanation at the stage of answers."""
    return KINDS.get(name, _UNEXPLAINED)


def name_in_words(name: str) -> str:
    """Return the kind's common name, followed by its name in theory: `long fork (G-nonadjacent)`."""
    known_as = kind_of(name).known_as
    if known_as and known_as != name.replace("-", " "):
        return f"{known_as} ({name})"
    return known_as or name
