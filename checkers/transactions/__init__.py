"""Transactional histories: which anomalies they show, and which consistency models they therefore rule out.

    judge_transactions(events, "list-append")        from events whose payloads are micro-operations (`read.py`)
    checker.LIST_APPEND, checker.RW_REGISTER         from a run's history.parquet, in process or on Spark
    judge_columns(txns, "list-append", event_count)  from integer columns (`kernels/transactions.py`), for large ones

Theory: Adya 1999; Alvaro & Kingsbury, "Elle: Inferring Isolation Anomalies from Experimental Observations", VLDB 2020.
Reads tell which versions there were and who wrote them, versions tell who depends on whom, and a cycle of dependencies
is an anomaly, named by the kinds of its edges.  Everything reported is certain; a history without anomalies may still
come from a system that has them.

Registers tell less than lists: `kernels/rw_register.py` says what is not concluded from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from checkers.checker import Budget
from checkers.history import Event
from checkers.kernels import list_append, rw_register
from checkers.kernels import transactions as kinds
from checkers.kernels.dependencies import build_graph, link_groups
from checkers.kernels.operations import Int64
from checkers.kernels.transactions import Bools, Edges, Findings, Transactions, element_bases, new_findings
from checkers.transactions import anomalies
from checkers.transactions.cycles import CycleSearch, find_cycles
from checkers.transactions.explain import explain_cycle, explain_finding
from checkers.transactions.linearizable_keys import version_orders_in_time
from checkers.transactions.read import Model, Transcript, read_transactions
from checkers.verdict import MAX_WITNESSES, Validity, Verdict, Witness

__all__ = ["judge_columns", "judge_transactions", "judge_transcript"]

BYTES_PER_ITEM = 40
"""Memory the kernels take besides the columns, for each micro-operation and each version (measured, rounded up): 1.5 GB
for ten million transactions with two and a half micro-operations each, which fit the default budget so."""

_STEPS_PER_ROW = 2
_ELEMENTS_PER_STEP = 8
"""A step is some 20 to 40 ns of work; of those ten million transactions, with 190 million list elements, 74 million.
What is left of the budget is for the search for cycles, where a step is an edge looked at."""


def judge_transactions(
    events: Sequence[Event],
    model: Model,
    budget: Budget = Budget(),  # noqa: B008 (frozen)
    *,
    consistency: str = anomalies.STRICT_SERIALIZABLE,
    linearizable_keys: bool = False,
) -> Verdict:
    """Judge a history of transactions; events follow the grammar of a history (`formats.recognise.check_grammar`).

    consistency: the model it has to have, one of `anomalies.MODELS`; anomalies it allows are told and do not count.
    linearizable_keys: registers only: conclude version orders from real time, as if each key were linearizable.
    `details`: {"consistency": as asked for, "anomalies": {name: how often}, "allowed": [names that do not count],
    "violates": [the weakest models ruled out], "ruled_out": [all of them], "strongest_left": [...]}.
    Raises MalformedHistory where a payload holds no micro-operations of this model.
    """
    transcript = read_transactions(events, model)
    return judge_transcript(transcript, budget, consistency=consistency, linearizable_keys=linearizable_keys)


def judge_columns(
    txns: Transactions,
    model: Model,
    event_count: int,
    budget: Budget = Budget(),  # noqa: B008 (frozen)
    *,
    consistency: str = anomalies.STRICT_SERIALIZABLE,
    linearizable_keys: bool = False,
    keys: Sequence[Any] = (),
    values: Sequence[Sequence[Any]] = (),
) -> Verdict:
    """Judge columns; event_count is above all positions.  keys, values: names for witnesses (numbers without them)."""
    transcript = Transcript(model, txns, keys, values, (), event_count)
    return judge_transcript(transcript, budget, consistency=consistency, linearizable_keys=linearizable_keys)


def judge_transcript(
    transcript: Transcript,
    budget: Budget = Budget(),  # noqa: B008 (frozen)
    *,
    consistency: str = anomalies.STRICT_SERIALIZABLE,
    linearizable_keys: bool = False,
) -> Verdict:
    """As `judge_transactions`, of transactions that were read already."""
    if consistency not in anomalies.MODELS:
        raise ValueError(f"{consistency!r} is no consistency model; there are {', '.join(anomalies.MODELS)}")
    txns = transcript.txns
    key_count = int(txns.key.max()) + 1 if len(txns.key) else 0
    looked_at = {"transactions": len(txns.status), "micro-operations": len(txns.kind), "keys": key_count}
    if not (txns.status == kinds.OK).any():
        return Verdict(Validity.NOT_APPLICABLE, looked_at, "no transaction committed")
    base = element_bases(txns, key_count)
    needed_bytes = BYTES_PER_ITEM * (len(txns.kind) + int(base[-1]))
    if needed_bytes > budget.size_bytes:
        return _too_much(looked_at, f"it would take {needed_bytes} bytes and the budget is {budget.size_bytes}")
    needed_steps = _STEPS_PER_ROW * len(txns.kind) + len(txns.lists) // _ELEMENTS_PER_STEP
    if needed_steps > budget.steps:
        return _too_much(looked_at, f"it would take {needed_steps} steps and the budget is {budget.steps}")
    found = new_findings()
    search = _search(transcript, base, found, linearizable_keys, budget.steps - needed_steps)
    return _conclude(transcript, looked_at, found, search, consistency)


def _too_much(looked_at: dict[str, int], reason: str) -> Verdict:
    return Verdict(Validity.UNKNOWN, looked_at, reason)


def _search(
    transcript: Transcript, base: Int64, found: Findings, linearizable_keys: bool, steps_max: int
) -> CycleSearch:
    """Fill in what reads alone show, and look for cycles."""
    txns = transcript.txns
    txn_count = len(txns.status)
    if transcript.model == "list-append":
        direct, grouped, happened, group_count = _list_dependencies(txns, base, found)
    else:
        direct, grouped, happened, group_count = _register_dependencies(txns, base, found, linearizable_keys)
    graph, incoming = build_graph(direct, grouped, txn_count + group_count)
    return find_cycles(txns, graph, incoming, happened, transcript.event_count, steps_max)


def _list_dependencies(txns: Transactions, base: Int64, found: Findings) -> tuple[Edges, Edges, Bools, int]:
    versions = list_append.order_versions(txns, base, found)
    list_append.check_transactions(txns, base, versions, found)
    direct, ends = list_append.link(txns, base, versions, found)
    key_count = len(base) - 1
    joined = link_groups(*ends, key_count, len(txns.status))
    return direct, joined, versions.happened, key_count


def _register_dependencies(
    txns: Transactions, base: Int64, found: Findings, linearizable_keys: bool
) -> tuple[Edges, Edges, Bools, int]:
    registers = rw_register.read_registers(txns, base, found)
    direct, orders = rw_register.link(txns, base, registers, found)
    version_count = int(base[-1]) + len(base) - 1
    if linearizable_keys:
        orders = version_orders_in_time(txns, base, registers, orders, found)
    joined = link_groups(*orders, version_count, len(txns.status))
    return direct, joined, registers.happened, version_count


def _conclude(
    transcript: Transcript, looked_at: dict[str, int], found: Findings, search: CycleSearch, consistency: str
) -> Verdict:
    counts = {name: int(found.times[kind]) for kind, name in anomalies.KIND_NAMES.items() if found.times[kind]}
    counts |= {cycle.name: cycle.times for cycle in search.cycles}
    names = sorted(counts, key=anomalies.WORST_FIRST.index)
    excluded = anomalies.ruled_out(names)
    counted = [name for name in names if consistency in anomalies.ruled_out([name])]
    details = {
        "consistency": consistency,
        "anomalies": {name: counts[name] for name in names},
        "allowed": [name for name in names if name not in counted],
        "violates": anomalies.weakest(excluded),
        "ruled_out": excluded,
        "strongest_left": anomalies.strongest(excluded),
    }
    unfinished = [name for name in search.unfinished if consistency in anomalies.ruled_out([name])]
    reason = "; ".join(_open_questions(transcript, found, unfinished))
    if counted:
        witnesses = _witnesses(transcript, found, search, counted)
        return Verdict(Validity.INVALID, looked_at, reason, tuple(witnesses), details)
    return Verdict(Validity.UNKNOWN if reason else Validity.VALID, looked_at, reason, details=details)


def _open_questions(transcript: Transcript, found: Findings, unfinished: Sequence[str]) -> list[str]:
    questions = []
    if twice := int(found.times[kinds.WRITTEN_TWICE]):
        row = int(found.sample[kinds.WRITTEN_TWICE, 0, 2])
        _, key, value = transcript.micro_operation(row)
        questions.append(
            f"{twice} values were written twice to one key (the first: {value} to {key}), "
            "so nothing was concluded from those keys"
        )
    if unfinished:
        questions.append(f"the budget ended the search for smaller or other cycles ({', '.join(unfinished)})")
    return questions


def _witnesses(transcript: Transcript, found: Findings, search: CycleSearch, counted: Sequence[str]) -> list[Witness]:
    """One for each anomaly that counts, worst first."""
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
