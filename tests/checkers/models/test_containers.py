"""Stack, priority queue and semaphore: by example, and large."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from simulated_objects import Simulated, any_of, event, history, no_lie, numbers, one_process, priority_do

from checkers.base.history import Type
from checkers.base.verdict import Validity
from checkers.by_hand import judge_events
from harness.judge.check_files import check


def test_a_value_stays_because_a_smaller_one_is_there() -> None:
    """The 1 was there all the time, so 2 could not leave.  The 0 has left, and is left out."""
    events = one_process(*[("insert", v, v) for v in (0, 1, 2, 3)], ("extract-min", None, 0))
    at = len(events)
    late = [(1, Type.INVOKE, None), (2, Type.INVOKE, None), (2, Type.OK, 3), (1, Type.OK, 2), (0, Type.INVOKE, None)]
    late.append((0, Type.OK, 1))
    events += [event(at + n, process, type_, "extract-min", value) for n, (process, type_, value) in enumerate(late)]
    verdict = judge_events(events, "priority-queue")
    (witness,) = verdict.witnesses
    assert "took 2 while 1 was there" in witness.summary
    assert {e["value"] for e in witness.events if e["f"] == "insert"} == {1, 2}


def test_a_large_priority_queue_is_decided_and_one_late_value_is_found() -> None:
    rng = Random(5)
    ask = any_of(("insert", numbers()), ("extract-min", None))
    events = history(Simulated((), ask, priority_do, no_lie), rng, 10_000, 10, 0, 0)
    assert judge_events(events, "priority-queue").validity is Validity.VALID
    taken = [e for e in events if e.type is Type.OK and e.f == "extract-min" and e.value is not None]
    one, other = taken[100], taken[-100]
    swapped = {one.index: other.value, other.index: one.value}
    wrong = [replace(e, value=swapped.get(e.index, e.value)) for e in events]
    assert judge_events(wrong, "priority-queue").validity is Validity.INVALID


def test_elements_that_are_sets_are_equal_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(
        """{:process 0, :type :invoke, :f :add, :value #{1 2}}
        {:process 0, :type :ok, :f :add, :value #{2 1}}
        {:process 0, :type :invoke, :f :read, :value nil}
        {:process 0, :type :ok, :f :read, :value #{#{2 1}}}
        """
    )
    assert check(path, "set").validity is Validity.VALID


def test_a_semaphore_needs_its_number(tmp_path: Path) -> None:
    path = tmp_path / "history.edn"
    lines = [f"{{:process {p}, :type {t}, :f :acquire, :value nil}}" for p in (0, 1) for t in (":invoke", ":ok")]
    path.write_text("\n".join(lines) + "\n")
    assert check(path, "semaphore:2").validity is Validity.VALID
    assert check(path, "semaphore:1").validity is Validity.INVALID
    with pytest.raises(ValueError, match="there is no model"):
        check(path, "semaphore")
