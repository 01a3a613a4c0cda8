"""Divides a history of transactions into groups that share no key, and joins the verdicts on these groups.

Two components of a history touch no common key.  The whole history has an order if and only if each component has one:

    without sessions or real time   put the orders of the components one after another
    with sessions                   a session must not run through two components, so sessions join components, too
    with real time                  the property is local, as linearizability is (Herlihy & Wing 1990)

The proof of the last row: assign to each event the latest invocation among the event itself and all events before it in
the order of its component.  This moment lies within the event's transaction.  Otherwise the order would put a
transaction that completed before another was invoked behind that other one.  So sorting the events of all components by
these moments respects real time.

Anomalies of stronger models are listed as well.  If real time does not count, they may run through sessions, so
sessions join components there, too.  If an anomaly of real time runs through several components, one of the components
contains an anomaly that is at least as bad.

The division depends only on the history and the model, so the verdict is the same in one process and on Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from typing import Any

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.base.checker import Budget
from checkers.base.verdict import MAX_WITNESSES, VIOLATIONS_BY_KIND, Validity, Verdict, Witness
from checkers.base.verdict import combine as combine_groups
from checkers.kernels.codes import dense_processes
from checkers.kernels.transactions.columns import OK, READ, WRITE
from checkers.kernels.transactions.dependencies import joined_components
from checkers.transactions import anomalies
from checkers.transactions.judge import judge_transcript, of_anomalies
from checkers.transactions.read import Lazily, Transcript, with_transactions

TRANSACTIONS_MIN = 10_000
"""Minimum number of transactions of a history that is divided.  A smaller one is judged faster than Spark starts a
task."""
GROUPS_MAX = 8
"""Maximum number of groups.  It is small because the worker of each group reads the whole file."""


def groups_of(transcript: Transcript, consistency: str) -> Int32:
    """Return the group of each transaction (int32, from 0); all are in group 0 if the history cannot be divided."""
    txns = transcript.txns
    alone = np.zeros(len(txns.status), np.int32)
    if len(txns.status) < TRANSACTIONS_MIN or not len(txns.key):
        return alone
    found = components_of(transcript, consistency)
    sizes = np.bincount(found, np.diff(txns.first) + 1).astype(np.int64)
    dealt = _dealt(sizes, _shown(transcript, found, len(sizes)))
    return np.take(dealt, found)


def components_of(transcript: Transcript, consistency: str) -> Int32:
    """Return the number of the component of each transaction."""
    txns = transcript.txns
    timed = transcript.timed and anomalies.parts_of(consistency)[1] == anomalies.REALTIME
    process, process_count = dense_processes(txns.process)
    return joined_components(txns.first, txns.key, int(txns.key.max()) + 1, process, 0 if timed else process_count)


def _shown(transcript: Transcript, component: Int32, count: int) -> Bools:
    """Return a mask of the components with committed reads and committed writes.  The others prove nothing alone."""
    txns = transcript.txns
    of_row = np.repeat(component, np.diff(txns.first))
    committed = np.repeat(txns.status == OK, np.diff(txns.first))
    reads = np.bincount(of_row[committed & (txns.kind == READ)], minlength=count)
    writes = np.bincount(of_row[committed & (txns.kind == WRITE)], minlength=count)
    shown: Bools = (reads > 0) & (writes > 0)
    return shown


def _dealt(sizes: Int64, shown: Bools) -> Int32:
    """Assign components to groups in the order of their sizes; returns the group of each component.

    Components that prove nothing alone go to group 0, which also gets the largest of the other components.
    """
    group = np.zeros(len(sizes), np.int32)
    places = np.lexsort((-sizes, ~shown))[: np.count_nonzero(shown)]
    group[places] = np.arange(len(places)) % GROUPS_MAX
    return group


def group_count(groups: Int32) -> int:
    return int(groups.max(initial=0)) + 1


def transcript_of_group(transcript: Transcript, groups: Int32, group: int) -> Transcript:
    """Return the transactions of one group.  Keys get new numbers, but positions in the history do not change."""
    chosen = np.flatnonzero(groups == group)
    txns = with_transactions(transcript.txns, chosen)
    keys, key = np.unique(txns.key, return_inverse=True)
    number_of = {int(k): n for n, k in enumerate(keys.tolist())} if transcript.initial else {}
    return replace(
        transcript,
        txns=txns._replace(key=key.astype(np.int32)),
        keys=[transcript.key_name(k) for k in keys.tolist()],
        values=[transcript.values[k] for k in keys.tolist()] if transcript.values else (),
        events=Lazily(len(chosen), lambda t: transcript.events[int(chosen[t])]) if transcript.events else (),
        begin=None if transcript.begin is None else transcript.begin[chosen],
        initial=frozenset((number_of[k], value) for k, value in transcript.initial if k in number_of),
    )


def judge_by_groups(transcript: Transcript, budget: Budget, *, consistency: str, keep_order: bool = False) -> Verdict:
    """Judge each group on its own, one after another, and join the verdicts."""
    groups = groups_of(transcript, consistency)
    verdicts = [
        judge_group(transcript, groups, group, budget, consistency=consistency, keep_order=keep_order)
        for group in range(group_count(groups))
    ]
    return joined(verdicts)


def judge_group(
    transcript: Transcript,
    groups: Int32,
    group: int,
    budget: Budget,
    *,
    consistency: str,
    keep_order: bool = False,
) -> Verdict:
    """Judge one group.  It gets the whole budget, because it may contain nearly the whole history."""
    part = transcript if group_count(groups) == 1 else transcript_of_group(transcript, groups, group)
    return judge_transcript(part, budget, consistency=consistency, keep_order=keep_order)


def joined(verdicts: Sequence[Verdict]) -> Verdict:
    """Join the verdicts on all groups of one history, in their order.

    For each anomaly, the witness with the fewest events remains; among equals, the earliest.
    """
    if len(verdicts) == 1:
        return verdicts[0]
    validity = combine_groups(verdict.validity for verdict in verdicts)
    looked_at = _sums(verdict.looked_at for verdict in verdicts)
    details: dict[str, Any] = dict(verdicts[0].details)
    violations = _sums(verdict.details.get(VIOLATIONS_BY_KIND, {}) for verdict in verdicts)
    counts = _sums(verdict.details.get("anomalies", {}) for verdict in verdicts)
    if set(violations) - {anomalies.NO_ORDER_NAME}:  # any other anomaly already shows that there is no order
        for times in (violations, counts):
            times.pop(anomalies.NO_ORDER_NAME, None)
        looked_at["violations"] = sum(violations.values())
    named = {name: counts[name] for name in sorted(counts, key=anomalies.WORST_FIRST.index)}
    excluded = anomalies.in_order(model for v in verdicts for model in v.details.get("ruled_out", ()))
    details |= of_anomalies(excluded, named, [name for name in named if name not in violations])
    details["search"] = _sums(verdict.details.get("search", {}) for verdict in verdicts)
    details["groups"] = len(verdicts)
    for name in ("decided", "order", VIOLATIONS_BY_KIND):
        details.pop(name, None)
    if violations:
        details[VIOLATIONS_BY_KIND] = violations
    if validity is Validity.VALID:
        details["decided"] = (
            f"{details['consistency']}: an order of each of {len(verdicts)} independent groups was replayed"
        )
        if all("order" in verdict.details for verdict in verdicts):
            details["order"] = order_of_all([verdict.details["order"] for verdict in verdicts])
    reasons = dict.fromkeys(verdict.reason for verdict in verdicts if verdict.reason)
    witnesses = tuple(witness for witness in _witnesses(verdicts) if witness.kind in violations)[:MAX_WITNESSES]
    return Verdict(validity, looked_at, "; ".join(reasons), witnesses, details)


def _sums(of_groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for counts in of_groups:
        for name, count in counts.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def _witnesses(verdicts: Sequence[Verdict]) -> Iterator[Witness]:
    """Yield one witness for each anomaly, in the order of WORST_FIRST."""
    best: dict[str, Witness] = {}
    for witness in sorted(
        (witness for verdict in verdicts for witness in verdict.witnesses),
        key=lambda witness: (len(witness.events), witness.events[0]["index"]),
    ):
        best.setdefault(witness.kind, witness)
    yield from sorted(best.values(), key=lambda witness: anomalies.WORST_FIRST.index(witness.kind))


def order_of_all(orders: Sequence[Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """Merge the orders of groups into one order that respects real time (see the proof above).

    A row is {"index": index of the invoke, "process": ..., "event": ...}.
    """
    return [row for _, _, row in merge(*(_at_moments(rows, group) for group, rows in enumerate(orders)))]


def _at_moments(
    rows: Sequence[Mapping[str, Any]], group: int
) -> Iterator[tuple[int, tuple[int, int], Mapping[str, Any]]]:
    """Yield (moment, tie-breaker for events of one moment, row) for each event."""
    latest = -1
    for place, row in enumerate(rows):
        latest = max(latest, row["index"])
        yield latest, (group, place), row
