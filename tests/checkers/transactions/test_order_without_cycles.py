"""An order at the strongest level proves that the graph of all dependencies has no cycle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from adversarial_histories import adversarial
from toy_transactions import ISOLATIONS, simulate

from bench.instruments.transaction_histories import by_session
from bench.instruments.transaction_histories import simulate_sessions as simulate_registers
from checkers.base.history import Event
from checkers.base.verdict import Validity
from checkers.kernels.transactions import rw_register
from checkers.kernels.transactions.columns import element_bases, new_findings
from checkers.kernels.transactions.dependencies import build_graph, link_groups
from checkers.kernels.transactions.order_search import ORDER
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
            history, begin, end = simulate_registers(150, 4, keys, snapshots=snapshots, seed=seed)
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
