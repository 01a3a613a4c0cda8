"""Witnesses: the injected violation stands in them, they cannot be made smaller, and they say what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from histories import Script, as_operations, by_construction, operations_of, tiny, verdict_of, witness_of

from checkers.base.history import Event, Type
from checkers.base.independent_search import linearizable
from checkers.base.verdict import Validity, Witness
from checkers.kernels import register_unique_values as register
from checkers.registers.smallest_window import Window, smallest_window


def indices(witness: Witness) -> list[int]:
    return [event["index"] for event in witness.events]


def test_a_stale_read_comes_with_what_overwrote_it_and_when(tmp_path: Path) -> None:
    script = Script("k7").invoke(0, "write", 41).ok(0).invoke(1, "write", 48).ok(1, node="n2")
    script.invoke(3, "read").ok(3, 48, node="n2").invoke(2, "read").ok(2, 41, node="n1")
    witness = witness_of(tmp_path, script)
    assert witness.kind == "stale read"
    assert witness.summary == (
        "At 0.070 s n1 answered a read of k7 with 41 although 48 was acknowledged 30 ms before the read was invoked"
    )
    assert witness.facts["states_before"] == [41]
    assert witness.facts["expected"] == "an answer of 48"
    assert witness.facts["letters"] == {"2": "A", "6": "B"}
    assert indices(witness) == [2, 3, 6, 7]
    assert "After A nothing wrote 41 again, so B cannot find it" in witness.facts["why"]


@pytest.mark.parametrize(("at_ns", "words"), [(0, "before"), (10_000_000, "before"), (90_000_000, "10.0 ms before")])
def test_a_row_without_a_time_or_with_a_wrong_one_makes_no_span(tmp_path: Path, at_ns: int, words: str) -> None:
    events = Script().invoke(0, "write", 1).ok(0).invoke(0, "write", 2).ok(0).invoke(1, "read").ok(1, 1).events
    times = (20_000_000, 30_000_000, 40_000_000, 80_000_000, at_ns, 95_000_000)
    events = [replace(event, time_ns=time_ns) for event, time_ns in zip(events, times, strict=True)]
    (witness,) = verdict_of(tmp_path, events).witnesses
    assert f"2 was acknowledged {words} the read was invoked" in witness.summary.replace("10 ms", "10.0 ms")


def test_a_write_that_no_read_saw_and_its_own_node_forgot_is_lost(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 1).ok(0).invoke(0, "write", 2).ok(0)
    script.invoke(1, "read").ok(1, 1).invoke(1, "read").ok(1, 1)
    witness = witness_of(tmp_path, script)
    assert witness.kind == "lost write"
    assert witness.summary == (
        "At 0.030 s n1 acknowledged 2 for k, but no answer ever showed it: a read that began 10 ms later got "
        "the older 1 from n1"
    )


def test_a_lost_write_blames_the_node_that_acknowledged_it_and_not_the_new_leader(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 1).ok(0, node="n3").invoke(0, "write", 2).ok(0, node="n3")
    script.invoke(1, "read").ok(1, 1, node="n1").invoke(0, "write", 3).ok(0, node="n1")
    script.invoke(1, "read").ok(1, 3, node="n1")
    witness = witness_of(tmp_path, script)
    assert witness.kind == "lost write"
    assert witness.summary.startswith("At 0.030 s n3 acknowledged 2 for k, but no answer ever showed it")
    assert witness.facts["guilty"] == {"node": "n3", "time_ns": 30_000_000}
    assert (
        "No answer ever showed 2, and the older value stayed in its place, so its acknowledgement by n3 was wrong"
        in witness.facts["why"]
    )


def test_before_a_window_stands_what_the_key_held_and_not_nil(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 5).ok(0)
    script.invoke(0, "write", 1).invoke(1, "write", 2).ok(1).ok(0)
    script.invoke(1, "read").ok(1, 1).invoke(2, "read").ok(2, 2).invoke(1, "read").ok(1, 1)
    witness = witness_of(tmp_path, script)
    assert witness.facts["states_before"] == [5]
    assert witness.facts["rejudged"]


def test_old_answers_of_another_node_are_stale_not_lost(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 1).ok(0).invoke(0, "write", 2).ok(0, node="n2")
    script.invoke(1, "read").ok(1, 1, node="n1").invoke(1, "read").ok(1, 1, node="n1")
    script.invoke(0, "write", 3).ok(0, node="n2").invoke(1, "read").ok(1, 3, node="n2")
    assert witness_of(tmp_path, script).kind == "stale read"


REFUSED, MADE = Script().invoke(2, "write", 3).fail(2, "no"), Script().invoke(0, "cas", 3, 5).info(0)
MADE_OF_REFUSED = Script().invoke(2, "write", 3).fail(2, "no").invoke(0, "cas", 3, 5).info(0)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (Script().invoke(1, "read").ok(1, 7), "At 0.010 s n1 answered a read of k with 7, a value never written to it"),
        (REFUSED.invoke(1, "read").ok(1, 3), "whose only write was refused (index 1: no)"),
        (Script().invoke(0, "read").ok(0, 1).invoke(1, "write", 1).ok(1), "write was invoked afterwards (index 2)"),
        (MADE.invoke(1, "read").ok(1, 5), "with 5, which depends on 3, a value never written"),
        (MADE_OF_REFUSED.invoke(1, "read").ok(1, 5), "which depends on 3, whose only write was refused (index 1: no)"),
    ],
)
def test_a_value_from_nowhere_comes_with_every_row_that_the_summary_names(
    tmp_path: Path, script: Script, words: str
) -> None:
    witness = witness_of(tmp_path, script)
    assert witness.kind == "value from nowhere" and words in witness.summary
    assert indices(witness) == list(range(len(script.events)))


def test_two_cas_from_one_value_are_a_cycle(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 1).ok(0).invoke(0, "cas", 1, 2).invoke(1, "cas", 1, 3).ok(0).ok(1)
    witness = witness_of(tmp_path, script)
    assert witness.kind == "order cycle"
    assert witness.facts["states_before"] == [1]
    assert "written only once" in " ".join(witness.facts["why"])


def test_a_long_chain_of_cas_before_the_window_becomes_its_state(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 0).ok(0)
    for value in range(300):
        script.invoke(0, "cas", value, value + 1).ok(0)
    script.invoke(1, "read").ok(1, 298)
    witness = witness_of(tmp_path, script)
    assert witness.kind == "stale read"
    assert len(witness.facts["letters"]) <= 3
    assert witness.facts["states_before"] in ([298], [299])


def test_readers_that_disagree_about_two_writes_under_way(tmp_path: Path) -> None:
    script = Script().invoke(0, "write", 1).invoke(1, "write", 2)
    script.invoke(2, "read").ok(2, 1).invoke(3, "read").ok(3, 2).invoke(2, "read").ok(2, 1)
    witness = witness_of(tmp_path, script)
    assert witness.kind == "stale read"
    assert len(witness.facts["letters"]) == 5
    assert "2 was seen" in witness.summary


def two_answers_that_contradict_each_other() -> Script:
    """3 and 1 are written at once; a read shows 3, and then a cas from 1 succeeds."""
    script = Script("k5").invoke(0, "write", 3).invoke(1, "write", 1).ok(0, node="n1").ok(1, node="n1")
    script.invoke(2, "read").ok(2, 3, node="n2")
    return script.invoke(3, "cas", 1, 2).ok(3, node="n1")


BOTH = "At 0.050 s n2 answered a read of k5 with 3, and at 0.070 s n1 let a cas of k5 from 1 to 2 succeed: "


def test_of_two_answers_that_contradict_each_other_both_are_named_and_drawn(tmp_path: Path) -> None:
    witness = witness_of(tmp_path, two_answers_that_contradict_each_other())
    assert witness.kind == "order cycle"
    assert witness.summary == BOTH + "the first read or this cas was wrong, and no other answer shows which"
    assert [each["node"] for each in witness.facts["suspects"]] == ["n2", "n1"]
    assert {4, 5, 6, 7} <= set(indices(witness))
    assert witness.facts["expected"].startswith(
        "another answer to the read C, or, if that read was right, that the cas"
    )


def test_later_answers_decide_which_of_two_was_wrong(tmp_path: Path) -> None:
    cas = two_answers_that_contradict_each_other().invoke(4, "read").ok(4, 2, node="n3")
    of_read = witness_of(tmp_path / "cas", cas)
    assert of_read.summary == BOTH + "later answers confirm the cas at 0.070 s, so the first read was wrong"
    assert of_read.facts["guilty"]["node"] == "n2" and "suspects" not in of_read.facts
    read = two_answers_that_contradict_each_other().invoke(4, "read").ok(4, 3, node="n3")
    of_cas = witness_of(tmp_path / "read", read)
    assert of_cas.summary == BOTH + "later answers confirm the first read, so this cas was wrong"
    assert of_cas.facts["guilty"]["node"] == "n1"


def test_the_node_that_may_be_wrong_confirms_nothing(tmp_path: Path) -> None:
    script = two_answers_that_contradict_each_other().invoke(4, "read").ok(4, 3, node="n2")
    assert "no other answer shows which" in witness_of(tmp_path, script).summary


@pytest.mark.parametrize("seed", range(12))
def test_the_witness_of_a_large_history_contains_the_injected_answer(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    events = list(by_construction(rng, 4000, processes=6, cas=rng.choice([0, 0.3]), crash=0.01))
    reads = [e for e in events if e.f == "read" and e.type is Type.OK and e.index > 5000]
    victim = rng.choice(reads)
    invoked_at = max(e.index for e in events[: victim.index] if e.process == victim.process and e.type is Type.INVOKE)
    settled = [e for e in events[: invoked_at - 200] if e.f == "write" and e.type is Type.OK]
    injected = replace(victim, value=rng.choice([settled[-1].value, settled[-20].value, 10**9, None]))
    events[victim.index] = injected
    verdict = verdict_of(tmp_path, events)
    assert verdict.validity is Validity.INVALID
    [witness] = verdict.witnesses
    assert injected.index in indices(witness)
    assert witness.facts["rejudged"] is True
    assert len(witness.events) <= 12


def test_every_window_is_impossible_and_smallest() -> None:
    """Of 400 random wrong histories: the window fails from its states, and without any one of its reads, or of the
    writes no read saw, it no longer does."""
    rng = Random(77)
    checked = 0
    while checked < 400:
        events = tiny(rng, rng.randint(3, 9), rng.randint(2, 4))
        ops = as_operations(events)
        if register.judge_keys(ops, 10**9)[0][0] < register.FIRST_INVALID:
            continue
        window = smallest_window(register.key_of(ops, 0), int(ops.positions[0]))
        assert window.rejudged
        shown = shown_events(events, ops, window)
        if not window.weakened:
            assert not linearizable(operations_of(shown), window.states_before)
            for op in window.operations:
                rest = shown_events(events, ops, window, without=op)
                if not depended_on(events, ops, window, op):
                    assert linearizable(operations_of(rest), window.states_before), (events, window)
        checked += 1


def shown_events(events: list[Event], ops: register.Operations, window: Window, without: int = -1) -> list[Event]:
    """The window's events up to the answer that no order explains."""
    end = int(ops.completed[window.culprit])
    rows = [r for op in window.operations if op != without for r in (int(ops.invoked[op]), int(ops.completed[op]))]
    return [events[row] for row in sorted(rows) if 0 <= row <= end]


def depended_on(events: list[Event], ops: register.Operations, window: Window, op: int) -> bool:
    """Whether another operation of the window saw what this one made."""
    made = ops.b[op] if ops.kind[op] == 2 else ops.a[op]
    return ops.kind[op] != 0 and any(ops.kind[o] != 1 and ops.a[o] == made for o in window.operations if o != op)
