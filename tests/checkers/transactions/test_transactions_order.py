"""Valid means that an order exists: it is found, replayed, and can be written out.  Invalid: there is none.

What every order has in common: it holds in each of them, and verdicts that rest on it are those of brute force.

An order at the strongest level proves that the graph of all dependencies has no cycle.

The pairs of causal agree with their definition, on histories in which a key has many visible writers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from random import Random
from typing import Any

import networkx as nx
import numpy as np
import pytest
from adversarial_histories import adversarial
from hypothesis import given
from hypothesis import strategies as st
from test_transactions_adversaries import compare
from toy_transactions import ISOLATIONS, simulate

from bench.instruments.transaction_histories import by_session, shuffled, simulate_sessions, spliced
from bench.instruments.transaction_histories import simulate as simulate_columns
from bench.instruments.transaction_histories import simulate_sessions as simulate_isolation
from checkers.base.arrays import Int32, Int64
from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.kernels.codes import dense_processes
from checkers.kernels.transactions import order_problem as problems
from checkers.kernels.transactions import rw_register
from checkers.kernels.transactions import visible_writes as visible
from checkers.kernels.transactions.columns import OK, READ, Transactions, element_bases, new_findings
from checkers.kernels.transactions.cycle_levels import next_of_process
from checkers.kernels.transactions.dependencies import build_graph, link_groups
from checkers.kernels.transactions.order_problem import Forced, OrderProblem, forced_order, problem_of
from checkers.kernels.transactions.order_replay import FITS, replay_registers
from checkers.kernels.transactions.order_search import (
    _RESTS_MAX,
    ORDER,
    Guess,
    _drop_newest,
    _rest_also_on,
    find_order,
    guess_of,
    no_time,
    ranked,
)
from checkers.kernels.transactions.rw_register import read_registers
from checkers.transactions import complete
from checkers.transactions.anomalies import MODELS, STRICT_SERIALIZABLE
from checkers.transactions.complete import Known, WrongOrder, decide, known_of
from checkers.transactions.cycles import find_cycles
from checkers.transactions.judge import _Question, judge_columns, judge_transactions, judge_transcript
from checkers.transactions.no_order import part_of
from checkers.transactions.read import Model, Transcript, read_transactions
from checkers.transactions.tape import Tape, at_once, one_after_another

LONG_FORK = at_once("wx1 wy1", "wx2", "wy2", "=x2 =y1", "=x1 =y2")
"""Each reader misses the write that the other one saw.  Reads show no order of the two versions of x, nor of y."""

TWO_UNREAD_APPENDS = at_once("az1 ax1 rw", "aw1 ax2 rz")
"""Each misses an append of the other, so they overlap; snapshots forbid that, as both append to x.  No list shows x."""


def test_a_long_fork_whose_first_values_were_written_has_no_order() -> None:
    for level in ("snapshot-isolation", "serializable", "strong-session-serializable"):
        verdict = judge_transactions(LONG_FORK, "rw-register", consistency=level)
        assert verdict.validity is Validity.INVALID, level
        [witness] = verdict.witnesses
        assert witness.kind == "no-order"
        assert len(witness.facts["transactions"]) == 5
        assert witness.facts["assumes"] == level
        assert level in verdict.details["ruled_out"] and "read-committed" not in verdict.details["ruled_out"]
    weaker = judge_transactions(LONG_FORK, "rw-register", consistency="read-committed")
    assert weaker.validity is Validity.VALID


def test_two_appends_that_no_list_shows_may_not_overlap_under_snapshots() -> None:
    verdict = judge_transactions(TWO_UNREAD_APPENDS, "list-append", consistency="snapshot-isolation")
    assert verdict.validity is Validity.INVALID
    assert verdict.witnesses[0].kind == "no-order"
    assert verdict.witnesses[0].facts["cases"] == 1


def test_the_proof_tries_every_order_of_the_versions() -> None:
    verdict = judge_transactions(LONG_FORK, "rw-register", consistency="snapshot-isolation")
    why = verdict.witnesses[0].facts["why"]
    assert why[-1].startswith("there is a cycle") or " if " in why[-1], why
    assert all("cycle" in sentence for sentence in why), why


def test_a_session_that_reads_an_earlier_version_is_no_proof_under_read_atomic() -> None:
    """Two sessions read x in opposite orders, which is allowed; a third one misses its own write of y."""
    tape = Tape().run(0, "wx1").run(1, "wx2").run(2, "=x2").run(2, "=x1").run(3, "=x1").run(3, "=x2")
    level = "strong-session-read-atomic"
    assert judge_transactions(tape.events, "rw-register", consistency=level).validity is Validity.VALID
    broken = tape.run(4, "wy1").run(4, "=y").events
    [witness] = judge_transactions(broken, "rw-register", consistency=level).witnesses
    assert {e["process"] for e in witness.events} == {4}


def test_a_proof_drops_transactions_that_it_does_not_need() -> None:
    clean = simulate(Random(1), "rw-register", "snapshot-isolation", transactions=60, processes=4)
    base = max(e.process for e in clean) + 1
    tape = Tape(list(clean))
    tape.at_once("wx1 wy1", "wx2", "wy2", "=x2 =y1", "=x1 =y2", first_process=base)
    verdict = judge_transactions(tape.events, "rw-register", consistency="snapshot-isolation")
    [witness] = verdict.witnesses
    assert witness.kind == "no-order"
    assert {e["process"] for e in witness.events} == set(range(base, base + 5))


def test_an_order_is_written_out_on_request() -> None:
    events = one_after_another("wx1", "=x1 wx2", "=x2")
    verdict = judge_transactions(events, "rw-register", keep_order=True)
    assert verdict.details["order"] == [
        {"index": index, "process": process, "event": "transaction"} for process, index in enumerate((0, 2, 4))
    ]
    assert "an order of all 3 transactions was replayed" in verdict.details["decided"]
    snapshots = judge_transactions(events, "rw-register", consistency="snapshot-isolation", keep_order=True)
    assert [row["event"] for row in snapshots.details["order"]] == ["start", "commit"] * 3


@pytest.mark.parametrize("model", ["list-append", "rw-register"])
@pytest.mark.parametrize("consistency", ["strict-serializable", "snapshot-isolation", "strong-session-serializable"])
def test_the_replay_refuses_a_wrong_order(model: Model, consistency: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ("ax1", "rx1 ax2", "rx12") if model == "list-append" else ("wx1", "=x1 wx2", "=x2")
    events = [Event(e.index, e.time_ns, 0, e.type, e.f, payload=e.payload) for e in one_after_another(*texts)]
    right = complete.find_order

    def reversed_order(*arguments: Any) -> Any:
        outcome, search = right(*arguments)
        step = 2 if consistency == "snapshot-isolation" else 1
        order = search.order.reshape(-1, step)[::-1].ravel().copy()
        return outcome, search._replace(order=order)

    transcript = read_transactions(events, model)
    txns = transcript.txns
    known = complete.known_of(txns, model, element_bases(txns, int(txns.key.max()) + 1), new_findings())
    assert decide(transcript.txns, known, consistency, 1000).outcome == 1
    monkeypatch.setattr(complete, "find_order", reversed_order)
    with pytest.raises(WrongOrder):
        decide(transcript.txns, known, consistency, 1000)


def test_a_search_that_ends_at_its_budget_is_unknown_and_says_so() -> None:
    txns, events = simulate_columns(2_000, "rw-register")
    budget = Budget(steps=2 * len(txns.kind) + 5_000)
    verdict = judge_columns(txns, "rw-register", events, budget, consistency="snapshot-isolation")
    assert verdict.validity is Validity.UNKNOWN
    assert "ended at its budget" in verdict.reason


def test_a_write_of_unknown_outcome_may_have_happened_or_not() -> None:
    seen = Tape().run(0, "wx1").run(1, "wx2", Type.INFO).run(2, "=x2").run(3, "=x2").events
    assert judge_transactions(seen, "rw-register").validity is Validity.VALID
    never = Tape().run(0, "wx1").run(1, "wx2", Type.INFO).run(2, "=x1").events
    assert judge_transactions(never, "rw-register").validity is Validity.VALID
    back = Tape().run(0, "wx1").run(1, "wx2", Type.INFO).run(2, "=x2").run(3, "=x1").events
    assert judge_transactions(back, "rw-register").validity is Validity.INVALID


@pytest.mark.parametrize(
    "consistency", ["strict-serializable", "strong-snapshot-isolation", "strong-session-serializable"]
)
def test_the_cost_grows_with_the_history(consistency: str) -> None:
    """Counted in steps, so it is the same on every machine."""
    steps = []
    for count in (2_000, 20_000):
        txns, _ = simulate_columns(count, "rw-register")
        base, found = element_bases(txns, int(txns.key.max()) + 1), new_findings()
        known = Known(base, None, rw_register.read_registers(txns, base, found))
        decision = decide(txns, known, consistency, 10**8)
        assert decision.outcome == 1
        steps.append(decision.figures["steps"] / count)
    assert steps[1] < 1.5 * steps[0] and steps[1] < 20, steps


@pytest.mark.parametrize("name", ["lost-update", "G2-item"])
def test_a_contradiction_costs_no_more_than_the_history(name: str) -> None:
    """A search that blames decisions which have no part in it takes them all back, one after another."""
    for count in (2_000, 20_000):
        txns, events = spliced(*simulate_columns(count, "rw-register"), "rw-register", name)
        verdict = judge_columns(txns, "rw-register", events)
        assert verdict.validity is Validity.INVALID
        assert verdict.details["search"]["steps"] < 4 * count


@pytest.mark.parametrize("read_share", [0.1, 0.5])
@pytest.mark.parametrize("keys", [20, 200, 2_000])
def test_sessions_alone_show_an_order_of_a_database_with_snapshots(keys: int, read_share: float) -> None:
    """The database kept the level, so no decision that is taken back may lead to a proof that there is no order."""
    for seed in range(1, 6):
        history = simulate_isolation(1_000, 8, keys, read_share=read_share, snapshots=True, seed=seed)[0]
        verdict = judge_transcript(by_session(history), consistency="strong-session-snapshot-isolation")
        assert verdict.validity is Validity.VALID
        assert verdict.details["search"]["steps"] < 3_000_000


levels = st.lists(st.integers(1, 12), unique=True, max_size=2 * _RESTS_MAX).map(lambda some: sorted(some, reverse=True))


@given(levels, levels)
def test_what_an_edge_rests_on_is_never_less_than_it_was(one: list[int], other: list[int]) -> None:
    joined = row_of(one)
    _rest_also_on.function(joined, row_of(other))  # an inner kernel: Python calls the function itself
    assert levels_of(joined) >= {*one, *other}
    if len({*one, *other}) <= _RESTS_MAX:
        assert levels_of(joined) == {*one, *other}
    assert max(levels_of(joined), default=0) == max([*one, *other], default=0)
    while left := levels_of(joined):
        _drop_newest.function(joined)
        assert levels_of(joined) == left - {max(left)}


def row_of(levels: list[int]) -> Int32:
    row = np.zeros(_RESTS_MAX, np.int32)
    row[: len(levels)] = levels[:_RESTS_MAX]
    if len(levels) > _RESTS_MAX:
        row[-1] = -row[-1]
    return row


def levels_of(row: Int32) -> set[int]:
    """The levels that a row stands for; a negative entry, which is the last one, stands for all from there down."""
    noted = [int(level) for level in row if level]
    assert all(level > 0 for level in noted[:-1]) and sorted(map(abs, noted), reverse=True) == [*map(abs, noted)]
    down = range(1, 1 - noted[-1]) if noted and noted[-1] < 0 else ()
    return {*map(abs, noted), *down}


def test_a_part_of_a_history_lacks_what_was_read_of_others() -> None:
    transcript = read_transactions(one_after_another("ax1", "ax2", "rx12"), "list-append")
    part = part_of(transcript, [1, 2])
    assert part.lists.tolist() == [transcript.txns.lists[1]]
    assert np.diff(part.first).tolist() == [1, 1]


STEPS_MAX = 1_000_000


def forced_and_orders(rng: Random) -> tuple[Forced, list[tuple[int, ...]]] | None:
    """What is forced for a tiny history of registers, and all its orders; None if single reads are wrong."""
    txns = read_transactions(adversarial(rng, "rw-register", unique=True), "rw-register").txns
    key_count = int(txns.key.max()) + 1 if len(txns.key) else 0
    base, found = element_bases(txns, key_count), new_findings()
    written = read_registers(txns, base, found)
    if found.times.any():
        return None
    problem = problem_of(txns, base, written, None, np.empty(0, np.int32), True)
    happened = np.flatnonzero(written.happened).tolist()
    skipped = np.zeros(key_count, np.bool_)
    orders = [
        order
        for order in permutations(happened)
        if replay_registers(txns, np.array(order, np.int32), key_count, False, skipped) == FITS
    ]
    return forced_order(problem, STEPS_MAX), orders


def test_what_is_forced_holds_in_every_order() -> None:
    rng, several, edges = Random(7), 0, 0
    for _ in range(700):
        found = forced_and_orders(rng)
        if found is None:
            continue
        forced, orders = found
        pairs = list(zip(forced.edges.source.tolist(), forced.edges.target.tolist(), strict=True))
        for order in orders:
            place = {t: at for at, t in enumerate(order)}
            assert all(place[a] < place[b] for a, b in pairs if a in place and b in place), (pairs, order)
            edges += len(pairs)
        several += len(orders) > 1
    assert several > 40 and edges > 200


def test_verdicts_are_those_of_every_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search has a bad guess, stops at its first circle, and goes on with what is forced."""
    rng = Random(8)
    asked: list[Forced] = []

    def counted(problem: OrderProblem, steps_max: int) -> Forced:
        asked.append(forced_order(problem, steps_max))
        return asked[-1]

    def badly_guessed(txns: Transactions, problem: OrderProblem, *, snapshots: bool, **_: Any) -> Guess:
        happened = np.repeat(problem.happened, 2 if snapshots else 1)
        return ranked(np.array(rng.sample(range(len(happened)), len(happened)), np.int64), happened)

    monkeypatch.setattr(complete, "_PATIENCE_WITHOUT_FORCED", 0)
    monkeypatch.setattr(complete, "forced_order", counted)
    monkeypatch.setattr(complete, "guess_of", badly_guessed)
    seen = compare("rw-register", rng, 60, unique=True)
    assert seen["valid"] > 100 and seen["invalid"] > 100, seen
    assert len(asked) > 10


def test_a_history_of_which_reads_alone_show_the_order_is_decided() -> None:
    """Without what is forced, 20 million steps decided nothing."""
    history = shuffled(simulate_sessions(1500, 8, 1500)[0])
    verdict = judge_transcript(history, Budget(steps=20_000_000), consistency="serializable")
    assert verdict.validity is Validity.VALID
    assert verdict.details["search"]["forced"] > 10_000


def test_a_read_of_another_version_in_such_a_history_is_found() -> None:
    history = shuffled(simulate_sessions(1000, 8, 1000)[0])
    txns = history.txns
    value = txns.value.copy()
    for key in range(40):
        shown = np.flatnonzero((txns.kind == READ) & (txns.key == key) & (np.repeat(txns.status == OK, 8)))
        value[shown] = np.roll(value[shown], 1)
    changed = replace(history, txns=txns._replace(value=value))
    verdict = judge_transcript(changed, Budget(steps=20_000_000), consistency="serializable")
    assert verdict.validity is Validity.INVALID


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
