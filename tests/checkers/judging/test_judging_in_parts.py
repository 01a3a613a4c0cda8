"""A whole run is judged in parts: no reader of its history is ever handed more rows than a part has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.big_run import UNDECIDED, VIOLATED
from bench.instruments.big_history import write_run, write_tables
from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import Validity
from checkers.catalog import select
from checkers.judging.pipeline import judge_run
from checkers.sealing import history_rows, walk
from checkers.sealing import seal as sealing
from checkers.sealing.seal import seal

EVENTS = 42_000
ROWS_PER_GROUP, ROWS_AT_ONCE = 512, 4_096

CHECKERS = select({"history", "logs", "traces", "nodes", "unique-values", "client-records"}, ("linearizability",))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that bounds memory, made so small that the run has many of each."""
    monkeypatch.setattr(sealing, "ROWS_PER_GROUP", ROWS_PER_GROUP)
    monkeypatch.setattr(walk, "ROWS_PER_CHUNK", 4 * ROWS_PER_GROUP)
    monkeypatch.setattr(sealing, "ROWS_PER_CHUNK", 4 * ROWS_PER_GROUP)
    monkeypatch.setattr(history_rows, "GROUPS_PER_CHUNK", 4)


@pytest.fixture
def most_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of a history each reading returned."""
    seen: list[int] = []
    init = pq.ParquetFile.__init__

    def remember(self: Any, source: Any, *rest: Any, **named: Any) -> None:
        self.of_history = Path(str(source)).name == "history.parquet"
        init(self, source, *rest, **named)

    def counted(read: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
        def counting(self: Any, *rest: Any, **named: Any) -> pa.Table:
            table = read(self, *rest, **named)
            seen.extend([len(table)] if self.of_history else [])
            return table

        return counting

    monkeypatch.setattr(pq.ParquetFile, "__init__", remember)
    for name in ("read", "read_row_group", "read_row_groups"):
        monkeypatch.setattr(pq.ParquetFile, name, counted(getattr(pq.ParquetFile, name)))
    whole = pq.read_table

    def read_table(source: Any, *rest: Any, **named: Any) -> pa.Table:
        table = whole(source, *rest, **named)
        seen.extend([len(table)] if Path(str(source)).name == "history.parquet" else [])
        return table

    monkeypatch.setattr(pq, "read_table", read_table)
    return seen


@pytest.mark.parametrize("wrong", [False, True])
def test_no_checker_holds_the_history(wrong: bool, tmp_path: Path, small_parts: None, most_rows: list[int]) -> None:
    """Of a valid run; and of one with a stale read and a lost write, whose witnesses are looked for as well."""
    folder = tmp_path / "run"
    demands: Demands = write_run(folder, EVENTS, wrong)
    write_tables(folder)
    seal(folder)
    verdicts = judge_run(StoredRun(folder, demands), CHECKERS)
    found = {name for name, verdict in verdicts.items() if verdict.validity is Validity.INVALID}
    assert found == (VIOLATED if wrong else set())
    reasons = {name: verdict.reason for name, verdict in verdicts.items() if verdict.validity is Validity.UNKNOWN}
    assert reasons.keys() == (UNDECIDED if wrong else set()), reasons
    assert len(most_rows) > 20
    assert max(most_rows) <= ROWS_AT_ONCE < EVENTS // 10
