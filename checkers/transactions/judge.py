"""Judges transactional histories: the anomalies they show, and the consistency models that these rule out.

    judge_transactions(events, "list-append")        from events whose payloads are micro-operations (`read.py`)
    checker.LIST_APPEND, checker.RW_REGISTER         from a run's history.parquet, in process or on Spark
    judge_columns(txns, "list-append", event_count)  from integer columns, for large ones

Theory: Adya 1999; Alvaro & Kingsbury, "Elle: Inferring Isolation Anomalies from Experimental Observations", VLDB 2020.
Reads show the versions and their writers, and versions show the dependencies between transactions.  A cycle of
dependencies is an anomaly, named by the kinds of its edges.  Every reported anomaly is certain.  A history without
anomalies may still come from a system that has them.  It is unknown if it could not have shown any.

Registers show less than lists: `kernels/transactions/rw_register.py` names the conclusions that they do not allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from checkers.base.arrays import Bools, Int64
from checkers.base.checker import Budget
from checkers.base.history import Event
from checkers.base.verdict import MAX_WITNESSES, VIOLATIONS_BY_KIND, Validity, Verdict, Witness
from checkers.kernels.transactions import columns as kinds
from checkers.kernels.transactions import list_append, list_versions, rw_register
from checkers.kernels.transactions.columns import Edges, Findings, Transactions, element_bases, new_findings
from checkers.kernels.transactions.dependencies import build_graph, link_groups
from checkers.kernels.transactions.links import Groups
from checkers.transactions import anomalies
from checkers.transactions.cycles import CycleSearch, NamedCycle, find_cycles
from checkers.transactions.explain import explain_cycle, explain_finding
from checkers.transactions.read import Model, Transcript, read_transactions
from checkers.transactions.version_orders import orders_under

__all__ = ["judge_columns", "judge_transactions", "judge_transcript"]

BYTES_PER_ITEM = 40
"""Memory the kernels take besides the columns, for each micro-operation and each version (measured, rounded up).

Ten million transactions with two and a half micro-operations each take 1.5 GB, which fits the default budget.
"""

_STEPS_PER_ROW = 2
_ELEMENTS_PER_STEP = 8
"""A step is 20 to 40 ns of work.  Those ten million transactions, with 190 million list elements, take 74 million.
The search for cycles gets the rest of the budget; there a step is one visited edge."""


def judge_transactions(
    events: Sequence[Event],
    model: Model,
    budget: Budget = Budget(),  # noqa: B008 (frozen)
    *,
    consistency: str = anomalies.STRICT_SERIALIZABLE,
) -> Verdict:
    """Judge a history of transactions; events follow the grammar of a history (`formats.recognise.check_grammar`).

    consistency: the required model, one of `anomalies.MODELS`.  Anomalies that it allows are listed and do not count.
    For registers it also decides which version orders may be concluded (`version_orders.py`).
    `details`: {"consistency": as demanded, "anomalies": {name: how often}, "allowed": [names that do not count],
    "violates": [the weakest models ruled out], "ruled_out": [all of them], "strongest_left": [...]}.
    Raises MalformedHistory if a payload contains no micro-operations of this model.
    """
    transcript = read_transactions(events, model)
    return judge_transcript(transcript, budget, consistency=consistency)


def judge_columns(
    txns: Transactions,
    model: Model,
    event_count: int,
    budget: Budget = Budget(),  # noqa: B008 (frozen)
    *,
    consistency: str = anomalies.STRICT_SERIALIZABLE,
    keys: Sequence[Any] = (),
    values: Sequence[Sequence[Any]] = (),
) -> Verdict:
    """Judge columns; event_count is above all positions.  keys, values: names for witnesses (numbers without them)."""
    transcript = Transcript(model, txns, keys, values, (), event_count)
    return judge_transcript(transcript, budget, consistency=consistency)


def judge_transcript(
    transcript: Transcript,
    budget: Budget = Budget(),  # noqa: B008 (frozen)
    *,
    consistency: str = anomalies.STRICT_SERIALIZABLE,
) -> Verdict:
    """As `judge_transactions`, for transactions that were already read."""
    if consistency not in anomalies.MODELS:
        raise ValueError(f"{consistency!r} is no consistency model; there are {', '.join(anomalies.MODELS)}")
    txns = transcript.txns
    key_count = int(txns.key.max()) + 1 if len(txns.key) else 0
    looked_at = {"transactions": len(txns.status), "micro-operations": len(txns.kind), "keys": key_count}
    if not (txns.status == kinds.OK).any():
        return Verdict(Validity.UNKNOWN, looked_at, "no transaction committed, so there was nothing to judge")
    base = element_bases(txns, key_count)
    needed_bytes = BYTES_PER_ITEM * (len(txns.kind) + int(base[-1]))
    if needed_bytes > budget.size_bytes:
        return _too_much(looked_at, f"it would take {needed_bytes} bytes and the budget is {budget.size_bytes}")
    needed_steps = _STEPS_PER_ROW * len(txns.kind) + len(txns.lists) // _ELEMENTS_PER_STEP
    if needed_steps > budget.steps:
        return _too_much(looked_at, f"it would take {needed_steps} steps and the budget is {budget.steps}")
    found = new_findings()
    search = _search(transcript, base, found, consistency, budget.steps - needed_steps)
    return _conclude(transcript, looked_at, found, search, consistency)


def _too_much(looked_at: dict[str, int], reason: str) -> Verdict:
    return Verdict(Validity.UNKNOWN, looked_at, reason)


def _search(transcript: Transcript, base: Int64, found: Findings, consistency: str, steps_max: int) -> CycleSearch:
    """Note the anomalies of single reads in `found`, and search for cycles."""
    if transcript.model == "list-append":
        return _search_lists(transcript, base, found, steps_max)
    return _search_registers(transcript, base, found, consistency, steps_max)


def _search_lists(transcript: Transcript, base: Int64, found: Findings, steps_max: int) -> CycleSearch:
    txns = transcript.txns
    versions = list_versions.order_versions(txns, base, found)
    list_append.check_transactions(txns, base, versions, found)
    direct, ends = list_append.link(txns, base, versions, found)
    return _cycles(transcript, direct, ends, len(base) - 1, versions.written.happened, steps_max)


def _search_registers(
    transcript: Transcript, base: Int64, found: Findings, consistency: str, steps_max: int
) -> CycleSearch:
    """Search by the version order that reads show.  If that shows no violation, also use the order that time shows."""
    txns = transcript.txns
    written = rw_register.read_registers(txns, base, found)
    direct, orders = rw_register.link(txns, base, written, found)
    version_count = int(base[-1]) + len(base) - 1
    shown = _of_reads(_cycles(transcript, direct, orders, version_count, written.happened, steps_max))
    names = [name for kind, name in anomalies.KIND_NAMES.items() if found.times[kind]]
    if _counted([*names, *(cycle.name for cycle in shown.cycles)], consistency):
        return shown
    in_time = orders_under(consistency, txns, base, written, orders)
    if in_time is None:
        return shown
    assuming = _cycles(transcript, direct, in_time, version_count, written.happened, steps_max)
    return _joined(shown, assuming, consistency)


def _of_reads(shown: CycleSearch) -> CycleSearch:
    """Rename each G0 to G1c, because reads showed the order of the versions.

    A transaction that reads one version and writes another wrote the later one if it read committed data; otherwise the
    two form a G1c.  PL-1 lets reads show anything, so this order proves nothing there, and read-uncommitted is not
    ruled out.
    """
    cycles: dict[str, NamedCycle] = {}
    for cycle in shown.cycles:
        name = cycle.name.replace("G0", "G1c")
        if name not in cycles:
            cycles[name] = replace(cycle, name=name)
        else:
            cycles[name] = replace(cycles[name], times=cycles[name].times + cycle.times)
    unfinished = dict.fromkeys(name.replace("G0", "G1c") for name in shown.unfinished)
    return CycleSearch(tuple(cycles.values()), tuple(unfinished))


def _cycles(
    transcript: Transcript,
    direct: Edges,
    groups: Groups,
    group_count: int,
    happened: Bools,
    steps_max: int,
) -> CycleSearch:
    txns = transcript.txns
    grouped = link_groups(groups, group_count, len(txns.status))
    graph, incoming = build_graph(direct, grouped, len(txns.status) + group_count)
    return find_cycles(txns, graph, incoming, happened, transcript.event_count, steps_max)


def _joined(shown: CycleSearch, assuming: CycleSearch, consistency: str) -> CycleSearch:
    """Join the cycles that reads show with those under the required model; the latter's order is in their names."""
    variant = anomalies.parts_of(consistency)[1]
    cycles = {cycle.name: cycle for cycle in shown.cycles}
    for cycle in assuming.cycles:
        name = anomalies.under(cycle.name, variant)
        if name not in cycles and _counted([name], consistency):
            cycles[name] = replace(cycle, name=name, assumes=consistency)
    unfinished = dict.fromkeys([*shown.unfinished, *(anomalies.under(n, variant) for n in assuming.unfinished)])
    return CycleSearch(tuple(cycles.values()), tuple(unfinished))


def _counted(names: Sequence[str], consistency: str) -> list[str]:
    """Return the anomalies that the model forbids."""
    return [name for name in names if consistency in anomalies.ruled_out([name])]


def _conclude(
    transcript: Transcript, looked_at: dict[str, int], found: Findings, search: CycleSearch, consistency: str
) -> Verdict:
    counts = {name: int(found.times[kind]) for kind, name in anomalies.KIND_NAMES.items() if found.times[kind]}
    counts |= {cycle.name: cycle.times for cycle in search.cycles}
    names = sorted(counts, key=anomalies.WORST_FIRST.index)
    assuming = {cycle.name for cycle in search.cycles if cycle.assumes}
    excluded = anomalies.ruled_out(name for name in names if name not in assuming)
    if assuming:
        excluded = anomalies.in_order({*excluded, *anomalies.and_stronger(consistency)})
    counted = _counted(names, consistency)
    details = {
        "consistency": consistency,
        "anomalies": {name: counts[name] for name in names},
        "allowed": [name for name in names if name not in counted],
        "violates": anomalies.weakest(excluded),
        "ruled_out": excluded,
        "strongest_left": anomalies.strongest(excluded),
    }
    unfinished = _counted(search.unfinished, consistency)
    reason = "; ".join(_open_questions(transcript, found, unfinished))
    if not (counted or reason):
        reason = _nothing_shown(transcript)
    if counted:
        witnesses = _witnesses(transcript, found, search, counted)
        by_kind = {name: counts[name] for name in counted}
        looked_at["violations"] = sum(by_kind.values())
        details[VIOLATIONS_BY_KIND] = by_kind
        return Verdict(Validity.INVALID, looked_at, reason, tuple(witnesses), details)
    return Verdict(Validity.UNKNOWN if reason else Validity.VALID, looked_at, reason, details=details)


def _open_questions(transcript: Transcript, found: Findings, unfinished: Sequence[str]) -> list[str]:
    questions = []
    if twice := int(found.times[kinds.WRITTEN_TWICE]):
        row = int(found.sample[kinds.WRITTEN_TWICE, 0, 2])
        _, key, value = transcript.micro_operation(row)
        questions.append(
            f"{twice} values were written twice to one key (the first: {value} to {key}), "
            "so the order of those keys' versions is unknown"
        )
    if unfinished:
        questions.append(f"the budget ended the search for smaller or other cycles ({', '.join(unfinished)})")
    return questions


def _nothing_shown(transcript: Transcript) -> str:
    """Return why the committed transactions could not show a violation; "" if they could.

    They could if one of them read, and if there was something to read: an acknowledged write, or any element that a
    read shows.
    """
    txns = transcript.txns
    committed = np.repeat(txns.status == kinds.OK, np.diff(txns.first))
    writes = np.count_nonzero(committed & (txns.kind == kinds.WRITE))
    reads = committed & (txns.kind == kinds.READ)
    if not writes:
        in_list = transcript.model == "list-append"
        shows = np.diff(txns.list_first) > 0 if in_list else txns.value != kinds.NIL_VALUE
        if not (reads & shows).any():
            return "no transaction with a write was acknowledged, and no read showed one, so there was nothing to judge"
    if not reads.any():
        noun = "write" if writes == 1 else "writes"
        return f"no read was answered, so nothing shows what became of {writes} acknowledged {noun}"
    return ""


def _witnesses(transcript: Transcript, found: Findings, search: CycleSearch, counted: Sequence[str]) -> list[Witness]:
    """Make one witness for each anomaly that counts, worst first."""
    cycles = {cycle.name: cycle for cycle in search.cycles}
    kind_of = {name: kind for kind, name in anomalies.KIND_NAMES.items()}
    witnesses = []
    for name in counted[:MAX_WITNESSES]:
        if name in cycles:
            witnesses.append(explain_cycle(transcript, cycles[name]))
        else:
            a, b, c = found.sample[kind_of[name], 0].tolist()
            witnesses.append(explain_finding(transcript, kind_of[name], (a, b, c)))
    return witnesses
