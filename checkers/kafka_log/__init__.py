"""Histories of Kafka's logs: what was sent, at which offsets it landed, and who polled it in which order.

    judge_kafka_log(events)    events with the payloads of `read.py`

Judged as read-committed consumers see them; retention and compaction must not have removed anything, and some consumer
must have read every partition from its beginning (otherwise `unseen` and `lost-write` cry wolf).

Allowed, that is told and not counted:

    always                          int-send-skip, G0, G0-process, G0-realtime: transactions interleave their sends
    where any process subscribes    poll-skip, nonmonotonic-poll: a rebalance moves consumers between polls
    with ww_dependencies            G1c, G1c-process, G1c-realtime: without isolation of writes such cycles are everyday
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from checkers.checker import Budget
from checkers.history import Event, Type
from checkers.kafka_log.cycles import cycles
from checkers.kafka_log.logs import read_logs
from checkers.kafka_log.read import TRANSACTIONS, Operation, read_operations
from checkers.kafka_log.rules import RULES
from checkers.transactions.anomalies import VARIANTS
from checkers.verdict import MAX_WITNESSES, Validity, Verdict, Witness

__all__ = ["ANOMALIES", "allowed_anomalies", "judge_kafka_log"]

ALWAYS_ALLOWED = frozenset({"int-send-skip", *("G0" + v for v in VARIANTS)})
ALLOWED_WITH_SUBSCRIBE = frozenset({"poll-skip", "nonmonotonic-poll"})
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
"""Every anomaly by name, worst first."""

_STEPS_PER_MESSAGE = 20
_SEARCHES = 15


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
) -> Verdict:
    """Judge a history of sends, polls and transactions of both.

    subscribed: whether consumers shared partitions by subscription; None: as the history says.
    ww_dependencies: let the order of messages order their senders; shows G0, and then G1c proves nothing.
    allow: names of what does not count; None: `allowed_anomalies`.
    `details`: {"anomalies": {name: how often}, "allowed": [names found that do not count], "allowed_set": [...]}.
    Raises MalformedHistory where a payload is not as `read.py` says.
    """
    operations = read_operations(events)
    judged = [o for o in operations if o.f in TRANSACTIONS]
    looked_at = {
        "operations": len(judged),
        "sends": sum(len(o.sends) for o in judged),
        "polled messages": sum(len(m) for o in judged for poll in o.polls for m in poll.values()),
    }
    if not any(o.status is Type.OK for o in judged):
        return Verdict(Validity.NOT_APPLICABLE, looked_at, "no send, poll or transaction succeeded")
    needed_steps = _STEPS_PER_MESSAGE * sum(looked_at.values())
    if needed_steps > budget.steps:
        reason = f"it would take {needed_steps} steps and the budget is {budget.steps}"
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    if twice := _sent_twice(judged):
        return Verdict(Validity.UNKNOWN, looked_at, f"{twice}: who sent what cannot be told")
    if subscribed is None:
        subscribed = any(o.f == "subscribe" for o in operations)
    allowed = allowed_anomalies(subscribed=subscribed, ww_dependencies=ww_dependencies)
    allowed = allowed if allow is None else frozenset(allow)
    found = _found(operations, len(events), ww_dependencies, (budget.steps - needed_steps) // _SEARCHES)
    counted = [name for name in found if name not in allowed]
    details = {
        "anomalies": {name: count for name, (count, _) in found.items()},
        "allowed": [name for name in found if name in allowed],
        "allowed_set": sorted(allowed),
    }
    if counted:
        witnesses = tuple(found[name][1] for name in counted[:MAX_WITNESSES])
        return Verdict(Validity.INVALID, looked_at, witnesses=witnesses, details=details)
    return Verdict(Validity.VALID, looked_at, details=details)


def _found(
    operations: Sequence[Operation], event_count: int, ww: bool, steps_max: int
) -> dict[str, tuple[int, Witness]]:
    """Per anomaly, worst first: how often, and the first witness."""
    logs = read_logs(operations)
    counts: defaultdict[str, int] = defaultdict(int)
    first: dict[str, Witness] = {}
    for rule in RULES:
        for witness in rule(operations, logs):
            counts[witness.kind] += 1
            first.setdefault(witness.kind, witness)
    for witness in cycles(operations, logs, event_count, ww, steps_max):
        counts[witness.kind] += 1
        first.setdefault(witness.kind, witness)
    return {name: (counts[name], witness) for name, witness in first.items()}


def _sent_twice(operations: Sequence[Operation]) -> str:
    """A sentence about a value that was sent twice to one key, or nothing."""
    seen = set()
    for operation in operations:
        for key, (_, value) in operation.sends:
            if (key, value) in seen:
                return f"{value!r} was sent to {key} twice"
            seen.add((key, value))
    return ""
