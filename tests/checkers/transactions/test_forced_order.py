"""What every order has in common: it holds in each of them, and verdicts that rest on it are those of brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random
from typing import Any

import numpy as np
import pytest
from adversarial_histories import adversarial
from test_transactions_adversaries import compare

from bench.instruments.transaction_histories import shuffled, simulate_sessions
from checkers.base.checker import Budget
from checkers.base.verdict import Validity
from checkers.kernels.transactions.columns import OK, READ, Transactions, element_bases, new_findings
from checkers.kernels.transactions.order_problem import Forced, OrderProblem, forced_order, problem_of
from checkers.kernels.transactions.order_replay import FITS, replay_registers
from checkers.kernels.transactions.order_search import Guess, ranked
from checkers.kernels.transactions.rw_register import read_registers
from checkers.transactions import complete
from checkers.transactions.judge import judge_transcript
from checkers.transactions.read import read_transactions

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
