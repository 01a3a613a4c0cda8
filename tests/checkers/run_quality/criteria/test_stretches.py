"""Stretches of a main phase that must have an ok answer, and those in which a sound system may be silent."""

from __future__ import annotations

from typing import Any

import pytest
from fault_records import fault_of

from checkers.record.faults import FaultRecord
from checkers.run_quality.minimums import INVOKED_IN_STRETCH_LEAST, Stretch, silent, stretches

SECOND = 1_000_000_000
MAIN = (0, 60 * SECOND)
RECOVERY_LIMIT_S = 30.0


def fault(begin_s: int, healed_s: int, **more: Any) -> FaultRecord:
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
    assert spans_s(stretches(MAIN, [fault(6, 20), fault(18, 40)], 2.0)) == [(0, 6), (50, 55), (55, 60)]
    assert spans_s(stretches(MAIN, [fault(6, -1)], 2.0)) == [(0, 6)]


def test_faults_that_leave_hardly_any_time_leave_no_stretch() -> None:
    assert spans_s(stretches(MAIN, [fault(second, second + 2) for second in range(2, 58, 7)], 2.0)) == []


@pytest.mark.parametrize("more", [{"settings": {"may_stay_down": True}}, {"over_budget": True}])
def test_nothing_is_demanded_after_a_fault_that_the_system_may_not_survive(more: dict[str, Any]) -> None:
    assert spans_s(stretches(MAIN, [fault(6, 20, **more)], 2.0)) == [(0, 6)]


def test_a_system_that_hangs_at_the_beginning_is_silent_from_then_on() -> None:
    assert silent_s([], ok_at_s=(0.1, 0.2)) == [5.0 * place for place in range(1, 12)]
    assert silent_s([], ok_at_s=tuple(range(0, 60, 5))) == []


def test_a_system_that_answered_after_the_heal_must_go_on() -> None:
    assert silent_s([fault(2, 20)], ok_at_s=(22.0,)) == [30.0, 35.0, 40.0, 45.0, 50.0, 55.0]
    assert silent_s([fault(2, 20)], ok_at_s=(22.0, 31.0, 36.0, 41.0, 46.0, 51.0, 56.0)) == []


def test_a_system_that_recovers_slowly_has_the_recovery_limit() -> None:
    assert silent_s([fault(2, 20)], ok_at_s=(47.0, 51.0, 56.0)) == []
    assert silent_s([fault(2, 20)], ok_at_s=()) == [50.0, 55.0]


def test_answers_before_a_fault_do_not_show_that_the_system_recovered_from_it() -> None:
    assert silent_s([fault(6, 20), fault(36, 38)], ok_at_s=(1.0, 22.0, 31.0)) == []


def test_a_stretch_in_which_hardly_anything_was_invoked_shows_nothing() -> None:
    assert silent_s([], ok_at_s=(), invoked=INVOKED_IN_STRETCH_LEAST - 1) == []
