"""Judges histories of Kafka's logs: what was sent, at which offsets, and which operations polled it in which order.

    judge_kafka_log(events)    events with the payloads of `read.py`
    checker.KAFKA              from a run's history.parquet, in process or on Spark

The judge assumes read-committed consumers.  Retention and compaction must not have removed anything, and some consumer
must have read every partition from its beginning.  Otherwise `lost-write` is a false alarm.

An acknowledged message that was never polled (`unseen`) is a violation only if consumers read every partition to its
end after the last send.  A history cannot show this: a poll that returns nothing may just be slow.  So the workload
states it (`read_to_end`).  Without this statement such a partition is unknown.

Allowed anomalies are reported and not counted:

    always                          int-send-skip, G0, G0-process, G0-realtime: transactions interleave their sends
    of a process that subscribed    poll-skip, nonmonotonic-poll on partitions of subscriptions: a rebalance moves
                                    consumers between polls.  If operations of the process record rebalances, only
                                    these excuse it.  A process without an assignment counts as subscribed
    with ww_dependencies            G1c, G1c-process, G1c-realtime: without isolation of writes such cycles are common

In a run, one part holds the whole history, as with transactions (`transactions/checker.py`).  Consumers and
transactions span partitions, so cycles may span all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from checkers.base.checker import Budget, Checker, Need, Part
from checkers.base.history import Event
from checkers.base.run_evidence import BeyondBudget, over_budget
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import MAX_WITNESSES, VIOLATIONS_BY_KIND, Validity, Verdict, Witness, shortened
from checkers.kafka_log.columns import KafkaHistory, from_events, from_file, slots_of
from checkers.kafka_log.explain import KIND_NAMES, SeenLog, explain, explain_cycle, search
from checkers.kernels.kafka_log import log_anomalies as kinds
from checkers.kernels.kafka_log.log_anomalies import Found
from checkers.transactions.anomalies import VARIANTS
from checkers.transactions.checker import SHARES
from checkers.transactions.cycles import CycleSearch
from checkers.transactions.sealed_file import COLUMNS

__all__ = ["ANOMALIES", "allowed_anomalies", "judge_history", "judge_kafka_log"]

CYCLES_OF_WRITES = frozenset("G0" + v for v in VARIANTS)
ALWAYS_ALLOWED = CYCLES_OF_WRITES | {"int-send-skip"}
ALLOWED_WITH_SUBSCRIBE = frozenset({"poll-skip", "nonmonotonic-poll"})
_EXCUSED = {kinds.EXCUSED_POLL_SKIP: kinds.POLL_SKIP, kinds.EXCUSED_NONMONOTONIC_POLL: kinds.NONMONOTONIC_POLL}
"""Anomalies of consumers that subscribed -> what they are where nothing excuses them."""
ALLOWED_WITH_WW = frozenset("G1c" + v for v in VARIANTS)

ANOMALIES = (
    "unsent-read",
    "G1a",
    "lost-write",
    "inconsistent-offsets",
    "duplicate",
    "precommitted-read",
    "int-poll-skip",
    "int-nonmonotonic-poll",
    "poll-skip",
    "nonmonotonic-poll",
    "nonmonotonic-send",
    "unseen",
    "int-send-skip",
    "int-nonmonotonic-send",
    *("G0" + v for v in VARIANTS),
    *("G1c" + v for v in VARIANTS),
)
"""The names of all anomalies, worst first."""

_STEPS_PER_ROW = 5
_BYTES_PER_ROW = 120
"""Memory per operation, send or polled message (measured, rounded up)."""


def allowed_anomalies(*, subscribed: bool, ww_dependencies: bool) -> frozenset[str]:
    allowed = ALWAYS_ALLOWED
    if subscribed:
        allowed |= ALLOWED_WITH_SUBSCRIBE
    if ww_dependencies:
        allowed |= ALLOWED_WITH_WW
    return allowed


def judge_kafka_log(
    events: Sequence[Event],
    budget: Budget = Budget(),  # noqa: B008 (frozen)
    *,
    subscribed: bool | None = None,
    ww_dependencies: bool = False,
    allow: Collection[str] | None = None,
    read_to_end: bool = False,
) -> Verdict:
    """Judge a history of sends, polls and transactions of both.

    subscribed: whether all consumers shared partitions by subscription; None: the history decides, process by process.
    ww_dependencies: let the order of messages order their senders, for every cycle.  Then a G1c proves nothing.
    Cycles of writes alone (G0) are searched if they count.
    allow: names of anomalies that do not count; None: those of `allowed_anomalies`.
    read_to_end: whether consumers read every partition to its end after the last send.
    `details`: {"anomalies": {name: how often}, "allowed": [names found that do not count], "allowed_set": [...]}.
    Raises MalformedHistory if a payload has not the form that `read.py` describes.
    """
    return judge_history(
        from_events(events),
        budget,
        subscribed=subscribed,
        ww_dependencies=ww_dependencies,
        allow=allow,
        read_to_end=read_to_end,
    )


def judge_history(
    history: KafkaHistory,
    budget: Budget = Budget(),  # noqa: B008 (frozen)
    *,
    subscribed: bool | None = None,
    ww_dependencies: bool = False,
    allow: Collection[str] | None = None,
    read_to_end: bool = False,
) -> Verdict:
    """Act like `judge_kafka_log`, for a history that was already read."""
    columns = history.columns
    looked_at = {
        "operations": int((columns.f < kinds.ASSIGN).sum()),
        "sends": len(columns.sent),
        "polled messages": len(columns.polled),
    }
    if not len(columns.polled) and not (np.diff(columns.send_first)[columns.status == kinds.OK]).any():
        reason = "no message was acknowledged and none was polled, so there was nothing to judge"
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    needed_steps = _STEPS_PER_ROW * sum(looked_at.values())
    if needed_steps > budget.steps:
        reason = f"it would take {needed_steps} steps and the budget is {budget.steps}"
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    needed_bytes = _BYTES_PER_ROW * sum(looked_at.values())
    if needed_bytes > budget.size_bytes:
        reason = f"it would take {needed_bytes} bytes and the budget is {budget.size_bytes}"
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    if twice := _sent_twice(history):
        return Verdict(Validity.UNKNOWN, looked_at, f"{twice}, so the sender of a message is not certain")
    allowed = allowed_anomalies(subscribed=bool(subscribed), ww_dependencies=ww_dependencies)
    allowed = allowed if allow is None else frozenset(allow)
    seen, found = _look(history)
    excused = _excused(found, by_process=subscribed is None and allow is None)
    cycles = search(seen, ww_dependencies, budget.steps - needed_steps)
    if not ww_dependencies and not allowed >= CYCLES_OF_WRITES:
        cycles = _with_cycles_of_writes(cycles, search(seen, True, budget.steps - needed_steps))
    counts = {name: int(found.times[kind]) for kind, name in KIND_NAMES.items() if found.times[kind]}
    counts |= {cycle.name: cycle.times for cycle in cycles.cycles}
    names = sorted({*counts, *excused}, key=ANOMALIES.index)
    open_ends = not read_to_end and "unseen" not in allowed
    counted = [name for name in counts if name not in allowed and not (name == "unseen" and open_ends)]
    counted.sort(key=ANOMALIES.index)
    details = {
        "anomalies": {name: counts.get(name, 0) + excused.get(name, 0) for name in names},
        "allowed": [name for name in names if name not in counted],
        "allowed_set": sorted(allowed),
    }
    open_ = [name for name in cycles.unfinished if name in ANOMALIES and name not in allowed]
    reasons = [f"the budget ended the search for cycles ({', '.join(open_)})"] if open_ else []
    if open_ends and "unseen" in counts:
        reasons.append(_never_polled(seen))
    reason = "; ".join(reasons)
    if counted:
        witnesses = _witnesses(seen, found, cycles, counted[:MAX_WITNESSES])
        details[VIOLATIONS_BY_KIND] = {name: counts[name] for name in counted}
        looked_at["violations"] = sum(counts[name] for name in counted)
        return Verdict(Validity.INVALID, looked_at, reason, tuple(witnesses), details)
    return Verdict(Validity.UNKNOWN if reason else Validity.VALID, looked_at, reason, details=details)


def _excused(found: Found, *, by_process: bool) -> dict[str, int]:
    """Return the number of excused anomalies by name; if the excuse does not count, move them to the others."""
    excused: dict[str, int] = {}
    for kind, plain in _EXCUSED.items():
        if by_process and found.times[kind]:
            excused[KIND_NAMES[plain]] = int(found.times[kind])
        elif found.times[kind]:
            found.sample[plain] = found.sample[plain] if found.times[plain] else found.sample[kind]
            found.times[plain] += found.times[kind]
    return excused


def _with_cycles_of_writes(cycles: CycleSearch, with_ww: CycleSearch) -> CycleSearch:
    """Add the cycles of writes alone, which only the order of messages shows."""
    more = tuple(cycle for cycle in with_ww.cycles if cycle.name in CYCLES_OF_WRITES)
    unfinished = (*cycles.unfinished, *(name for name in with_ww.unfinished if name in CYCLES_OF_WRITES))
    return replace(cycles, cycles=(*cycles.cycles, *more), unfinished=unfinished)


def _look(history: KafkaHistory) -> tuple[SeenLog, Found]:
    columns = history.columns
    slots = slots_of(columns, len(history.keys))
    logs = kinds.read_logs(columns, slots.of_sent, slots.of_polled, slots.key)
    process_count = int(columns.process.max(initial=0)) + 1
    found = kinds.find_anomalies(columns, logs, slots.of_sent, len(history.keys), process_count)
    return SeenLog(history, logs, slots), found


def _witnesses(seen: SeenLog, found: Found, cycles: CycleSearch, counted: Sequence[str]) -> Iterator[Witness]:
    """Make one witness for each anomaly that counts."""
    kind_of = {name: kind for kind, name in KIND_NAMES.items()}
    cycle_of = {cycle.name: cycle for cycle in cycles.cycles}
    for name in counted:
        if name in cycle_of:
            yield explain_cycle(seen, cycle_of[name])
        else:
            a, b, c, d = found.sample[kind_of[name]].tolist()
            yield explain(seen, kind_of[name], (a, b, c, d))


def _never_polled(seen: SeenLog) -> str:
    """Why partitions are unknown if some of their acknowledged messages were never polled."""
    columns = seen.history.columns
    acknowledged = np.repeat(columns.status == kinds.OK, np.diff(columns.send_first))
    messages = columns.sent[acknowledged & (seen.logs.reader[columns.sent] < 0)]
    names = sorted(seen.history.keys[key] for key in np.unique(columns.key_of[messages]).tolist())
    what = f"nothing shows what became of {len(messages)} acknowledged message{'s' * (len(messages) != 1)}"
    return f"{what} of {shortened(names)}: no poll showed them, and nothing states that logs were read to their ends"


def _sent_twice(history: KafkaHistory) -> str:
    """Return a sentence about a value that was sent twice to one key, or ""."""
    sent, columns = history.columns.sent, history.columns
    again = np.flatnonzero(np.bincount(sent, minlength=1) > 1)
    if not len(again):
        return ""
    key = history.keys[int(columns.key_of[again[0]])]
    return f"{history.values(int(again[0]))!r} was sent to {key} twice"


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
