"""Figures of a history: as a plain loop over the events counts them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from histories import by_construction
from trace_rows import write_trace

from checkers.base.columns import events_to_table
from checkers.base.demands import Demands
from checkers.base.history import NEMESIS, Event, Type
from checkers.base.stored_run import StoredRun
from checkers.record.outcome import Phase, RunOutcome
from checkers.run_quality import history_figures
from checkers.run_quality.history_figures import HistoryFigures, figures_of
from checkers.run_quality.minimums import Stretch

WINDOWS = [(5_000_000, 9_000_000), (8_000_000, 10_000_000), (20_000_000, 21_000_000)]
MAIN = [(1_000_000, 27_000_000)]
CALM = [(0, 4_000_000)]
STRETCHES = [
    Stretch(2_000_000, 6_000_000, 4_500_000, 0, -1),
    Stretch(6_000_000, 11_000_000, 9_500_000, 0, -1),
    Stretch(19_000_000, 26_000_000, 20_000_000, 0, -1),
]
FINAL_NS = 28_000_000


def events() -> list[Event]:
    nodes = Random(5)
    client = by_construction(Random(4), 3_000, keys=40)
    some = [replace(e, time_ns=e.index * 10_000, node=nodes.choice(["", "n1", "n2"])) for e in client]
    return [replace(e, process=NEMESIS, key=None) if e.process == 2 else e for e in some]


ROLES = {
    "n1": [(0, 1, "leader"), (2_000_000, 2, "follower"), (9_000_000, 3, "leader")],
    "n2": [(0, 0, "follower"), (1_000_000, 2, "leader"), (12_000_000, 0, None)],
}
DEPOSED = [("n1", 1_000_000, 2_000_000), ("n2", 9_000_000, 12_000_000)]


def counted(folder: Path, monkeypatch: pytest.MonkeyPatch, traces: bool = False) -> HistoryFigures:
    pq.write_table(events_to_table(events()), folder / "history.parquet", row_group_size=100)
    spans = {"windows": WINDOWS, "main_phase": MAIN, "calm_spans": CALM, "stretches_of": STRETCHES}
    for name, given in spans.items():
        monkeypatch.setattr(history_figures, name, lambda _, given=given: given)
    run = StoredRun(folder, Demands())
    run.outcome = RunOutcome(phases=(Phase("final reads", FINAL_NS),))
    for node, changes in ROLES.items() if traces else ():
        names = ("time_ns", "epoch", "role")
        write_trace(run, node, [dict(zip(names, change, strict=True)) for change in changes])
    monkeypatch.setattr(history_figures, "one_clock", lambda _: True)
    return figures_of(run)


def test_figures_are_those_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = counted(tmp_path, monkeypatch)
    clients = [e for e in events() if e.process != NEMESIS]
    ok = [e for e in clients if e.type == Type.OK]
    writes = [e for e in ok if e.f == "write"]
    invoked = [e for e in clients if e.type == Type.INVOKE]
    assert found.ok == len(ok)
    assert found.in_faults.ok == sum(any(begin <= e.time_ns < end for begin, end in WINDOWS) for e in ok)
    by_fault = [sum(b <= e.time_ns < end for e in writes) for b, end in WINDOWS]
    assert [each.ok_writes for each in found.by_fault] == by_fault
    assert 0 < found.in_faults.ok_writes < sum(by_fault)
    assert found.in_calm.invoked == sum(e.time_ns < CALM[0][1] for e in invoked) > 0
    assert found.in_main.invoked == sum(MAIN[0][0] <= e.time_ns < MAIN[0][1] for e in invoked) > found.in_calm.invoked
    assert list(found.by_stretch) == [
        (
            sum(s.begin_ns <= e.time_ns < s.early_ns for e in invoked),
            sum(s.begin_ns <= e.time_ns < s.end_ns for e in ok),
        )
        for s in STRETCHES
    ]
    assert found.answering == {"n1", "n2"}
    assert found.keys.keys() == {e.key for e in clients if e.key}
    final = [e for e in ok if e.f == "read" and e.time_ns >= FINAL_NS]
    assert found.keys_read_at_end == len({e.key for e in final}) > 0
    assert found.read_at_end == {node: {e.key for e in final if e.node == node} for node in ("n1", "n2")}
    by_key = {key: sum(e.key == key for e in writes) for key in {e.key for e in writes}}
    for least in (1, 10, 30):
        assert found.keys_with_writes([str(key) for key in by_key], least) == sum(n >= least for n in by_key.values())
    assert found.concurrent_keys == sum(peak > 1 for peak in peaks(clients).values()) > 0
    assert found.deposed == -1


def test_a_workload_without_reads_and_writes_is_counted(tmp_path: Path) -> None:
    pq.write_table(events_to_table(events()), tmp_path / "history.parquet")
    found = figures_of(StoredRun(tmp_path, Demands(reads=frozenset(), writes=frozenset())))
    assert found.ok == sum(e.type == Type.OK for e in events() if e.process != NEMESIS)
    assert found.in_main.reads == 0


def test_answers_of_leaders_that_another_one_has_deposed_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = counted(tmp_path, monkeypatch, traces=True)
    answers = [e for e in events() if e.type == Type.OK and e.process != NEMESIS]
    late = [e for e in answers if any(e.node == node and begin <= e.time_ns < end for node, begin, end in DEPOSED)]
    reads = sum(e.f == "read" for e in late)
    assert (found.deposed, found.deposed_reads) == (len(late), reads)
    assert 0 < reads < len(late)


def peaks(clients: list[Event]) -> dict[str | None, int]:
    open_now: dict[str | None, int] = {}
    peak: dict[str | None, int] = {}
    for e in clients:
        open_now[e.key] = open_now.get(e.key, 0) + (1 if e.type == Type.INVOKE else -1)
        peak[e.key] = max(peak.get(e.key, 0), open_now[e.key])
    return peak
