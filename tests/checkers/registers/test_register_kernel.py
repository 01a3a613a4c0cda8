"""The register kernel: against the independent search on prefixes, by construction on large histories, and
peculiarities that histories of the sweeps do not have, one test each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from histories import Script, as_operations, by_construction, judged_alone, operations_of, tiny, verdict_of

from checkers.base.history import CREATE, Event, Type
from checkers.base.independent_search import linearizable
from checkers.base.verdict import Validity
from checkers.kernels import register_unique_values as register


def test_every_prefix_is_judged_as_if_the_harness_had_been_killed_there() -> None:
    rng = Random(21)
    for _ in range(150):
        events = tiny(rng, 8, 3)
        ops = as_operations(events)
        key, positions = register.key_of(ops, 0), int(ops.positions[0])
        scratch = register.new_scratch(len(key.kind), positions)
        index_of = {}
        for op in range(len(key.kind)):
            index_of[int(key.call[op])] = int(ops.invoked[op])
            if ops.completed[op] >= 0:
                index_of[int(key.ret[op])] = int(ops.completed[op])
        for limit in range(1, positions + 1):
            code, _, _ = register.judge_key(key, limit, scratch)
            until = index_of[limit - 1]
            failed_later = {
                e.process for e in events[until + 1 :] if e.type is Type.FAIL
            }  # a failure in the future already counts: the operation did not happen
            prefix = events[: until + 1]
            prefix += [
                e for e in _first_completions(events, until) if e.process in failed_later and e.type is Type.FAIL
            ]
            assert (code == register.LINEARIZABLE) == linearizable(operations_of(prefix))


def _first_completions(events: list[Event], until: int) -> list[Event]:
    """The completion of every operation open after index `until`."""
    still_open = {}
    for event in events[: until + 1]:
        if event.type is Type.INVOKE:
            still_open[event.process] = event
        else:
            still_open.pop(event.process, None)
    found = []
    for event in events[until + 1 :]:
        if event.type is not Type.INVOKE and event.process in still_open:
            found.append(event)
            del still_open[event.process]
    return found


def test_a_large_correct_history_is_accepted_and_one_stale_answer_in_it_is_not() -> None:
    check_large(operations=100_000, keys=7, seed=3)


@pytest.mark.nightly
def test_a_million_operations_on_one_key() -> None:
    check_large(operations=1_000_000, keys=1, seed=4)


def check_large(operations: int, keys: int, seed: int) -> None:
    rng = Random(seed)
    events = list(by_construction(rng, operations, processes=8, keys=keys))
    ops = as_operations(events)
    codes, _, _, steps = register.judge_keys(ops, 10**12)
    assert not codes.any()
    assert steps == sum(8 * np.diff(ops.offsets)) + ops.positions.sum()
    stale = make_stale(events, rng)
    events[stale.index] = stale
    codes, _, _, _ = register.judge_keys(as_operations(events), 10**12)
    assert np.count_nonzero(codes >= register.FIRST_INVALID) == 1
    assert sorted({e.key for e in events if e.key})[int(codes.argmax())] == stale.key


def make_stale(events: list[Event], rng: Random) -> Event:
    """One read's answer changed to the value of a write 30 writes back.  Of the writes acknowledged since then, at most
    8 had begun before its own acknowledgement, so it was certainly overwritten."""
    read = rng.choice([e for e in events if e.f == "read" and e.type is Type.OK and e.index > len(events) * 0.6])
    invoked_at = max(e.index for e in events[: read.index] if e.process == read.process and e.type is Type.INVOKE)
    writes = [e for e in events[:invoked_at] if e.key == read.key and e.f == "write" and e.type is Type.OK]
    return replace(read, value=writes[-30].value)


def test_a_key_beyond_its_budget_of_steps_is_unknown_and_no_other() -> None:
    events = []
    for key, reads in (("a", 1), ("b", 2), ("c", 1)):
        script = Script(key).invoke(0, "write", 1).ok(0)
        for _ in range(reads):
            script.invoke(0, "read").ok(0, 1)
        events += [replace(e, index=e.index + len(events)) for e in script.events]
    ops = as_operations(events)
    small, large = 8 * 2 + 4, 8 * 3 + 6
    held, ran_out = register.LINEARIZABLE, register.OUT_OF_STEPS
    assert register.judge_keys(ops, large)[0].tolist() == [held, held, held]
    assert register.judge_keys(ops, large - 1)[0].tolist() == [held, ran_out, held]
    assert register.judge_keys(ops, large - 1)[3] == 2 * small


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
