"""How far every log reached when something was called committed: by the nodes' traces, up to that moment only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from checkers.base.columns import TRACE
from checkers.base.results import NO_RESULTS
from checkers.record.outcome import RunOutcome
from harness.report import run_data
from harness.report.run_data import ReportData
from harness.report.witness.divergence import reach


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
    data = run(n1=trace("n1", (1, "start", 0)))
    assert reach(data, {}, MARK) is None
    assert reach(data, {"committed_below": 34}, []) is None
    assert reach(run(), {"committed_below": 34}, MARK) is None
    assert reach(run(n1=TRACE.empty_table()), {"committed_below": 34}, MARK) is None
