"""Valid means that an order exists: it is found, replayed, and can be written out.  Invalid: there is none."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_transactions import simulate

from bench.instruments.transaction_histories import by_session, spliced
from bench.instruments.transaction_histories import simulate as simulate_columns
from bench.instruments.transaction_histories import simulate_sessions as simulate_isolation
from checkers.base.arrays import Int32
from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.kernels.transactions import rw_register
from checkers.kernels.transactions.columns import element_bases, new_findings
from checkers.kernels.transactions.order_search import _RESTS_MAX, _drop_newest, _rest_also_on
from checkers.transactions import complete
from checkers.transactions.complete import Known, WrongOrder, decide
from checkers.transactions.judge import judge_columns, judge_transactions, judge_transcript
from checkers.transactions.no_order import part_of
from checkers.transactions.read import Model, read_transactions
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
