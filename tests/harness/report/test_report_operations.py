"""Pairing events into operations, on whole columns and against the obvious loop.

The longest legal order of a small window, checked by trying every order.

How far every log reached when something was called committed: by the nodes' traces, up to that moment only.
"""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.base.columns import TRACE, events_to_table
from checkers.base.history import Event, Type
from checkers.base.results import NO_RESULTS
from checkers.record.header_and_outcome import RunOutcome
from harness.report import run_data
from harness.report.divergence import reach
from harness.report.run_data import NEVER, OperationColumns, ReportData
from harness.report.timeline_view import pack
from harness.story.operations import FOREVER, SEARCHED_MOST, WindowOp, longest_order


def event(index: int, process: int, kind: Type, f: str = "write", value: int | None = None, **more: object) -> Event:
    return Event(index, index * 1000, process, kind, f, "k", value, **more)  # type: ignore[arg-type]


def paired(*events: Event) -> OperationColumns:
    return OperationColumns(events_to_table(events))


def test_a_write_has_the_invoked_value_and_a_read_the_answered_one() -> None:
    invoked = event(0, 1, Type.INVOKE, "write", 5), event(1, 2, Type.INVOKE, "read")
    ops = paired(*invoked, event(2, 1, Type.OK, "write", 5, node="n1"), event(3, 2, Type.OK, "read", 5, node="n2"))
    assert ops.value.tolist() == [5, 5]
    assert [ops.nodes[c] for c in ops.node] == ["n1", "n2"]
    assert ops.latency_ns.tolist() == [2000, 2000]


def test_an_operation_without_completion_is_info_and_lasts_to_the_end() -> None:
    ops = paired(event(0, 1, Type.INVOKE, value=5), event(1, 2, Type.INVOKE), event(2, 2, Type.OK))
    assert ops.type.tolist() == [Type.INFO, Type.OK]
    assert ops.complete_row.tolist() == [NEVER, 2]
    assert ops.end_ns[0] == 2000


def test_a_read_of_nil_has_no_value_and_one_without_answer_neither() -> None:
    ops = paired(event(0, 1, Type.INVOKE, "read"), event(1, 1, Type.OK, "read"), event(2, 1, Type.INVOKE, "read", 7))
    assert ops.has_value.tolist() == [False, False]


def test_a_cas_that_did_not_match_is_an_answer() -> None:
    ops = paired(event(0, 1, Type.INVOKE, "cas", 1, value2=2), event(1, 1, Type.FAIL, "cas", error="mismatch"))
    assert ops.matched().tolist() == [True]


def transaction(index: int, kind: Type, *parts: list[object]) -> Event:
    return Event(index, index, 1, kind, "txn", "db", None, payload=json.dumps(parts))


def test_a_transaction_is_on_the_keys_that_it_names_and_not_on_the_database() -> None:
    ops = paired(
        Event(0, 0, 1, Type.INVOKE, "create", "db", None),
        Event(1, 1, 1, Type.OK, "create", "db", None),
        transaction(2, Type.INVOKE, ["append", "k9", 1], ["r", "k4", None]),
        transaction(3, Type.OK, ["append", "k9", 1], ["r", "k4", []]),
        transaction(4, Type.INVOKE, ["r", "k9", None], ["r", "k9", None]),
        Event(5, 5, 2, Type.INVOKE, "txn", "db", None, payload="torn ["),
    )
    assert ops.keys == ("k9", "k4") and ops.key.tolist() == [-1] * 4
    assert (ops.on("k9").tolist(), ops.on("k4").tolist()) == ([False, True, True, False], [False, True, False, False])
    assert not ops.on("db").any()
    packed, _ = pack(ops, [], [])
    places, keys = (zlib.decompress(base64.b64decode(packed[name])) for name in ("touch", "touched"))
    assert list(zip(array("I", places), array("H", keys), strict=True)) == [(1, 1), (1, 2), (2, 1)]


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Events of a few processes, well-formed or not."""
    rows = st.tuples(st.integers(-1, 3), st.sampled_from(list(Type)), st.sampled_from(["read", "write"]))
    return [event(i, *row, i) for i, row in enumerate(draw(st.lists(rows, max_size=40)))]


@given(histories())
def test_pairing_is_what_a_loop_over_events_would_do(events: list[Event]) -> None:
    waiting: dict[int, Event] = {}
    expected: dict[int, int] = {}
    for e in events:
        if e.process < 0:
            continue
        if e.type is Type.INVOKE:
            expected[e.index] = NEVER
            waiting[e.process] = e
        elif e.process in waiting:
            expected[waiting.pop(e.process).index] = e.index
    ops = paired(*events)
    assert dict(zip(ops.invoke_row.tolist(), ops.complete_row.tolist(), strict=True)) == expected


def op(f: str, invoke: int, complete: int, value: int | None, kind: Type = Type.OK, new: int | None = None) -> WindowOp:
    got, given = (value, None) if f == "read" else (None, value)
    done = complete if kind is Type.OK else FOREVER
    return WindowOp(invoke, done, invoke, "n1", f, "k", kind, given, new, got, invoke, complete, None)


UNKNOWN = op("write", 0, 9, 7, Type.INFO)
LEGAL = [op("write", 0, 3, 1), op("read", 1, 2, None), op("cas", 4, 5, 1, new=2), op("read", 6, 7, 2)]


@pytest.mark.parametrize(
    ("ops", "before", "steps", "states", "stuck"),
    [
        ([op("write", 0, 1, 41), op("write", 2, 3, 44), op("read", 4, 5, 41)], [None], (0, 1), (None, 41, 44), 2),
        (LEGAL, [None], (1, 0, 2, 3), (None, None, 1, 2, 2), None),
        ([UNKNOWN, op("read", 1, 2, 7)], [None], (0, 1), (None, 7, 7), None),
        ([UNKNOWN, op("read", 1, 2, None)], [None], (1,), (None, None), None),  # it did not happen, or later
        ([op("read", 0, 1, 3)], [1, 3], (0,), (3, 3), None),  # any of the states before may be the right one
    ],
    ids=["a stale read", "all fit", "it happened", "it may not have", "states before"],
)
def test_the_order_ends_where_nothing_fits(ops: Any, before: Any, steps: Any, states: Any, stuck: int | None) -> None:
    order = longest_order(ops, before)
    assert order is not None
    assert (order.steps, order.states, order.stuck) == (steps, states, stuck)


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


def trace(node: str, *reported: tuple[int, str, int | None]) -> pa.Table:
    """reported: (time_ns, event, offset); of a role the event is `role:leader`."""
    rows = []
    for seq, (time_ns, event, offset) in enumerate(reported):
        name, _, role = event.partition(":")
        row: dict[str, Any] = dict.fromkeys(TRACE.names)
        row |= {"node": node, "incarnation": 0, "seq": seq, "time_ns": time_ns, "event": name, "epoch": 1}
        rows.append(row | {"offset": offset, "role": role or None})
    return pa.Table.from_pylist(rows, TRACE)


def run(**traces: pa.Table) -> ReportData:
    return ReportData(Path(), None, NO_RESULTS, RunOutcome(), (), run_data.none(), traces, [], 0)


MARK = [{"table": "trace", "node": "n1", "time_ns": 100, "event": "high-watermark", "offset": 34}]


def test_each_log_is_shown_as_it_was_at_that_moment() -> None:
    data = run(
        n1=trace("n1", (1, "start", 0), (50, "role:leader", 30), (60, "append", 34), (70, "flush", 34)),
        n2=trace("n2", (1, "start", 20), (80, "append", 33), (90, "flush", 32), (101, "append", 99)),
        n10=trace("n10", (1, "start", 40), (99, "truncate", 31)),
        n3=trace("n3", (200, "start", 50)),
    )
    shown = reach(data, {"committed_below": 34}, MARK)
    assert shown is not None
    assert [(n.node, n.end, n.durable, n.covers, n.role) for n in shown.nodes] == [
        ("n1", 34, 34, True, "leader"),
        ("n2", 33, 32, False, ""),
        ("n10", 31, 31, False, ""),
    ]
    assert (shown.base, shown.time_ns) == (27, 100)
    for node in shown.nodes:
        assert 0 <= node.durable_share <= node.end_share <= 100
        assert (node.durable_share >= shown.mark_share) == node.covers


def test_a_witness_without_a_mark_and_a_run_without_traces_have_no_such_picture() -> None:
    data, facts = run(n1=trace("n1", (1, "start", 0))), {"committed_below": 34}
    assert reach(data, {}, MARK) is reach(data, facts, []) is reach(run(), facts, MARK) is None
    assert reach(run(n1=TRACE.empty_table()), facts, MARK) is None
