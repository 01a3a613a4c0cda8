"""All kinds of violations by name.

A kind without an entry counts as a violation of an answer and has no explanation.  A test keeps the tables complete.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.explanations.kinds.brokers import BROKERS
from harness.explanations.kinds.kind import Stage, ViolationKind
from harness.explanations.kinds.messages import MESSAGES
from harness.explanations.kinds.objects import OBJECTS
from harness.explanations.kinds.raft import RAFT
from harness.explanations.kinds.steps import STEPS
from harness.explanations.kinds.transactions import TRANSACTIONS

_UNEXPLAINED = ViolationKind(Stage.ANSWER)

KINDS: Mapping[str, ViolationKind] = {**RAFT, **STEPS, **OBJECTS, **TRANSACTIONS, **MESSAGES, **BROKERS}
"""Kind of a witness (`checkers.base.verdict.Witness.kind`) -> what it means."""


def kind_of(name: str) -> ViolationKind:
    """The entry of a kind; of a kind that is not in the table an empty explanation at the stage of answers."""
    return KINDS.get(name, _UNEXPLAINED)


def name_in_words(name: str) -> str:
    """The kind as a reader knows it, with the name of the theory behind it: `long fork (G-nonadjacent)`."""
    known_as = kind_of(name).known_as
    if known_as and known_as != name.replace("-", " "):
        return f"{known_as} ({name})"
    return known_as or name
