"""The pairs of causal, against their definition, on histories in which the visible writers of a key are many."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from bench.instruments.transaction_histories import by_session, simulate_sessions
from checkers.base.arrays import Int32, Int64
from checkers.kernels.codes import dense_processes
from checkers.kernels.transactions import order_problem as problems
from checkers.kernels.transactions import visible_writes as visible
from checkers.kernels.transactions.columns import OK, READ, Transactions, element_bases, new_findings
from checkers.kernels.transactions.cycle_levels import next_of_process
from checkers.kernels.transactions.order_search import ORDER, find_order, guess_of, no_time
from checkers.kernels.transactions.rw_register import read_registers


@pytest.mark.parametrize("keys", [5, 20, 100])
@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("sessions", [False, True])
def test_causal_pairs_order_exactly_the_visible_writers_before_the_one_that_was_read(
    keys: int, snapshots: bool, sessions: bool
) -> None:
    txns = by_session(simulate_sessions(150, 4, keys, snapshots=snapshots, seed=keys)[0]).txns
    base, found = element_bases(txns, int(txns.key.max()) + 1), new_findings()
    written = read_registers(txns, base, found)
    process, count = dense_processes(txns.process)
    following = next_of_process(process, count, written.happened) if sessions else np.empty(0, np.int32)
    problem = problems.problem_of(txns, base, written, None, following, False)
    alone = problems.without_overwriting(problem)
    outcome, search = find_order(alone, no_time(), guess_of(txns, alone, snapshots=False), False, 1 << 40)
    assert outcome == ORDER
    if sessions:
        chain, place, chains = visible.session_chains(process, count, search.order)
    else:
        chain, place, chains = visible.reading_chains(problem, search.order)
    pairs = visible.causal_pairs(problem, search.order, chain, place, chains)

    reads, seen = reads_of(txns, base, written.writer), nx.DiGraph()
    seen.add_nodes_from(np.flatnonzero(written.happened).tolist())
    seen.add_edges_from((by, t) for t, _, by in reads if by >= 0)
    seen.add_edges_from((t, int(then)) for t, then in enumerate(following.tolist()) if then >= 0)
    visible_to = nx.transitive_closure_dag(seen)
    demanded = set()
    for t, key, by in reads:
        writers = set(txns_that_write(txns, key)) & set(visible_to.predecessors(t)) - {by}
        demanded |= {(w, by) if by >= 0 else (t, w) for w in writers}
    made = set(zip(pairs.source.tolist(), pairs.target.tolist(), strict=True))
    assert made and made <= demanded
    assert all(visible_to.has_edge(*pair) for pair in demanded - made - closed(visible_to, made))


def closed(visible_to: nx.DiGraph[int], made: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return every order that follows from visibility and from the pairs."""
    both = nx.DiGraph(visible_to)
    both.add_edges_from(made)
    return set(nx.transitive_closure(both).edges)


def reads_of(txns: Transactions, base: Int64, writer: Int32) -> list[tuple[int, int, int]]:
    """(reader, key, writer or -1) of each committed read."""
    owner = np.repeat(np.arange(len(txns.status)), np.diff(txns.first))
    rows = np.flatnonzero((txns.kind == READ) & (txns.status[owner] == OK))
    return [
        (int(owner[r]), int(txns.key[r]), int(writer[base[txns.key[r]] + txns.value[r]]) if txns.value[r] >= 0 else -1)
        for r in rows
    ]


def txns_that_write(txns: Transactions, key: int) -> list[int]:
    owner = np.repeat(np.arange(len(txns.status)), np.diff(txns.first))
    wrote = (txns.kind != READ) & (txns.key == key) & (txns.status[owner] == OK)
    return [int(t) for t in np.unique(owner[wrote])]
