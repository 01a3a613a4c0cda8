"""An order at the strongest level proves that the graph of all dependencies has no cycle.

The pairs of causal agree with their definition, on histories in which a key has many visible writers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import networkx as nx
import numpy as np
import pytest
from adversarial_histories import adversarial
from toy_transactions import ISOLATIONS, simulate

from bench.instruments.transaction_histories import by_session, simulate_sessions
from checkers.base.arrays import Int32, Int64
from checkers.base.history import Event
from checkers.base.verdict import Validity
from checkers.kernels.codes import dense_processes
from checkers.kernels.transactions import order_problem as problems
from checkers.kernels.transactions import rw_register
from checkers.kernels.transactions import visible_writes as visible
from checkers.kernels.transactions.columns import OK, READ, Transactions, element_bases, new_findings
from checkers.kernels.transactions.cycle_levels import next_of_process
from checkers.kernels.transactions.dependencies import build_graph, link_groups
from checkers.kernels.transactions.order_search import ORDER, find_order, guess_of, no_time
from checkers.transactions.anomalies import MODELS, STRICT_SERIALIZABLE
from checkers.transactions.complete import decide, known_of
from checkers.transactions.cycles import find_cycles
from checkers.transactions.judge import _Question, judge_transactions
from checkers.transactions.read import Transcript, read_transactions


def histories(rng: Random, cases: int) -> Iterator[list[Event]]:
    """Tiny ones, some with a made-up answer, and longer ones of every database, with open and failed transactions."""
    for _ in range(cases):
        yield adversarial(rng, "rw-register", unique=True)
        yield simulate(
            rng,
            "rw-register",
            rng.choice(ISOLATIONS),
            transactions=rng.randint(5, 25),
            processes=rng.randint(2, 6),
            keys=rng.randint(1, 4),
            trouble=rng.choice([0, 0.1]),
        )


def outcome(transcript: Transcript) -> str:
    """Compare with the sweep of the graph; the finding of both, or that single reads are wrong."""
    txns, found = transcript.txns, new_findings()
    if not len(txns.key):
        return "not asked"
    base = element_bases(txns, int(txns.key.max()) + 1)
    known = known_of(txns, "rw-register", base, found)
    written = known.written
    if found.times.any():
        return "not asked"
    serial = decide(txns, known, STRICT_SERIALIZABLE, 10**6).outcome == ORDER
    direct, groups = rw_register.link(txns, base, written, found)
    group_count, count = int(base[-1]) + len(base) - 1, len(txns.status)
    graph, incoming = build_graph(direct, link_groups(groups, group_count, count), count + group_count)
    search = find_cycles(txns, graph, incoming, written.happened, transcript.event_count, 10**6)
    assert not serial or (search.order is not None and not found.times.any()), transcript
    return "serial" if serial else "cycle" if search.order is None else "neither"


def test_where_an_order_exists_the_graph_has_no_cycle() -> None:
    seen = Counter(outcome(read_transactions(events, "rw-register")) for events in histories(Random(1), 300))
    assert seen["serial"] > 200, seen
    assert seen["cycle"] > 40, seen


@pytest.mark.parametrize("snapshots", [False, True])
def test_sessions_without_time_are_compared_too(snapshots: bool) -> None:
    seen = Counter[str]()
    for seed in range(20):
        for keys in (5, 40, 1000):
            history, begin, end = simulate_sessions(150, 4, keys, snapshots=snapshots, seed=seed)
            seen.update(map(outcome, (history, by_session(history), by_session(history, (begin, end)))))
    assert seen["serial"], seen
    assert seen["cycle"] or not snapshots, seen


def test_verdicts_stay_the_same_with_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every level: validity, anomalies, witnesses and what is ruled out."""
    given = list(histories(Random(2), 10))
    cases = [(events, level) for events in given for level in MODELS]
    with_it = [judge_transactions(events, "rw-register", consistency=level) for events, level in cases]
    monkeypatch.setattr(_Question, "_shows_no_cycle", lambda *_: False)
    assert with_it == [judge_transactions(events, "rw-register", consistency=level) for events, level in cases]
    assert {verdict.validity for verdict in with_it} >= {Validity.VALID, Validity.INVALID}


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_many_more_histories(part: int, night: Random) -> None:
    for events in histories(Random(night.randrange(2**31)), 5000):
        outcome(read_transactions(events, "rw-register"))


@pytest.mark.parametrize("keys", [5, 20, 100])
@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("sessions", [False, True])
def test_causal_pairs_order_exactly_the_visible_writers_before_the_one_that_was_read(
    keys: int, snapshots: bool, sessions: bool
) -> None:
    txns = by_session(simulate_sessions(150, 4, keys, snapshots=snapshots, seed=keys)[0]).txns
    base, found = element_bases(txns, int(txns.key.max()) + 1), new_findings()
    written = rw_register.read_registers(txns, base, found)
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
