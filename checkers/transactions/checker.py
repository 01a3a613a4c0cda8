"""The checkers of runs whose clients use transactions.

Parts are groups of transactions that have nothing in common.  Most histories have one: a cycle may
go through any key.  Each part reads the whole file, and picks its group.  The budget of a part is meant for one of
dozens that are judged in parallel, so these few parts get several budgets each.
`groups.py` says how a history is divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import BeyondBudget, over_budget
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.transactions import groups
from checkers.transactions.anomalies import ENDINGS, STRICT_SERIALIZABLE
from checkers.transactions.groups import group_count, groups_of, joined, judge_group
from checkers.transactions.read import Model, Transcript
from checkers.transactions.sealed_file import COLUMNS, read_file

SHARES = 4
"""The number of parts' budgets that each group gets."""


def judge(part: Part, budget: Budget) -> Verdict:
    """Judge one group of a history.  params: model; consistency, the required consistency model; group, its number."""
    whole = _shares_of(budget)
    try:
        transcript = _read(part, whole)
    except BeyondBudget as problem:
        return Verdict(Validity.UNKNOWN, {"files": len(part.paths)}, str(problem))
    consistency = part.params["consistency"]
    dealt = groups_of(transcript, consistency)
    return judge_group(transcript, dealt, part.params["group"], whole, consistency=consistency)


def _shares_of(budget: Budget) -> Budget:
    return replace(budget, steps=budget.steps * SHARES, size_bytes=budget.size_bytes * SHARES)


def _read(part: Part, budget: Budget) -> Transcript:
    """Raises BeyondBudget."""
    if (reason := over_budget(part, budget, COLUMNS)) is not None:
        raise BeyondBudget(reason)
    return read_file(part.paths[0], part.params["model"], budget.size_bytes)


def _parts(whole: Part) -> list[Part]:
    """Return a part for each group of the history, or one for all if it is small or beyond the budget."""
    only = [replace(whole, params={**whole.params, "group": 0})]
    if pq.read_metadata(whole.paths[0]).num_rows < groups.TRANSACTIONS_MIN:
        return only
    try:
        transcript = _read(whole, _shares_of(Budget()))
    except BeyondBudget:  # the judge says so
        return only
    count = group_count(groups_of(transcript, whole.params["consistency"]))
    return [replace(whole, params={**whole.params, "group": group}) for group in range(count)]


def combine(run: StoredRun, findings: Sequence[Verdict]) -> Verdict:
    """Join the verdicts on the groups."""
    return joined(findings)


def checker_of(model: Model, title: str, consistency: str = STRICT_SERIALIZABLE, name: str = "") -> Checker:
    """Make a checker of histories of transactions over this model.

    consistency: the required model, one of `anomalies.MODELS`.  name: that of the model by default.
    """
    question = f"Could a {consistency} database have given these answers?"
    params = {"model": model, "consistency": consistency}

    def split(run: StoredRun) -> list[Part]:
        return _parts(Part((str(run.history),), params))

    return Checker(name or model, title, question, split, judge, combine, frozenset({"history", "model"}))


def _checkers(model: Model, title: str) -> tuple[Checker, ...]:
    """The checkers of a model: strict-serializable, and one for each weaker model that a system may promise."""
    weaker = (checker_of(model, f"{title}, {level}", level, f"{model}-{end}") for level, end in ENDINGS.items())
    return checker_of(model, title), *weaker


_OF_LISTS = _checkers("list-append", "Transactions over lists")
_OF_REGISTERS = _checkers("rw-register", "Transactions over registers")
LIST_APPEND, RW_REGISTER = _OF_LISTS[0], _OF_REGISTERS[0]
OF_TRANSACTIONS = (*_OF_LISTS, *_OF_REGISTERS)
