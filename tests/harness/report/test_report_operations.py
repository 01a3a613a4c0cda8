"""Pairing events into operations, on whole columns and against the obvious loop."""

from __future__ import annotations

import base64
import json
import zlib
from array import array

from hypothesis import given
from hypothesis import strategies as st

from checkers.base.columns import events_to_table
from checkers.base.history import NEMESIS, Event, Type
from harness.report.run_data import (
    NEVER,
    none,
    pair,
)
from harness.report.timeline_view import pack


def event(index: int, process: int, kind: Type, f: str = "write", value: int | None = None, **more: object) -> Event:
    return Event(index, index * 1000, process, kind, f, "k", value, **more)  # type: ignore[arg-type]


def test_a_write_has_the_invoked_value_and_a_read_the_answered_one() -> None:
    ops = pair(
        events_to_table(
            [
                event(0, 1, Type.INVOKE, "write", 5),
                event(1, 2, Type.INVOKE, "read"),
                event(2, 1, Type.OK, "write", 5, node="n1"),
                event(3, 2, Type.OK, "read", 5, node="n2"),
            ]
        )
    )
    assert ops.value.tolist() == [5, 5]
    assert [ops.nodes[c] for c in ops.node] == ["n1", "n2"]
    assert ops.latency_ns.tolist() == [2000, 2000]


def test_an_operation_without_completion_is_info_and_lasts_to_the_end() -> None:
    ops = pair(events_to_table([event(0, 1, Type.INVOKE, value=5), event(1, 2, Type.INVOKE), event(2, 2, Type.OK)]))
    assert ops.type.tolist() == [Type.INFO, Type.OK]
    assert ops.complete_row.tolist() == [NEVER, 2]
    assert ops.end_ns[0] == 2000


def test_a_read_of_nil_has_no_value_and_one_without_answer_neither() -> None:
    ops = pair(
        events_to_table(
            [event(0, 1, Type.INVOKE, "read"), event(1, 1, Type.OK, "read"), event(2, 1, Type.INVOKE, "read", 7)]
        )
    )
    assert ops.has_value.tolist() == [False, False]


def test_a_cas_that_did_not_match_is_an_answer() -> None:
    rows = [event(0, 1, Type.INVOKE, "cas", 1, value2=2), event(1, 1, Type.FAIL, "cas", error="mismatch")]
    assert pair(events_to_table(rows)).matched().tolist() == [True]


def transaction(index: int, kind: Type, *parts: list[object]) -> Event:
    return Event(index, index, 1, kind, "txn", "db", None, payload=json.dumps(parts))


def test_a_transaction_is_on_the_keys_that_it_names_and_not_on_the_database() -> None:
    rows = [
        Event(0, 0, 1, Type.INVOKE, "create", "db", None),
        Event(1, 1, 1, Type.OK, "create", "db", None),
        transaction(2, Type.INVOKE, ["append", "k9", 1], ["r", "k4", None]),
        transaction(3, Type.OK, ["append", "k9", 1], ["r", "k4", []]),
        transaction(4, Type.INVOKE, ["r", "k9", None], ["r", "k9", None]),
        Event(5, 5, 2, Type.INVOKE, "txn", "db", None, payload="torn ["),
    ]
    ops = pair(events_to_table(rows))
    assert ops.keys == ("k9", "k4") and ops.key.tolist() == [-1] * 4
    assert (ops.on("k9").tolist(), ops.on("k4").tolist()) == ([False, True, True, False], [False, True, False, False])
    assert not ops.on("db").any()
    packed, _ = pack(ops, [], [])
    places, keys = (zlib.decompress(base64.b64decode(packed[name])) for name in ("touch", "touched"))
    assert list(zip(array("I", places), array("H", keys), strict=True)) == [(1, 1), (1, 2), (2, 1)]


def test_faults_are_no_operations_and_nothing_is_fine() -> None:
    assert len(pair(events_to_table([event(0, NEMESIS, Type.INFO)]))) == 0
    assert len(none()) == 0


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Events of a few processes, well-formed or not."""
    n = draw(st.integers(0, 40))
    return [
        event(
            i, draw(st.integers(-1, 3)), draw(st.sampled_from(list(Type))), draw(st.sampled_from(["read", "write"])), i
        )
        for i in range(n)
    ]


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
    ops = pair(events_to_table(events))
    assert dict(zip(ops.invoke_row.tolist(), ops.complete_row.tolist(), strict=True)) == expected
