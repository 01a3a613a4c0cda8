"""Witnesses where values repeat: small, impossible on their own, and explained without claiming too much."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from histories import Script, verdict_of, witness_of
from small_domain import Op, correct, judged, key_of, nonsense, with_mismatch

from checkers.base import independent_search as search
from checkers.base.verdict import Validity
from checkers.kernels import register_antichain as antichain
from checkers.kernels.operations import CAS, MISMATCH, NIL, READ, WRITE
from checkers.kernels.register_unique_values import Key
from checkers.registers.smallest_window import Questions, Window, as_value, smallest_window


def toggled(times: int) -> Script:
    script = Script("k7")
    for _ in range(times):
        script.invoke(0, "write", 1).ok(0).invoke(0, "read").ok(0, 1).invoke(0, "write", 2).ok(0)
    return script


def test_a_stale_read_among_many_equal_writes_is_shown_by_what_surrounds_it(tmp_path: Path) -> None:
    script = toggled(50)
    index = len(script.events)
    witness = witness_of(tmp_path, script.invoke(1, "read").ok(1, 1).invoke(0, "write", 1).ok(0))
    assert witness.kind == "stale read"
    assert [event["index"] for event in witness.events] == [index, index + 1]
    assert witness.facts["states_before"] == [2]
    assert witness.facts["expected"] == "an answer of 2"
    assert "Before this window k7 can only have held 2" in witness.facts["why"]
    assert "n1 acknowledged 2 for k7, and a read that began" in witness.summary
    assert witness.summary.endswith(" got 1 from n1: that read does not see the acknowledged write")


def test_a_value_that_was_never_written_needs_nothing_around_it(tmp_path: Path) -> None:
    witness = witness_of(tmp_path, toggled(3).invoke(1, "read").ok(1, 7))
    assert witness.kind == "value from nowhere"
    assert len(witness.events) == 2


def test_what_was_under_way_is_replaced_by_the_states_it_can_have_led_to(tmp_path: Path) -> None:
    script = toggled(3).invoke(5, "write", 1).invoke(1, "read").ok(1, 1)
    index = len(script.events)
    witness = witness_of(tmp_path, script.invoke(1, "read").ok(1, 2).invoke(1, "read").ok(1, 1))
    assert witness.kind == "order cycle"
    assert [event["index"] for event in witness.events] == [index, index + 1]
    assert witness.facts["states_before"] == [1]


@pytest.mark.parametrize("seed", range(120))
def test_a_window_is_impossible_on_its_own(seed: int) -> None:
    rng = Random(seed)
    if seed % 2:
        operations = nonsense(rng, 14, 4, 3)
    else:
        operations = correct(rng, 300, 5, 3, 0.01)
        reads = [at for at, o in enumerate(operations) if o.f == "read"]
        for at in rng.sample(reads, min(3, len(reads))):
            operations[at] = replace(operations[at], value=rng.randrange(3))
    key, positions = key_of(operations)
    code, at, _ = antichain.judge_key(key, positions, np.array([NIL]), 10**9, 10**9)
    if code != antichain.NO_ORDER:
        return
    window = smallest_window(key, positions, at)
    assert window.rejudged
    assert window.culprit in window.operations
    assert not order_of(window, key)
    assert len(window.operations) < 100
    assert no_prefix_before_is_impossible(operations, window)


@pytest.mark.parametrize("steps_in_all", [0, 1, 40_000, 200_000])
def test_a_budget_for_questions_makes_windows_larger_and_never_wrong(steps_in_all: int) -> None:
    rng = Random(steps_in_all)
    unfinished = judged_wrong = 0
    while judged_wrong < 60:
        key, positions = key_of(nonsense(rng, 12, 4, 3))
        code, at, _ = antichain.judge_key(key, positions, np.array([NIL]), 10**9, 10**9)
        if code != antichain.NO_ORDER:
            continue
        judged_wrong += 1
        window = smallest_window(key, positions, at, Questions(positions, steps_in_all))
        assert window.rejudged
        assert window.culprit in window.operations
        assert key.ret[window.culprit] == window.limit - 1
        assert not order_of(window, key)
        smallest = smallest_window(key, positions, at)
        assert not smallest.unfinished
        assert len(window.operations) >= len(smallest.operations)
        unfinished += window.unfinished
    assert unfinished == 60 if steps_in_all < 2 else unfinished > 0


def order_of(window: Window, key: Key) -> bool:
    """Judged anew, with what was called before the window's beginning free to happen at any time or never."""
    names = {READ: "read", WRITE: "write", CAS: "cas", MISMATCH: "mismatch"}
    since = -1 if window.last_before is None else int(key.ret[window.last_before])
    given = []
    for op in window.operations:
        f, value = names[int(key.kind[op])], as_value(int(key.a[op]))
        if op in window.weakened:
            f, value = "write", as_value(int(key.b[op]))
        returned = key.ret[op] < window.limit and (key.call[op] > since or f in ("read", "mismatch"))
        call, ret = int(key.call[op]), int(key.ret[op])
        given.append(search.RegisterOperation(f, value, as_value(int(key.b[op])), call, ret if returned else None))
    return search.linearizable(given, window.states_before, with_mismatch)


def no_prefix_before_is_impossible(operations: list[Op], window: Window) -> bool:
    """The window ends at the first answer that no order explains."""
    end = window.limit - 1
    cut = [replace(o, ret=None if o.ret is None or o.ret >= end else o.ret) for o in operations if o.call < end]
    return judged(cut) == antichain.LINEARIZABLE


def test_both_readings_of_a_failed_cas(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 1).ok(0).invoke(0, "read").ok(0, 1).invoke(0, "cas", 1, 2).fail(0, "mismatch")
    refused = verdict_of(tmp_path / "refused", script.events, failed_cas="did-not-happen")
    assert refused.validity is Validity.VALID
    observed = verdict_of(tmp_path / "run", script.events)  # in a run a mismatch is an answer
    assert observed.validity is Validity.INVALID
    assert "refused a cas of k because it did not hold 1" in observed.witnesses[0].summary
    assert observed.witnesses[0].facts["expected"] == "that the cas did match"
    other = Script().invoke(0, "write", 1).ok(0).invoke(0, "read").ok(0, 1)
    other.invoke(0, "cas", 1, 2).fail(0, "timed out before sending")
    assert verdict_of(tmp_path / "other", other.events, failed_cas="observed").validity is Validity.VALID


def deposed_leader_acknowledged_what_it_did_not_write() -> Script:
    """n1 led and held 1, n2 was elected and holds 2; then n1 acknowledged a write of 1 that changed nothing for it."""
    script = Script("k7").invoke(0, "write", 1).ok(0, node="n1").invoke(0, "read").ok(0, 1, node="n1")
    script.invoke(1, "write", 2).ok(1, node="n2").invoke(0, "write", 1).ok(0, node="n1")
    return script.invoke(1, "read").ok(1, 2, node="n2")


def test_a_read_against_an_acknowledgement_of_another_node_blames_neither(tmp_path: Path) -> None:
    witness = witness_of(tmp_path, deposed_leader_acknowledged_what_it_did_not_write())
    assert witness.kind == "read against acknowledgement"
    assert witness.summary == (
        "At 0.070 s n1 acknowledged 1 for k7, and a read that began 10 ms later got 2 from n2: "
        "one of the two answers was wrong"
    )
    assert [suspect["node"] for suspect in witness.facts["suspects"]] == ["n1", "n2"]
    assert any(why.startswith("Either n1 acknowledged") for why in witness.facts["why"])


def test_a_write_is_lost_where_the_node_that_did_not_show_it_goes_on(tmp_path: Path) -> None:
    script = deposed_leader_acknowledged_what_it_did_not_write().invoke(1, "write", 3).ok(1, node="n2")
    witness = witness_of(tmp_path, script)
    assert witness.kind == "lost write"
    assert witness.facts["guilty"] == {"node": "n1", "time_ns": 70_000_000}
    assert witness.summary == (
        "At 0.070 s n1 acknowledged 1 for k7, and a read that began 10 ms later got 2 from n2, "
        "which acknowledged the next write too"
    )
    assert witness.facts["so_far"]["kind"] == "read against acknowledgement"


@pytest.mark.parametrize("other", ["n2", "n3"])
def test_a_read_is_stale_where_another_node_showed_the_newer_value(tmp_path: Path, other: str) -> None:
    script = Script("k7").invoke(0, "write", 2).ok(0, node="n2").invoke(0, "write", 1).ok(0, node="n1")
    script.invoke(2, "read").ok(2, 1, node=other).invoke(1, "read").ok(1, 2, node="n2")
    assert witness_of(tmp_path, script).kind == "stale read"


def test_a_node_that_contradicts_itself_answered_a_stale_read(tmp_path: Path) -> None:
    script = Script("k7").invoke(0, "write", 2).ok(0).invoke(0, "write", 1).ok(0).invoke(1, "read").ok(1, 2)
    assert witness_of(tmp_path, script.invoke(0, "write", 2).ok(0)).kind == "stale read"


def test_two_reads_that_contradict_each_other_are_both_named(tmp_path: Path) -> None:
    script = toggled(2).invoke(0, "write", 3).info(0)
    script.invoke(2, "read").ok(2, 3, node="n1").invoke(3, "read").ok(3, 2, node="n2")
    witness = witness_of(tmp_path / "run", script)
    assert witness.kind == "order cycle"
    assert "n1 answered a read of k7 with 3, and at" in witness.summary and "n2 answered a read" in witness.summary
    assert "if the first read or this read is left out, all answers so far have an order" in witness.summary
    assert "does not see" not in witness.summary, "a later read shows that write"
    assert [suspect["node"] for suspect in witness.facts["suspects"]] == ["n1", "n2"]
    assert "guilty" not in witness.facts
    assert witness.facts["expected"].startswith("another answer to the read at ")


def test_an_acknowledged_write_that_a_later_read_does_not_see_comes_first(tmp_path: Path) -> None:
    """A system without fsync loses 3 and shows what it held before.  The write of 1 has no answer, so it may count at
    any time, but only once."""
    script = toggled(2).invoke(4, "write", 1).info(4).invoke(1, "read").ok(1, 1, node="n1")
    script.invoke(0, "write", 3).ok(0, node="n1").invoke(2, "read").ok(2, 1, node="n2").invoke(3, "read").ok(3, 1)
    witness = witness_of(tmp_path / "run", script)
    assert witness.kind == "order cycle"
    first, _, rest = witness.summary.partition("; ")
    assert re.fullmatch(
        r"At [\d.]+ s n1 acknowledged 3 for k7, but a read that began [\d.]+ ms later does not see it: "
        r"it got 1 from n2, the value that a read at [\d.]+ s had returned before that write",
        first,
    )
    assert rest.startswith("if the first read or this read is left out, all answers so far have an order")


def test_a_cas_is_not_blamed_alone_if_an_earlier_read_contradicts_it(tmp_path: Path) -> None:
    script = toggled(2).invoke(4, "write", 1).invoke(5, "write", 3).ok(4).ok(5)
    script.invoke(2, "read").ok(2, 3, node="n2").invoke(3, "cas", 1, 2).ok(3, node="n1")
    witness = witness_of(tmp_path / "run", script)
    assert "n2 answered a read of k7 with 3" in witness.summary
    assert "n1 let a cas of k7 from 1 to 2 succeed" in witness.summary
    assert "if the first read or this cas is left out" in witness.summary
    assert any("if the first read or this cas is left out" in sentence for sentence in witness.facts["why"])


def test_a_read_before_that_changes_nothing_is_not_named(tmp_path: Path) -> None:
    """Without any one of the earlier reads there is still no order."""
    script = toggled(2).invoke(0, "write", 3).info(0)
    for reader in (2, 4):
        script.invoke(reader, "read").ok(reader, 3, node="n1")
    script.invoke(3, "read").ok(3, 2, node="n2")
    witness = witness_of(tmp_path / "run", script)
    assert "left out" not in witness.summary and "suspects" not in witness.facts
