"""Peculiarities of registers that histories of the sweeps do not have, one test each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from histories import Script, judged_alone, verdict_of

from checkers.base.history import CREATE, Event, Type
from checkers.base.verdict import Validity
from checkers.kernels.registers import unique_values as register


def holds(script: Script) -> bool:
    code, _, _ = judged_alone(script.events)
    assert code == register.LINEARIZABLE or code >= register.FIRST_INVALID
    return code == register.LINEARIZABLE


def test_equal_timestamps_do_not_make_operations_concurrent() -> None:
    script = Script().invoke(0, "write", 1).ok(0).invoke(1, "read").ok(1, None)
    script.events = [replace(event, time_ns=7) for event in script.events]
    assert not holds(script)


def test_times_that_run_backwards_change_nothing() -> None:
    script = Script().invoke(0, "write", 1).ok(0).invoke(1, "read").ok(1, 1)
    script.events = [replace(event, time_ns=-event.index) for event in script.events]
    assert holds(script)


def test_a_circle_of_cas_comes_from_nowhere() -> None:
    assert not holds(Script().invoke(0, "cas", 1, 2).invoke(1, "cas", 2, 1).ok(0).ok(1))


def test_a_value_read_before_any_write_of_it_was_invoked_comes_from_nowhere() -> None:
    assert not holds(Script().invoke(0, "read").ok(0, 1).invoke(1, "write", 1).ok(1))


def test_a_value_written_twice_is_judged_by_the_search(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 1).ok(0).invoke(0, "write", 1).ok(0).invoke(0, "read").ok(0, 1)
    assert verdict_of(tmp_path / "right", script.events).validity is Validity.VALID
    script.invoke(0, "write", 2).ok(0).invoke(0, "read").ok(0, 1)
    assert verdict_of(tmp_path / "wrong", script.events).validity is Validity.INVALID


def test_a_value_refused_and_written_again_is_still_unique(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 1).fail(0).invoke(0, "write", 1).ok(0).invoke(0, "read").ok(0, 1)
    assert verdict_of(tmp_path, script.events).validity is Validity.VALID


def test_nil_may_be_written_and_is_then_held_again(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 1).ok(0).invoke(0, "write", None).ok(0).invoke(0, "read").ok(0, None)
    assert verdict_of(tmp_path / "right", script.events).validity is Validity.VALID
    script.invoke(0, "read").ok(0, 1)
    assert verdict_of(tmp_path / "wrong", script.events).validity is Validity.INVALID


def test_the_number_that_stands_for_nil_is_not_judged(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, Script().invoke(0, "write", -(2**63)).ok(0).events)
    assert verdict.validity is Validity.UNKNOWN
    assert "-2**63" in verdict.reason


def test_what_no_register_can_do_is_not_judged(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, Script().invoke(0, "append", 1).ok(0).events)
    assert verdict.validity is Validity.UNKNOWN
    assert "append is not an operation of a register" in verdict.reason


def test_a_history_in_which_no_key_was_touched_is_unknown(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, [Event(0, 0, -1, Type.INFO, "partition")])
    assert verdict.validity is Validity.UNKNOWN


def test_making_an_object_says_nothing_of_what_it_holds(tmp_path: Path) -> None:
    script = Script().invoke(0, CREATE).ok(0).invoke(0, "read").ok(0, None)
    assert verdict_of(tmp_path, script.events).validity is Validity.VALID
