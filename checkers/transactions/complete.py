"""Decides a consistency model completely: finds an order of all transactions that explains the history, or proves that
there is none.

Each model becomes an order problem (`kernels/transactions/order_problem.py`), and one search solves all of them:

    read-uncommitted            the known order of list versions, sessions and real time have a common order
    read-committed              also, every read comes after the writer of the version that it shows
    read-atomic, causal         also, every other visible writer of a key comes before the writer that was read
                                (`kernels/transactions/visible_writes.py`)
    repeatable-read,            each read shows the last version before it; start and commit are one event.  Reads are
    serializable                of items, never of predicates, so the two models are the same problem
    snapshot-isolation          the same with snapshots: starts and commits are separate events

Aborted, intermediate and internal reads are judged before, and a history with such an anomaly is not searched.  So here
each read shows one version that another transaction committed.

`order_replay.py` replays each order that was found, independently of the search.

*Registers.*  Reads alone show little of the order of a register's versions.  The required model shows more if it counts
the order of processes or real time: then some versions have the order in which transactions read or wrote them
(`rw_register.py` explains this).  This order is certain *for the required model only*.  A cycle built on this order
violates the required model and every stronger one, but proves nothing about weaker models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.codes import dense_processes
from checkers.kernels.transactions import list_versions, rw_register
from checkers.kernels.transactions import order_problem as problems
from checkers.kernels.transactions import order_replay as replays
from checkers.kernels.transactions import visible_writes as visible
from checkers.kernels.transactions.columns import OK, Edges, Findings, Transactions, Written
from checkers.kernels.transactions.cycle_levels import next_of_process
from checkers.kernels.transactions.dependencies import WW, Groups
from checkers.kernels.transactions.list_versions import Versions
from checkers.kernels.transactions.order_problem import OrderProblem, forced_order
from checkers.kernels.transactions.order_search import (
    CONFLICTS,
    DECISIONS,
    LEARNED,
    NO_ORDER,
    ORDER,
    STEPS,
    UNDECIDED,
    UNDONE,
    find_order,
    guess_of,
    no_time,
    ranked,
    real_time,
)
from checkers.kernels.transactions.rw_register import (
    ALL_AFTER_ALL,
    WRITES_AFTER_ALL,
    WRITES_AFTER_WRITES,
    Meetings,
    meetings_of,
    versions_in_time,
)
from checkers.transactions.anomalies import PLAIN, PROCESS, REALTIME, parts_of
from checkers.transactions.read import Model

WEAK = ("read-uncommitted", "read-committed", "read-atomic", "causal")
"""Models under which a read need not show the last version.  All their constraints order two transactions."""

CLOCKS_SIZE_BYTES_MAX = 2_000_000_000
"""Maximum size in bytes of the clocks for causal consistency; if they need more, the verdict is unknown.

There is one clock for each transaction, with one entry for each chain."""


_FIGURES = {"steps": STEPS, "certain": LEARNED, "decisions": DECISIONS, "conflicts": CONFLICTS, "taken back": UNDONE}

MANY_STEPS = 1 << 50
"""Step limit of problems that need no decisions: they take one step per event and constraint, so never reach it."""

_PATIENCE_STRONGER = 64
"""Maximum number of steps, per transaction and micro-operation, of the search under the stronger model."""

_PATIENCE_WITHOUT_FORCED = 64
"""Number of steps, per transaction and micro-operation, after which the forced order is computed."""

REACHABLE_SIZE_BYTES_MAX = 200_000_000
"""Maximum size in bytes of a matrix with one bit for each pair of transactions.

For more than 40,000 transactions no forced order is computed."""

_PATIENCE = 8
"""Number of steps, per transaction and micro-operation, after which the other guess of the starts is tried.

Each further round takes eight times as many."""


class WrongOrder(RuntimeError):
    """The replay rejected an order that the search had found: a bug in this program, never an error in the history."""


@dataclass(frozen=True)
class OrderDecision:
    """The result of a search for an order.

    outcome: NO_ORDER, ORDER or UNDECIDED of `order_search`
    snapshots: True if starts and commits are separate events
    order: if the outcome is ORDER, its events: transactions, or with snapshots 2 t for the start of transaction t and
        2 t + 1 for its commit
    involved: transactions on which a proof of NO_ORDER rests
    figures: statistics of the search by name
    """

    outcome: int
    snapshots: bool
    order: Int32
    involved: Int64
    figures: dict[str, int]

    @property
    def transactions(self) -> Int32:
        """Return the transaction of each event."""
        return self.order // 2 if self.snapshots else self.order


@dataclass(frozen=True)
class Known:
    """Facts that are certain before the search: the order of list versions, or the writers of register values."""

    base: Int64
    versions: Versions | None
    written: Written


def known_of(txns: Transactions, model: Model, base: Int64, found: Findings) -> Known:
    """Find the order of list versions or the writers of values, and add the anomalies of single reads to `found`."""
    if model == "rw-register":
        return Known(base, None, rw_register.read_registers(txns, base, found))
    versions = list_versions.order_versions(txns, base, found)
    list_versions.check_transactions(txns, base, versions, found)
    return Known(base, versions, versions.written)


def decide(
    txns: Transactions,
    known: Known,
    consistency: str,
    steps_max: int,
    begin: Int64 | None = None,
    *,
    timed: bool = True,
) -> OrderDecision:
    """Decide one model for transactions without anomalies of single reads.

    begin: as in `guess_of`
    timed: True if real time is known

    An order that also respects real time or sessions is an order of the weaker model, too.  Most databases respect
    both, and these constraints shorten the search because they separate most transactions.  So the stronger model is
    searched first.  If it has no order, this proves nothing, and the required model is searched.
    """
    model, variant = parts_of(consistency)
    stronger = REALTIME if timed else PROCESS
    figures: dict[str, int] = {}
    if model not in WEAK and variant not in (stronger, REALTIME):
        steps = min(steps_max // 4, _PATIENCE_STRONGER * (len(txns.kind) + len(txns.status)))
        decision = _decided(txns, known, model, stronger, steps, begin)
        figures = decision.figures
        if decision.outcome == ORDER:
            _demand_that_it_fits(txns, known, model, variant, decision.order, decision.snapshots)
            return decision
    decision = _decided(txns, known, model, variant, steps_max - figures.get("steps", 0), begin)
    both = {name: count + figures.get(name, 0) for name, count in decision.figures.items()}
    return replace(decision, figures=both)


def _decided(
    txns: Transactions, known: Known, model: str, variant: str, steps_max: int, begin: Int64 | None
) -> OrderDecision:
    problem = problem_under(txns, known, model, variant)
    if problem is None:
        return OrderDecision(UNDECIDED, False, np.empty(0, np.int32), np.empty(0, np.int64), {"steps": 0})
    snapshots = model == "snapshot-isolation"
    time = real_time(txns, problem) if variant == REALTIME else no_time()
    figures: dict[str, int] = {}
    size = len(txns.kind) + len(txns.status)
    forces = not snapshots and model not in WEAK and len(txns.status) ** 2 // 8 <= REACHABLE_SIZE_BYTES_MAX
    first_steps = min(steps_max, _PATIENCE_WITHOUT_FORCED * size) if forces else steps_max
    for starts_early, steps in _attempts(snapshots, size, first_steps):
        guess = guess_of(txns, problem, snapshots=snapshots, starts_early=starts_early, begin=begin)
        outcome, search = find_order(problem, time, guess, snapshots, steps)
        for name, place in _FIGURES.items():
            figures[name] = figures.get(name, 0) + int(search.at[place])
        if outcome in (NO_ORDER, ORDER):
            break
    involved = search.involved != 0
    if outcome == UNDECIDED and first_steps < steps_max:
        forced = forced_order(problem, steps_max - first_steps)
        guess = ranked(forced.place, problem.happened) if time.by_end.size == 0 else guess
        figures["forced"] = len(forced.edges.source)
        left = steps_max - first_steps - forced.steps
        outcome, search = find_order(problems.with_pairs(problem, forced.edges), time, guess, False, left)
        figures["steps"] += forced.steps + int(search.at[STEPS])
        involved = problem.happened  # forced edges may rest on any transaction
    if outcome == ORDER:
        _demand_that_it_fits(txns, known, model, variant, search.order, snapshots)
    rests_on = np.flatnonzero(involved) if outcome == NO_ORDER else np.empty(0, np.int64)
    return OrderDecision(
        outcome, snapshots, search.order if outcome == ORDER else np.empty(0, np.int32), rests_on, figures
    )


def _attempts(snapshots: bool, size: int, steps_max: int) -> Iterator[tuple[bool, int]]:
    """Yield pairs (True if starts are guessed early, budget in steps).

    The budgets grow, and their sum is at most `steps_max`.
    """
    if not snapshots:
        yield True, steps_max
        return
    steps = _PATIENCE * size
    while 2 * steps < steps_max:
        yield from ((True, steps), (False, steps))
        steps_max -= 2 * steps
        steps *= 8
    yield from ((True, steps_max // 2), (False, steps_max // 2))


def problem_under(txns: Transactions, known: Known, model: str, variant: str) -> OrderProblem | None:
    """Return the order problem of a consistency model; None if its clocks take too much memory."""
    base, versions, written = known.base, known.versions, known.written
    happened = txns.status == OK if model == "read-uncommitted" else written.happened
    process, process_count = dense_processes(txns.process)
    sessions = next_of_process(process, process_count, happened) if variant == PROCESS else np.empty(0, np.int32)
    if model not in WEAK:
        return problems.problem_of(txns, base, written, versions, sessions, readers=True)
    if model in ("read-atomic", "causal"):
        seen = problems.problem_of(txns, base, written, versions, sessions, readers=False)
        ordered = problems.without_overwriting(seen)
        outcome, search = find_order(ordered, no_time(), guess_of(txns, ordered, snapshots=False), False, MANY_STEPS)
        if outcome == NO_ORDER:
            return ordered
        pairs = _pairs(seen, model, search.order, sessions, process)
        return None if pairs is None else problems.with_pairs(ordered, pairs)
    demanded = [problems.session_edges(sessions)]
    if model != "read-uncommitted":
        demanded.append(problems.writers_before_readers(txns, base, written, versions is not None))
    if versions is not None:
        lists = versions._replace(written=written._replace(happened=happened))
        demanded.append(problems.list_edges(txns, base, lists))
    return problems.problem_of_edges(happened, *demanded)


def _pairs(problem: OrderProblem, model: str, order: Int32, sessions: Int32, process: Int32) -> Edges | None:
    """Return pairs of writers of which one must commit before the other; None if the vector clocks take too much
    memory.
    """
    count_sessions = len(sessions) > 0
    if model == "read-atomic":
        by_session = np.argsort(process, kind="stable").astype(np.int32)
        return visible.atomic_pairs(problem, by_session[problem.happened[by_session]], process, count_sessions)
    if count_sessions:
        chain, place, chains = visible.session_chains(process, int(process.max()) + 1, order)
    else:
        chain, place, chains = visible.reading_chains(problem, order)
    if 4 * len(process) * chains > CLOCKS_SIZE_BYTES_MAX:
        return None
    return visible.causal_pairs(problem, order, chain, place, chains)


def decided_by(order: Int32, txns: Transactions, known: Known, consistency: str) -> OrderDecision:
    """Return a decision from a serial order that respects real time; it fits every model that the history allows.

    Raises WrongOrder if the order contradicts the history.
    """
    _demand_that_it_fits(txns, known, *parts_of(consistency), order, False)
    return OrderDecision(ORDER, False, order, np.empty(0, np.int64), {"steps": len(order)})


def _demand_that_it_fits(
    txns: Transactions, known: Known, model: str, variant: str, order: Int32, snapshots: bool
) -> None:
    """Raise WrongOrder unless the order explains the history."""
    skipped: Bools = known.written.unusable != 0
    of_order = order // 2 if snapshots else order
    placed = np.bincount(of_order, minlength=len(txns.status))
    if ((txns.status == OK) & (placed != (2 if snapshots else 1))).any():
        raise WrongOrder("the order lacks a transaction that committed")
    if model not in WEAK:
        if known.versions is not None:
            at = replays.replay_lists(txns, known.base, order, snapshots, skipped)
        else:
            at = replays.replay_registers(txns, order, len(known.base) - 1, snapshots, skipped)
        if at != replays.FITS:
            raise WrongOrder(f"event {at} of the order contradicts the history")
    elif model != "read-uncommitted" and not replays.reads_after_writes(txns, known.base, order, skipped):
        raise WrongOrder("the order places a read before the write that it shows")
    if variant == PROCESS:
        process, process_count = dense_processes(txns.process)
        if not replays.keeps_sessions(process, order, snapshots, process_count):
            raise WrongOrder("the order contradicts a session")
    if variant == REALTIME and not replays.keeps_real_time(txns, order, snapshots):
        raise WrongOrder("the order contradicts real time")


_NOTHING = Groups(
    np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int8), np.empty(0, np.int32), np.empty(0, np.int32)
)

_RULES = {
    "read-uncommitted": WRITES_AFTER_WRITES,
    "read-committed": WRITES_AFTER_ALL,
    "read-atomic": WRITES_AFTER_ALL,  # a session may read a version, and later an older one
}


def orders_under(consistency: str, txns: Transactions, base: Int64, written: Written, orders: Groups) -> Groups | None:
    """Return `orders` with the orders of versions that time adds under a consistency model.

    Returns None if the model counts neither sessions nor real time.
    """
    model, variant = parts_of(consistency)
    if variant == PLAIN:
        return None
    if model == "read-uncommitted":
        orders = _NOTHING  # this model allows any read, so reads prove no order
    meetings = meetings_of(txns, base, written)
    order, first = _grouped(meetings, txns.process[meetings.txn] if variant == PROCESS else None)
    earlier, later = versions_in_time(meetings, order, first, _RULES.get(model, ALL_AFTER_ALL))
    by, then = written.writer[earlier], written.writer[later]
    others = by != then
    by, then, earlier = by[others], then[others], earlier[others]
    count = np.int64(len(txns.status))
    before = np.setdiff1d(earlier * count + by, orders.before_group.astype(np.int64) * count + orders.before)
    after = np.setdiff1d(earlier * count + then, orders.after_group.astype(np.int64) * count + orders.after)
    return Groups(
        np.append(orders.before, (before % count).astype(np.int32)),
        np.append(orders.before_group, (before // count).astype(np.int32)),
        np.append(orders.before_kind, np.full(len(before), WW, np.int8)),
        np.append(orders.after, (after % count).astype(np.int32)),
        np.append(orders.after_group, (after // count).astype(np.int32)),
    )


def _grouped(meetings: Meetings, process: Int32 | None) -> tuple[Int64, Int64]:
    """Group the meetings by key, and by process unless it is None.

    Returns (the meetings in grouped order, the position at which each group begins).
    """
    process = np.zeros_like(meetings.key) if process is None else process
    order = np.lexsort((meetings.key, process))
    changes = np.diff(meetings.key[order]) | np.diff(process[order])
    first = np.concatenate([[0], np.flatnonzero(changes) + 1, [len(order)]]) if len(order) else np.zeros(1, np.int64)
    return order.astype(np.int64), first.astype(np.int64)
