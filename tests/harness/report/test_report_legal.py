"""The longest legal order of a small window, checked by trying every order."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from checkers.base.history import Type
from harness.story.operations import FOREVER, SEARCHED_MOST, WindowOp, longest_order


def op(f: str, invoke: int, complete: int, value: int | None, kind: Type = Type.OK, new: int | None = None) -> WindowOp:
    got, given = (value, None) if f == "read" else (None, value)
    done = complete if kind is Type.OK else FOREVER
    return WindowOp(invoke, done, invoke, "n1", f, "k", kind, given, new, got, invoke, complete, None)


def test_a_stale_read_is_where_the_order_sticks() -> None:
    ops = [op("write", 0, 1, 41), op("write", 2, 3, 44), op("read", 4, 5, 41)]
    order = longest_order(ops, [None])
    assert order is not None
    assert order.steps == (0, 1)
    assert order.states == (None, 41, 44)
    assert order.stuck == 2


def test_everything_fits_in_a_legal_window() -> None:
    ops = [op("write", 0, 3, 1), op("read", 1, 2, None), op("cas", 4, 5, 1, new=2), op("read", 6, 7, 2)]
    order = longest_order(ops, [None])
    assert order is not None
    assert order.steps == (1, 0, 2, 3)
    assert order.stuck is None


def test_an_unknown_write_may_have_happened_or_not() -> None:
    read_it = [op("write", 0, 9, 7, Type.INFO), op("read", 1, 2, 7)]
    missed_it = [op("write", 0, 9, 7, Type.INFO), op("read", 1, 2, None)]
    for ops in (read_it, missed_it):
        order = longest_order(ops, [None])
        assert order is not None and order.stuck is None


def test_any_of_the_states_before_may_be_the_right_one() -> None:
    order = longest_order([op("read", 0, 1, 3)], [1, 3])
    assert order is not None
    assert order.stuck is None and order.states[0] == 3


def test_a_window_too_large_or_of_another_kind_is_not_searched() -> None:
    assert longest_order([op("write", 2 * i, 2 * i + 1, i) for i in range(SEARCHED_MOST + 1)], [None]) is None
    assert longest_order([op("append", 0, 1, 1)], [None]) is None


@st.composite
def windows(draw: st.DrawFn) -> list[WindowOp]:
    n = draw(st.integers(1, 5))
    times = draw(st.permutations(range(2 * n)))
    ops = []
    for i in range(n):
        invoke, complete = sorted(times[2 * i : 2 * i + 2])
        value = draw(st.integers(1, 2))
        f = draw(st.sampled_from(["read", "write"]))
        kind = draw(st.sampled_from([Type.OK, Type.OK, Type.INFO])) if f == "write" else Type.OK
        ops.append(op(f, invoke, complete, value, kind))
    return ops


def must_happen_in_the_best_of_all_orders(ops: list[WindowOp]) -> int:
    """How many answered operations the best legal order places, by trying all orders of all subsets."""
    best = 0
    for length in range(len(ops) + 1):
        for order in permutations(range(len(ops)), length):
            state: int | None = None
            legal = True
            for i in order:
                left = set(range(len(ops))) - set(order[: order.index(i)])
                late = any(ops[j].complete < ops[i].invoke for j in left if ops[j].happened)
                legal &= not late and (ops[i].f != "read" or ops[i].got == state)
                state = ops[i].given if ops[i].f == "write" else state
            if legal:
                best = max(best, sum(ops[i].happened for i in order))
    return best


@given(windows())
def test_no_order_gets_further(ops: list[WindowOp]) -> None:
    order = longest_order(ops, [None])
    assert order is not None
    assert sum(ops[i].happened for i in order.steps) == must_happen_in_the_best_of_all_orders(ops)
