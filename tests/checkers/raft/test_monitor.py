"""The monitor of one node: what it must keep of its log, and that a condensed trace shows all that matters."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_quorum import random_run
from trace_rows import Row, followed, trace_rows, write_trace

from checkers.base.stored_run import StoredRun
from checkers.raft.monitor import NodeMonitor, NodeReport
from checkers.raft.reading import Condensed, read_rows
from checkers.raft.rules import TraceRow

APPEND, FLUSH, MARK, TRUNCATE, START = "append", "flush", "high-watermark", "truncate", "start"


@pytest.mark.parametrize(
    ("trace", "removed"),
    [
        ([(APPEND, 5), (FLUSH, 5), (MARK, 5), (TRUNCATE, 5)], None),
        ([(APPEND, 5), (FLUSH, 5), (MARK, 5), (TRUNCATE, 4)], 3),
        ([(APPEND, 5), (FLUSH, 5), (MARK, 4), (START, 5)], None),
        ([(APPEND, 5), (FLUSH, 5), (MARK, 5), (START, 4)], 3),
        ([(APPEND, 5), (FLUSH, 4), (MARK, 5), (START, 4)], None),  # not flushed: may be lost
        ([(APPEND, 5), (FLUSH, 4), (MARK, 5), (START, 3)], 3),  # but a flushed entry was lost
        ([(APPEND, 5), (FLUSH, 5), (MARK, 3), (TRUNCATE, 3), (START, 3)], None),
        ([(APPEND, 5), (FLUSH, 5), (MARK, 5), (START, 5), (TRUNCATE, 4)], 4),  # a high watermark outlives the process
    ],
)
def test_what_a_node_must_keep(trace: list[tuple[str, int]], removed: int | None) -> None:
    kinds = {"truncation below the high watermark", "committed entry lost"}
    found = [each.evidence.rows[-1].seq for each in followed(rows_of(trace)).broken if each.kind in kinds]
    assert found == ([] if removed is None else [removed])


def rows_of(trace: list[tuple[str, int]]) -> list[Row]:
    return [{"event": event, "offset": offset} for event, offset in trace]


@pytest.mark.parametrize(
    ("trace", "owed"),
    [
        ([(APPEND, 5), (MARK, 5)], None),  # the disks of others committed it
        ([(APPEND, 5), (MARK, 5), (FLUSH, 5)], 1),
        ([(APPEND, 5), (MARK, 5), (APPEND, 9), (MARK, 9), (FLUSH, 5)], 1),
        ([(APPEND, 9), (MARK, 5), (MARK, 9), (FLUSH, 7), (FLUSH, 9)], 2),
        ([(APPEND, 9), (FLUSH, 9), (MARK, 5), (MARK, 9), (START, 9)], 3),
        ([(APPEND, 9), (FLUSH, 5), (MARK, 5), (MARK, 9), (START, 5)], 2),  # the larger offset may be lost
        ([(APPEND, 9), (FLUSH, 9), (MARK, 9), (TRUNCATE, 5), (APPEND, 7), (MARK, 7), (FLUSH, 7)], 5),
    ],
)
def test_what_a_node_must_keep_on_its_disk(trace: list[tuple[str, int]], owed: int | None) -> None:
    copy = {"trace_seq": len(trace), "quorum_epoch": 0, "state": "running"}
    (at,) = followed(rows_of(trace), NodeMonitor("n1", [copy])).copies
    assert (None if at.owed is None else at.owed.seq) == owed


EVENTS = (APPEND, FLUSH, MARK, "applied", "role", START, TRUNCATE, "vote", "snapshot")
steps = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(0, 1), st.integers(-1, 3), st.integers(0, 2)), max_size=60
)


def _report(monitor: NodeMonitor, rows: Iterable[TraceRow]) -> NodeReport:
    for row in rows:
        monitor.take(row)
    return monitor.finish()


@given(steps, st.integers(1, 9), st.sets(st.integers(0, 50), max_size=2))
def test_a_condensed_trace_shows_what_the_whole_one_shows(
    drawn: list[tuple[str, int, int, int]], group: int, cuts: set[int]
) -> None:
    """Mostly rising values, with falls here and there: the same kinds are found, by the same nodes' states."""
    ends, epoch, rows = dict.fromkeys(EVENTS, 0), 1, list[Row]()
    for event, raises, moves, choice in drawn:
        epoch += raises and event in ("role", "vote")
        ends[event] = max(0, ends[event] + moves)
        row: Row = {"event": event, "epoch": epoch, "offset": ends[event], "incarnation": len(rows) // 25}
        row |= {"role": ("leader", "follower", "candidate")[choice]} if event == "role" else {}
        row |= {"peer": f"n{choice + 1}"} if event in ("role", "vote") or (event == "snapshot" and choice) else {}
        rows.append(row | ({"offset": None} if event == "vote" else {}))
    copies = [{"trace_seq": seq, "quorum_epoch": epoch, "state": "running"} for seq in sorted(cuts)]
    with tempfile.TemporaryDirectory() as folder:
        run = StoredRun(Path(folder))
        path = str(write_trace(run, "n1", rows, rows_in_group=group))
        whole, short = NodeMonitor("n1", copies), NodeMonitor("n1", copies)
        expected, found = _report(whole, trace_rows(rows)), _report(short, Condensed(path, sorted(cuts)))
    assert {(each.kind, each.evidence.rows[-1].incarnation) for each in found.broken} == {
        (each.kind, each.evidence.rows[-1].incarnation) for each in expected.broken
    }
    assert found.reach == expected.reach and found.largest_mark == expected.largest_mark
    assert [each.log for each in found.ballots] == [each.log for each in expected.ballots]
    assert [(row.epoch, row.offset) for row, _ in found.tops] == [(row.epoch, row.offset) for row, _ in expected.tops]
    states = [[(at.flushed, at.starts, at.snapshot, at.last_ns) for at in each.copies] for each in (found, expected)]
    assert states[0] == states[1]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("group", [5, 1000])
def test_a_condensed_trace_of_a_quorum_shows_what_the_whole_one_shows(seed: int, group: int, tmp_path: Path) -> None:
    """Also with one value of one row changed."""
    rng = Random(seed)
    for node, rows in random_run(seed).evidence().traces.items():
        changed = [dict(row) for row in rows]
        row = rng.choice([each for each in changed if each["offset"] is not None])
        row["offset"] = max(0, row["offset"] + rng.choice([-3, -1, 0, 1, 3]))
        path = str(write_trace(StoredRun(tmp_path), node, changed, rows_in_group=group))
        expected, found = (_report(NodeMonitor(node), rows) for rows in (read_rows(path), Condensed(path)))
        assert [each.kind for each in found.broken] == [each.kind for each in expected.broken]
        assert found.reach == expected.reach and found.sets == expected.sets
        assert [each.log for each in found.ballots] == [each.log for each in expected.ballots]
