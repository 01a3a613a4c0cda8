"""Histories of Kafka's logs as a checker of a run.

One part holds the whole history, as with transactions (`transactions/checker.py`): consumers and transactions span
partitions, and cycles join them all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from checkers.base.checker import Budget, Checker, Need, Part
from checkers.base.run_evidence import over_budget
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.kafka_log.columns import from_file
from checkers.kafka_log.judge import judge_history
from checkers.transactions.checker import SHARES
from checkers.transactions.table import COLUMNS


def judge(part: Part, budget: Budget) -> Verdict:
    """The verdict on one history.  params: those of `checker_of`."""
    whole = replace(budget, steps=budget.steps * SHARES, size_bytes=budget.size_bytes * SHARES)
    if (reason := over_budget(part, whole, COLUMNS)) is not None:
        return Verdict(Validity.UNKNOWN, {"files": len(part.paths)}, reason)
    return judge_history(from_file(part.paths[0]), whole, **part.params)


def combine(run: StoredRun, findings: Sequence[Verdict]) -> Verdict:
    """That of the one part."""
    return findings[0]


def checker_of(
    *, subscribed: bool | None = None, ww_dependencies: bool = False, allow: Collection[str] | None = None
) -> Checker:
    """A checker of Kafka's logs; the parameters are those of `judge_kafka_log`."""
    allowed = None if allow is None else tuple(sorted(allow))
    params = {"subscribed": subscribed, "ww_dependencies": ww_dependencies, "allow": allowed}

    def split(run: StoredRun) -> list[Part]:
        return [Part((str(run.history),), params)]

    question = "did every acknowledged message stay in its log, and was each log read in order and once?"
    needs: frozenset[Need] = frozenset({"history", "model"})
    return Checker("kafka", "Kafka's logs", question, split, judge, combine, needs)


KAFKA = checker_of()
