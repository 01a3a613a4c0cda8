"""The rate outside faults, from a sealed or an unsealed history, in batches of any size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from checkers.base.columns import HISTORY, events_to_table
from checkers.base.history import NEMESIS, Event, MalformedHistory, Type
from checkers.record.faults import Achieved, Card, FaultRecord
from checkers.sealing.seal import seal
from harness.run.conductor import achieved_rate_hz

S = 1_000_000_000


def history(folder: Path, rows_per_batch: int) -> Path:
    """Ten operations a second for 40 s, each answered at once, and a row of the nemesis every second."""
    events: list[Event] = []
    for tick in range(400):
        invoke = Event(len(events), tick * S // 10, 0, Type.INVOKE, "read", "k")
        events += [invoke, replace(invoke, index=len(events) + 1, type=Type.OK)]
        if tick % 10 == 0:
            events.append(Event(len(events), tick * S // 10, NEMESIS, Type.INVOKE, "heal-partition"))
    folder.mkdir()
    with pa.ipc.new_stream(str(folder / "history.arrows"), HISTORY) as stream:
        for first in range(0, len(events), rows_per_batch):
            stream.write_table(events_to_table(events[first : first + rows_per_batch]))
    return folder


def fault(injected_s: float, healed_s: float) -> FaultRecord:
    times = {"injected_ns": int(injected_s * S), "healed_ns": int(healed_s * S)}
    return FaultRecord(Card(1, "", "", 0, 1), Achieved.INDETERMINATE, "", apply_ms=500.0, **times)


@pytest.mark.parametrize("rows_per_batch", [1, 77, 10_000])
def test_the_rate_is_that_of_the_calm_seconds(rows_per_batch: int, tmp_path: Path) -> None:
    run = history(tmp_path / "run", rows_per_batch)
    for sealed in (False, True):
        if sealed:
            seal(run)
        assert achieved_rate_hz(run, 5 * S, 35 * S, []) == 10.0
        assert achieved_rate_hz(run, 5 * S, 35 * S, [fault(10, 15), fault(14, 20), fault(-1, -1)]) == 10.0
        assert achieved_rate_hz(run, 30 * S, 50 * S, []) == 5.0
        assert achieved_rate_hz(run, 5 * S, 35 * S, [fault(6, 32)]) is None


def test_without_a_history_there_is_no_rate(tmp_path: Path) -> None:
    with pytest.raises(MalformedHistory, match="holds neither"):
        achieved_rate_hz(tmp_path, 0, S * 5, [])
