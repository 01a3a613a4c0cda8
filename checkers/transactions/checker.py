"""Transactional histories as checkers of a run.

One part holds the whole history.  Dependencies join everything: a cycle goes from key to key and from process to
process, and real time orders all of it, so that nothing can be judged apart.  What could be done key by key, finding
the order of versions, takes less time than carrying its result to where the graph is.  The budget of a part is meant
for one of dozens that are judged side by side; so this one part gets several of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import over_budget
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.transactions.anomalies import STRICT_SERIALIZABLE
from checkers.transactions.judge import judge_transcript
from checkers.transactions.read import Model
from checkers.transactions.table import COLUMNS, read_file

SHARES = 4
"""How many parts' budgets the whole history gets."""


def judge(part: Part, budget: Budget) -> Verdict:
    """The verdict on one history.  params: model; consistency, the model it has to have."""
    whole = replace(budget, steps=budget.steps * SHARES, size_bytes=budget.size_bytes * SHARES)
    if (reason := over_budget(part, whole, COLUMNS)) is not None:
        return Verdict(Validity.UNKNOWN, {"files": len(part.paths)}, reason)
    transcript = read_file(part.paths[0], part.params["model"])
    return judge_transcript(transcript, whole, consistency=part.params["consistency"])


def combine(run: StoredRun, findings: Sequence[Verdict]) -> Verdict:
    """That of the one part."""
    return findings[0]


def checker_of(model: Model, title: str, consistency: str = STRICT_SERIALIZABLE, name: str = "") -> Checker:
    """A checker of histories whose transactions are over this model.

    consistency: the model such a history has to have, one of `anomalies.MODELS`.  name: that of the model by default.
    """
    question = f"could a {consistency} database have given these answers?"
    params = {"model": model, "consistency": consistency}

    def split(run: StoredRun) -> list[Part]:
        return [Part((str(run.history),), params)]

    return Checker(name or model, title, question, split, judge, combine, frozenset({"history", "model"}))


LIST_APPEND = checker_of("list-append", "Transactions over lists")
LIST_APPEND_SNAPSHOT = checker_of(
    "list-append", "Transactions over lists, on snapshots", "snapshot-isolation", "list-append-snapshot"
)
RW_REGISTER = checker_of("rw-register", "Transactions over registers")
