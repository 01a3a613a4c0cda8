"""The checker of runs whose clients use Kafka's logs.

One part holds the whole history, as with transactions (`transactions/checker.py`).  Consumers and transactions span
partitions, so cycles may span all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from checkers.base.checker import Budget, Checker, Need, Part
from checkers.base.run_evidence import BeyondBudget, over_budget
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.kafka_log.columns import from_file
from checkers.kafka_log.judge import judge_history
from checkers.transactions.checker import SHARES
from checkers.transactions.table import COLUMNS


def judge(part: Part, budget: Budget) -> Verdict:
    """Judge one history.  params: those of `checker_of`."""
    whole = replace(budget, steps=budget.steps * SHARES, size_bytes=budget.size_bytes * SHARES)
    if (reason := over_budget(part, whole, COLUMNS)) is not None:
        return Verdict(Validity.UNKNOWN, {"files": len(part.paths)}, reason)
    try:
        history = from_file(part.paths[0], whole.size_bytes)
    except BeyondBudget as problem:
        return Verdict(Validity.UNKNOWN, {"files": len(part.paths)}, str(problem))
    return judge_history(history, whole, **part.params)


def combine(run: StoredRun, findings: Sequence[Verdict]) -> Verdict:
    """Return the verdict of the only part."""
    return findings[0]


def checker_of(
    name: str = "kafka",
    *,
    subscribed: bool | None = None,
    ww_dependencies: bool = False,
    allow: Collection[str] | None = None,
    read_to_end: bool = False,
) -> Checker:
    """Make a checker of Kafka's logs; the parameters are those of `judge_kafka_log`."""
    params = {
        "subscribed": subscribed,
        "ww_dependencies": ww_dependencies,
        "allow": None if allow is None else tuple(sorted(allow)),
        "read_to_end": read_to_end,
    }

    def split(run: StoredRun) -> list[Part]:
        return [Part((str(run.history),), params)]

    question = "Did every acknowledged message stay in its log, and was each log read in order and once?"
    needs: frozenset[Need] = frozenset({"history", "model"})
    title = "Kafka's logs, read to their ends" if read_to_end else "Kafka's logs"
    return Checker(name, title, question, split, judge, combine, needs)


KAFKA = checker_of()

KAFKA_READ_TO_END = checker_of("kafka-read-to-end", read_to_end=True)
"""For workloads that read every partition to its end after the last send: a message that is never polled is lost."""
