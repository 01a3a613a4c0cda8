"""The checkers of runs whose clients use transactions.

One part holds the whole history.  A cycle may go through any key and any process, and real time orders all
transactions, so nothing can be judged separately.  The order of versions could be found key by key, but that takes less
time than moving the result.  The budget of a part is meant for one of dozens that are judged in parallel, so this
single part gets several budgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import BeyondBudget, over_budget
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.transactions.anomalies import STRICT_SERIALIZABLE
from checkers.transactions.judge import judge_transcript
from checkers.transactions.read import Model
from checkers.transactions.table import COLUMNS, read_file

SHARES = 4
"""The number of parts' budgets that the whole history gets."""


def judge(part: Part, budget: Budget) -> Verdict:
    """Judge one history.  params: model; consistency, the required consistency model."""
    whole = replace(budget, steps=budget.steps * SHARES, size_bytes=budget.size_bytes * SHARES)
    if (reason := over_budget(part, whole, COLUMNS)) is not None:
        return Verdict(Validity.UNKNOWN, {"files": len(part.paths)}, reason)
    try:
        transcript = read_file(part.paths[0], part.params["model"], whole.size_bytes)
    except BeyondBudget as problem:
        return Verdict(Validity.UNKNOWN, {"files": len(part.paths)}, str(problem))
    return judge_transcript(transcript, whole, consistency=part.params["consistency"])


def combine(run: StoredRun, findings: Sequence[Verdict]) -> Verdict:
    """Return the verdict of the only part."""
    return findings[0]


def checker_of(model: Model, title: str, consistency: str = STRICT_SERIALIZABLE, name: str = "") -> Checker:
    """Make a checker of histories of transactions over this model.

    consistency: the required model, one of `anomalies.MODELS`.  name: that of the model by default.
    """
    question = f"Could a {consistency} database have given these answers?"
    params = {"model": model, "consistency": consistency}

    def split(run: StoredRun) -> list[Part]:
        return [Part((str(run.history),), params)]

    return Checker(name or model, title, question, split, judge, combine, frozenset({"history", "model"}))


LIST_APPEND = checker_of("list-append", "Transactions over lists")
LIST_APPEND_SNAPSHOT = checker_of(
    "list-append", "Transactions over lists, on snapshots", "snapshot-isolation", "list-append-snapshot"
)
RW_REGISTER = checker_of("rw-register", "Transactions over registers")
