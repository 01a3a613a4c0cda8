"""Figures of the history, their minimums, and the stretches in which a system must answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from histories import by_construction
from records_of_runs import fault_of
from trace_rows import write_trace

from checkers.base.columns import events_to_table
from checkers.base.history import NEMESIS, Event, Type
from checkers.base.stored_run import Demands, StoredRun
from checkers.record.faults import FaultRecord
from checkers.record.header_and_outcome import Phase, RunOutcome
from checkers.run_quality import history_figures, minimums
from checkers.run_quality.history_figures import HistoryFigures, figures_of
from checkers.run_quality.minimums import INVOKED_IN_STRETCH_LEAST, Stretch, silent, stretches

SERVERS = ("n1", "n2", "n3", "n4", "n5")
CLIENTS = ("c1", "c2")
SECOND = 1_000_000_000
ASKED = Demands(
    servers=SERVERS, client_nodes=CLIENTS, keys=tuple(f"k{i}" for i in range(10)), rate_hz=200.0, time_limit_s=60.0
)


def apart(*sides: str) -> list[list[str]]:
    """Links between any two of these sides, each a word like "n1 c1"."""
    groups = [side.split() for side in sides]
    return [[a, b] for one in groups for other in groups if one is not other for a in one for b in other]


def fault(cut: list[list[str]] | None = None, nodes: tuple[str, ...] = ()) -> FaultRecord:
    return fault_of({"injected_ns": 0, "cut": cut or [], "nodes": list(nodes)})


@pytest.mark.parametrize(
    ("struck", "works"),
    [
        (fault(apart("n1 c1", "n2 n3 n4 n5 c2")), True),
        (fault(apart("n1", "n2 n3 c1", "n4 n5 c2")), False),  # no group has a majority
        (fault(apart("n1 n2 c1 c2", "n3 n4 n5")), False),  # the majority has no client
        (fault(apart("n1 n2 n3", "n4 n5", "c1", "c2")), False),
        (fault([["n1", "n2"], ["n1", "n3"], ["n1", "n4"], ["n1", "n5"]]), True),  # no server hears n1
        (fault([[c, s] for c in CLIENTS for s in SERVERS]), False),  # no server hears a client
        (fault(nodes=("n1", "n2")), True),
        (fault(nodes=("n1", "n2", "n3")), False),
        (fault(nodes=("c1", "c2")), False),
        (fault(), True),
    ],
)
def test_a_write_is_demanded_where_a_server_has_a_majority_and_a_client(struck: dict[str, Any], works: bool) -> None:
    assert minimums.lets_write([struck], ASKED, 10 * SECOND) is works


def test_faults_at_once_are_taken_together() -> None:
    halves = [fault(nodes=("n1", "n2")), fault(nodes=("n3",))]
    assert all(minimums.lets_write([one], ASKED, 10 * SECOND) for one in halves)
    assert not minimums.lets_write(halves, ASKED, 10 * SECOND)


def test_nothing_is_demanded_of_a_fault_shorter_than_an_election() -> None:
    assert not minimums.lets_write([fault()], ASKED, 5 * SECOND)


def test_least_numbers_grow_with_the_demands() -> None:
    assert minimums.ok_operations_least(ASKED) == 1200
    assert minimums.key_writes_least(ASKED) == 24
    assert minimums.keys_least(ASKED) == 5
    assert minimums.fault_writes_least(ASKED, 40.0, 4) == 40
    nothing = Demands()
    least = minimums.ok_operations_least, minimums.key_writes_least, minimums.keys_least
    assert tuple(count(nothing) for count in least) == (1, 1, 0)
    assert minimums.fault_writes_least(nothing, 0.0, 0) == 1


def test_clients_without_a_pause_get_a_share_of_what_the_slowest_system_answers() -> None:
    """20 clients, each of which gets an answer within 2 s, see 600 of them in a minute."""
    as_fast_as_they_can = replace(ASKED, rate_hz=0.0, concurrency=20, op_timeout_s=2.0)
    assert minimums.operations_of_slowest(as_fast_as_they_can) == 600
    assert minimums.ok_operations_least(as_fast_as_they_can) == 60
    assert minimums.ok_operations_least(replace(as_fast_as_they_can, invoked_share=0.1, ok_share=0.5)) == 3
    assert minimums.ok_operations_least(replace(as_fast_as_they_can, rate_hz=200.0)) == 1200


@pytest.mark.parametrize("op_timeout_s", [0.01, 0.5, 1.0])
def test_a_short_operation_timeout_demands_no_more_answers(op_timeout_s: float) -> None:
    hasty = replace(ASKED, rate_hz=0.0, concurrency=20, op_timeout_s=op_timeout_s)
    assert minimums.ok_operations_least(hasty) == 120


def test_what_is_left_of_the_main_phase_is_without_faults_and_their_aftermath() -> None:
    faults = [
        {"injected_ns": 2 * SECOND, "healed_ns": 5 * SECOND, "apply_ms": 1000.0},
        {"injected_ns": -1, "healed_ns": -1, "apply_ms": -1.0},
        {"injected_ns": 20 * SECOND, "healed_ns": -1, "apply_ms": 0.0},
    ]
    assert minimums.calm((0, 30 * SECOND), [*map(fault_of, faults)]) == [(0, SECOND), (8 * SECOND, 20 * SECOND)]
    assert minimums.calm((0, 30 * SECOND), []) == [(0, 30 * SECOND)]


# Stretches of a main phase that must have an ok answer, and those in which a sound system may be silent


MAIN = (0, 60 * SECOND)
RECOVERY_LIMIT_S = 30.0


def struck(begin_s: int, healed_s: int, **more: Any) -> FaultRecord:
    healed_ns = healed_s * SECOND if healed_s >= 0 else -1
    return fault_of({"injected_ns": begin_s * SECOND, "apply_ms": 0.0, "healed_ns": healed_ns} | more)


def spans_s(of_run: list[Stretch]) -> list[tuple[float, float]]:
    return [(s.begin_ns / SECOND, s.end_ns / SECOND) for s in of_run if not s.grace]


def silent_s(
    faults: list[FaultRecord], ok_at_s: tuple[float, ...], invoked: int = INVOKED_IN_STRETCH_LEAST
) -> list[float]:
    """When the stretches begin that should have an answer and have none.  invoked: in each of them."""
    of_run = stretches(MAIN, faults, op_timeout_s=2.0)
    ok = [sum(s.begin_ns <= at * SECOND < s.end_ns for at in ok_at_s) for s in of_run]
    return [s.begin_ns / SECOND for s in silent(of_run, [(invoked, each) for each in ok], RECOVERY_LIMIT_S)[0]]


def test_a_main_phase_without_faults_is_cut_into_stretches_of_at_least_five_seconds() -> None:
    assert spans_s(stretches((0, 14 * SECOND), [], 2.0)) == [(0, 7), (7, 14)]
    assert stretches((0, 4 * SECOND), [], 2.0) == []


def test_a_long_operation_timeout_makes_long_stretches() -> None:
    assert spans_s(stretches(MAIN, [], 10.0)) == [(0, 20), (20, 40), (40, 60)]
    assert stretches(MAIN, [], 3600.0) == []


def test_only_operations_that_can_end_within_the_stretch_count_as_invoked_in_it() -> None:
    (only,) = stretches((0, 6 * SECOND), [], op_timeout_s=2.0)
    assert only.early_ns == 4 * SECOND


def test_no_stretch_lies_in_a_fault_or_in_ten_seconds_after_it() -> None:
    assert spans_s(stretches(MAIN, [struck(6, 20), struck(18, 40)], 2.0)) == [
        (0, 6),
        (50, 55),
        (55, 60),
    ]
    assert spans_s(stretches(MAIN, [struck(6, -1)], 2.0)) == [(0, 6)]


def test_faults_that_leave_hardly_any_time_leave_no_stretch() -> None:
    assert spans_s(stretches(MAIN, [struck(second, second + 2) for second in range(2, 58, 7)], 2.0)) == []


@pytest.mark.parametrize("more", [{"settings": {"may_stay_down": True}}, {"over_budget": True}])
def test_nothing_is_demanded_after_a_fault_that_the_system_may_not_survive(more: dict[str, Any]) -> None:
    assert spans_s(stretches(MAIN, [struck(6, 20, **more)], 2.0)) == [(0, 6)]


def test_a_system_that_hangs_at_the_beginning_is_silent_from_then_on() -> None:
    assert silent_s([], ok_at_s=(0.1, 0.2)) == [5.0 * place for place in range(1, 12)]
    assert silent_s([], ok_at_s=tuple(range(0, 60, 5))) == []


def test_a_system_that_answered_after_the_heal_must_go_on() -> None:
    assert silent_s([struck(2, 20)], ok_at_s=(22.0,)) == [30.0, 35.0, 40.0, 45.0, 50.0, 55.0]
    assert silent_s([struck(2, 20)], ok_at_s=(22.0, 31.0, 36.0, 41.0, 46.0, 51.0, 56.0)) == []


def test_a_system_that_recovers_slowly_has_the_recovery_limit() -> None:
    assert silent_s([struck(2, 20)], ok_at_s=(47.0, 51.0, 56.0)) == []
    assert silent_s([struck(2, 20)], ok_at_s=()) == [50.0, 55.0]


def test_answers_before_a_fault_do_not_show_that_the_system_recovered_from_it() -> None:
    assert silent_s([struck(6, 20), struck(36, 38)], ok_at_s=(1.0, 22.0, 31.0)) == []


def test_a_stretch_in_which_hardly_anything_was_invoked_shows_nothing() -> None:
    assert silent_s([], ok_at_s=(), invoked=INVOKED_IN_STRETCH_LEAST - 1) == []


# Figures of a history


WINDOWS = [(5_000_000, 9_000_000), (8_000_000, 10_000_000), (20_000_000, 21_000_000)]
PHASE = [(1_000_000, 27_000_000)]
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
    spans = {"windows": WINDOWS, "main_phase": PHASE, "calm_spans": CALM, "stretches_of": STRETCHES}
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
    assert found.in_main.invoked == sum(PHASE[0][0] <= e.time_ns < PHASE[0][1] for e in invoked) > found.in_calm.invoked
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
