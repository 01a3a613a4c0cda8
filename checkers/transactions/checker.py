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


_WEAKER = {
    "snapshot": ("on snapshots", "snapshot-isolation"),
    "causal": ("causal", "strong-session-causal"),
    "read-atomic": ("read-atomic", "strong-session-read-atomic"),
}
"""Ending of the name -> what the title adds, and the required model.  The last two count the order of sessions."""


def _checkers(model: Model, title: str) -> tuple[Checker, ...]:
    """The checkers of a model: strict-serializable, and one for each weaker model that a workload may name."""
    named = {f"{model}-{end}": (f"{title}, {words}", level) for end, (words, level) in _WEAKER.items()}
    return (
        checker_of(model, title),
        *(checker_of(model, words, level, name) for name, (words, level) in named.items()),
    )


_OF_LISTS = _checkers("list-append", "Transactions over lists")
_OF_REGISTERS = _checkers("rw-register", "Transactions over registers")
LIST_APPEND, RW_REGISTER = _OF_LISTS[0], _OF_REGISTERS[0]
OF_TRANSACTIONS = (*_OF_LISTS, *_OF_REGISTERS)
