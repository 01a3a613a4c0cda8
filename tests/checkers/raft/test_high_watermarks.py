"""High watermarks: what they cover, and an entry of the leader's own epoch first."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_quorum import Evidence, Quorum, Row

from checkers.base.checker import BeyondBudget, Budget
from checkers.base.columns import LOG, TRACE
from checkers.base.stored_rows import coded, log_rows, read_table, read_trace, trace_row
from checkers.base.verdict import Validity, Verdict
from checkers.raft.reading import read_log, reported_marks

marks = st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 2)), st.integers(0, 3))
EVENTS = ["high-watermark", "flush", "role"]


def trace(path: Path, marks: list[tuple[int, int | None, int]], events: list[str] | None = None, group: int = 3) -> str:
    """(offset, hash, epoch) of each row."""
    rows = [
        {"node": path.stem, "incarnation": 0, "seq": seq, "time_ns": 0, "epoch": epoch, "offset": offset}
        | {"event": (events or ["high-watermark"])[seq % len(events or [0])], "hash": hashed}
        for seq, (offset, hashed, epoch) in enumerate(marks)
    ]
    pq.write_table(pa.Table.from_pylist(rows, TRACE), path, row_group_size=group)
    return str(path)


@given(st.lists(st.lists(marks, max_size=8), min_size=1, max_size=3))
def test_one_mark_per_offset_and_hash_in_its_lowest_epoch(nodes: list[list[tuple[int, int | None, int]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        paths = [trace(Path(name) / f"n{i}.parquet", marks) for i, marks in enumerate(nodes)]
        reported = reported_marks(paths, Budget())
        expected: dict[tuple[int, int | None], int] = {}
        for offset, hashed, epoch in (mark for node in nodes for mark in node):
            if offset > 0:
                expected[offset, hashed] = min(epoch, expected.get((offset, hashed), epoch))
        found = {}
        for i in range(len(reported)):
            hashed = int(reported.marks.hash[i]) if reported.marks.known[i] else None
            found[int(reported.marks.offset[i]), hashed] = int(reported.marks.epoch[i])
            row = reported.row(i)
            assert (row["offset"], row["hash"], row["epoch"]) == (
                reported.marks.offset[i],
                hashed,
                reported.marks.epoch[i],
            )
        assert found == expected and len(found) == len(reported)
        assert reported.marks.offset.tolist() == sorted(reported.marks.offset.tolist())


def test_a_trace_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "n1.parquet"
    assert len(reported_marks([trace(path, [(1, 1, 1)])], Budget())) == 1
    assert len(reported_marks([trace(path, [(1, 1, 1), (2, 2, 1)])], Budget())) == 2


def test_marks_beyond_the_budget(tmp_path: Path) -> None:
    paths = [trace(tmp_path / f"n{i}.parquet", [(o, o, 1) for o in range(1, 9)]) for i in (1, 2)]
    with pytest.raises(BeyondBudget, match="16 marks"):
        reported_marks(paths, Budget(size_bytes=1000))


@given(st.lists(st.integers(1, 4), max_size=6), st.integers(1, 5), st.integers(0, 1))
def test_a_log_is_its_batches_however_its_row_groups_part_them(sizes: list[int], group: int, first_copy: int) -> None:
    """sizes: entries of each batch; two copies, the second one batch shorter, in row groups that may hold of both."""
    with tempfile.TemporaryDirectory() as name:
        path = str(Path(name) / "n1.parquet")
        rows = []
        for copy, some in ((first_copy, sizes), (first_copy + 1, sizes[:-1])):
            offset = 0
            for number, size in enumerate(some):
                base = offset
                for _ in range(size):
                    row = {"copy": copy, "node": "n1", "offset": offset, "epoch": number, "checksum": 0}
                    rows.append(row | {"batch_offset": base, "batch_hash": number * 7, "key": "k", "value": offset})
                    offset += 1
        pq.write_table(pa.Table.from_pylist(rows, LOG), path, row_group_size=group)
        for copy, some in ((first_copy, sizes), (first_copy + 1, sizes[:-1])):
            log = read_log(path, copy, Budget())
            ends = [sum(some[: i + 1]) for i in range(len(some))]
            assert log.ends.tolist() == ends and log.hashes.tolist() == [i * 7 for i in range(len(some))]
            assert (log.end, log.last_epoch, log.start) == (sum(some), len(some) - 1, 0)
            assert read_table(path, ("value",), copy)["value"].to_pylist() == list(range(sum(some)))
            for first in range(sum(some) + 1):
                expected = list(range(first, sum(some)))
                assert [r["offset"] for r in log_rows(path, copy, expected[:2])] == expected[:2]
        if sizes:
            with pytest.raises(BeyondBudget):
                read_log(path, first_copy, Budget(size_bytes=1))


@given(st.integers(0, 9), st.sets(st.sampled_from(EVENTS)), st.integers(1, 4))
def test_a_trace_is_filtered_row_group_by_row_group(size: int, wanted: set[str], group: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = trace(Path(name) / "n1.parquet", [(i, i, 1) for i in range(size)], EVENTS, group)
        expected = [i for i in range(size) if EVENTS[i % 3] in wanted]
        rows = read_trace(path, wanted)
        assert rows["seq"].to_pylist() == expected and rows.schema.names == TRACE.names
        narrow = read_trace(path, wanted, ("hash",))
        assert narrow["hash"].to_pylist() == expected and set(narrow.schema.names) == {"hash", "seq", "event"}
        numbers_of = {event: i for i, event in enumerate(EVENTS)}
        assert coded(narrow, "event", numbers_of).tolist() == [i % 3 for i in expected]
        for seq in expected:
            assert trace_row(path, seq) == {"table": "trace"} | rows.to_pylist()[expected.index(seq)]
        with pytest.raises(LookupError):
            trace_row(path, 99)


# Figure 8


NAME = "commit-own-epoch"


@pytest.fixture
def evidence() -> Evidence:
    """n1 writes three entries that it cannot commit; n2 takes them over, leads, and commits them with its own."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.replicate()
    for _ in range(3):
        quorum.write(replicate=False)
    quorum._fetch(quorum.nodes["n1"], quorum.nodes["n2"])
    assert quorum.elect("n2")
    quorum.write()
    quorum.read_all()
    return quorum.evidence()


def judged(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, NAME)[NAME]


def first_mark(rows: list[Row]) -> Row:
    """The first high watermark that a node reported while it led."""
    office = next(i for i, row in enumerate(rows) if row["role"] == "leader")
    return next(row for row in rows[office:] if row["event"] == "high-watermark")


def test_older_entries_committed_with_one_of_the_leaders_own_are_no_violation(
    evidence: Evidence, tmp_path: Path
) -> None:
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID
    assert verdict.looked_at["leaders' high watermarks"] >= 2


@pytest.mark.parametrize("below", [0, 1])
def test_a_mark_that_covers_older_entries_only_is_found(evidence: Evidence, tmp_path: Path, below: int) -> None:
    rows = evidence.traces["n2"]
    office = next(row for row in rows if row["role"] == "leader")
    first_mark(rows)["offset"] = office["offset"] - below
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.INVALID
    [witness] = verdict.witnesses
    assert witness.kind == "mark without an entry of its epoch"
    assert (witness.facts["nodes"], witness.facts["epoch"]) == (["n2"], 2)
    assert [row["event"] for row in witness.rows] == ["role", "high-watermark"]


def test_a_leader_that_repeats_what_it_learned_as_a_follower_is_not_accused(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.traces["n2"]
    learned = next(row for row in rows if row["event"] == "high-watermark")
    mark = first_mark(rows)
    assert learned is not mark
    mark["offset"] = learned["offset"]
    assert judged(evidence, tmp_path).validity is Validity.VALID


def test_a_run_in_which_no_leader_reported_a_mark_is_unknown(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    assert judged(quorum.evidence(), tmp_path).validity is Validity.UNKNOWN
