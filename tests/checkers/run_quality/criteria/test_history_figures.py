"""Figures of a history: the same in one part and in many, and as a plain loop over the events counts them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from histories import by_construction

from checkers.base.checker import Budget
from checkers.base.columns import events_to_table
from checkers.base.history import NEMESIS, Event, Type
from checkers.run_quality.history_figures import HistoryFigures, figures_of, joined
from checkers.sealing import history_rows
from checkers.sealing.history_rows import parts_of_history

WINDOWS = [(5_000_000, 9_000_000), (20_000_000, 21_000_000)]
MAIN = [(1_000_000, 27_000_000)]
CALM = [(0, 4_000_000)]
STRETCHES = [
    (2_000_000, 6_000_000, 4_500_000),
    (6_000_000, 11_000_000, 9_500_000),
    (19_000_000, 26_000_000, 20_000_000),
]
FINAL_NS = 28_000_000


def events() -> list[Event]:
    nodes = Random(5)
    client = by_construction(Random(4), 3_000, keys=40)
    some = [replace(e, time_ns=e.index * 10_000, node=nodes.choice(["", "n1", "n2"])) for e in client]
    return [replace(e, process=NEMESIS, key=None) if e.process == 2 else e for e in some]


def counted(parts: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> HistoryFigures:
    path = folder / "history.parquet"
    pq.write_table(events_to_table(events()), path, row_group_size=100)
    monkeypatch.setattr(history_rows, "ROWS_PER_PART", len(events()) // parts)
    monkeypatch.setattr(history_rows, "GROUPS_PER_CHUNK", 2)
    spans = {"windows": WINDOWS, "main": MAIN, "calm": CALM, "stretches": STRETCHES, "final_ns": FINAL_NS}
    split = parts_of_history(path, {**spans, "traces": [], "reads": ["read"], "writes": ["write"]})
    assert len(split) == parts
    return joined([figures_of(part, Budget()) for part in split])


@pytest.mark.parametrize("parts", [1, 6, 30])
def test_parts_add_up(parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = counted(parts, tmp_path, monkeypatch)
    clients = [e for e in events() if e.process != NEMESIS]
    ok = [e for e in clients if e.type == Type.OK]
    writes = [e for e in ok if e.f == "write"]
    assert found.ok == len(ok)
    assert found.ok_in_faults == sum(begin <= e.time_ns < end for e in ok for begin, end in WINDOWS)
    assert found.ok_writes_by_fault == tuple(sum(b <= e.time_ns < end for e in writes) for b, end in WINDOWS)
    assert found.ok_writes_in_faults == sum(found.ok_writes_by_fault) > 0
    assert found.calm_operations == sum(e.type == Type.INVOKE and e.time_ns < CALM[0][1] for e in clients) > 0
    in_main = [e for e in clients if MAIN[0][0] <= e.time_ns < MAIN[0][1]]
    assert found.main_operations == sum(e.type == Type.INVOKE for e in in_main) > found.calm_operations
    invoked = [e for e in clients if e.type == Type.INVOKE]
    in_stretches = tuple(sum(begin <= e.time_ns < end for e in ok) for begin, end, _ in STRETCHES)
    assert found.ok_by_stretch == in_stretches and min(in_stretches) > 0
    assert found.invoked_by_stretch == tuple(
        sum(begin <= e.time_ns < early for e in invoked) for begin, _, early in STRETCHES
    )
    assert found.answering == {"n1", "n2"}
    assert sorted(found.keys.to_pylist()) == sorted({e.key for e in clients if e.key})
    assert found.keys_read_at_end == len({e.key for e in ok if e.f == "read" and e.time_ns >= FINAL_NS}) > 0
    by_key = {key: sum(e.key == key for e in writes) for key in {e.key for e in writes}}
    for least in (1, 10, 30):
        assert found.keys_with_writes([str(key) for key in by_key], least) == sum(n >= least for n in by_key.values())
    assert found.concurrent_keys == sum(peak > 1 for peak in peaks(clients).values()) > 0
    assert found.deposed == -1


def peaks(clients: list[Event]) -> dict[str | None, int]:
    open_now: dict[str | None, int] = {}
    peak: dict[str | None, int] = {}
    for e in clients:
        open_now[e.key] = open_now.get(e.key, 0) + (1 if e.type == Type.INVOKE else -1)
        peak[e.key] = max(peak.get(e.key, 0), open_now[e.key])
    return peak
