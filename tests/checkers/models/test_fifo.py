"""Queues of unique values: the four kinds of violations, against the independent search."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from simulated_objects import (
    Simulated,
    any_of,
    event,
    history,
    no_lie,
    numbers,
    one_process,
    queue_do,
    renumbered,
)

from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.by_hand import judge_events

VALID, INVALID, UNKNOWN = Validity.VALID, Validity.INVALID, Validity.UNKNOWN


def test_a_value_out_of_order_comes_with_the_one_that_was_due() -> None:
    put = [("enqueue", n, n) for n in range(20)]
    events = one_process(*put, *[("dequeue", None, n) for n in (0, 1, 2, 7, 3, 4, 5, 6)])
    [witness] = judge_events(events, "queue").witnesses
    assert witness.kind == "out of order"
    assert witness.summary == "7 came out of the queue before 6, which was put there before it"
    assert [row["index"] for row in witness.events] == [12, 13, 14, 15, 46, 47, 54, 55]
    assert witness.facts["order"]["steps"][-1]["holds"] == "[6, 7]"


def test_nothing_found_in_a_queue_that_was_never_empty_comes_with_its_values() -> None:
    def step(process: int, kind: Type, f: str, value: Any = None) -> Event:
        return event(0, process, kind, f, value)

    inv, ok = Type.INVOKE, Type.OK
    steps = [step(0, inv, "enqueue", 1), step(0, ok, "enqueue", 1), step(9, inv, "dequeue")]
    steps += [step(0, inv, "enqueue", 2), step(0, ok, "enqueue", 2), step(1, inv, "dequeue"), step(1, ok, "dequeue", 1)]
    steps += [step(9, ok, "dequeue"), step(1, inv, "dequeue"), step(1, ok, "dequeue", 2)]
    [witness] = judge_events([replace(e, index=index) for index, e in enumerate(steps)], "queue").witnesses
    assert (witness.kind, witness.summary) == ("not empty", "a dequeue found nothing while 1, 2 were there")
    moved = [*steps[:3], *steps[5:7], *steps[3:5], *steps[7:]]
    assert judge_events([replace(e, index=index) for index, e in enumerate(moved)], "queue").validity is VALID


def with_unanswered_dequeues(values: int, unanswered: int, late: int = 0) -> list[Event]:
    """So many values are acknowledged, so many dequeues get no answer, and a drain finds nothing; late: dequeues after
    the drain, without an answer either."""
    events = one_process(*(("enqueue", n, n) for n in range(values)))
    for process in range(10, 10 + unanswered):
        events.append(event(0, process, Type.INVOKE, "dequeue", None))
    events += one_process(("drain", None, []))
    for process in range(10 + unanswered, 10 + unanswered + late):
        events.append(event(0, process, Type.INVOKE, "dequeue", None))
    return renumbered(events)


@pytest.mark.parametrize(("values", "unanswered"), [(2, 1), (3, 2), (90, 40)])
def test_more_values_are_missing_than_dequeues_without_an_answer_can_have_taken(values: int, unanswered: int) -> None:
    verdict = judge_events(with_unanswered_dequeues(values, unanswered), "queue")
    assert verdict.validity is INVALID
    (witness,) = verdict.witnesses
    assert witness.kind == "acknowledged element lost"
    assert f"{values} values were acknowledged and never taken" in witness.summary
    assert len(witness.events) == 2 * (unanswered + 1) + unanswered + 2
    assert verdict.looked_at["unanswered_dequeues"] == unanswered


def test_a_dequeue_without_an_answer_excuses_one_value_if_it_was_invoked_before_the_drain_ended() -> None:
    assert judge_events(with_unanswered_dequeues(2, 2), "queue").validity is VALID
    assert judge_events(with_unanswered_dequeues(2, 1, late=1), "queue").validity is INVALID


def test_hundreds_of_dequeues_without_an_answer_leave_the_order_decided() -> None:
    what = Simulated((), any_of(("enqueue", numbers()), ("dequeue", None)), queue_do, no_lie)
    events = history(what, Random(5), 20_000, 8, 0.02, 0)
    verdict = judge_events(events, "queue")
    assert verdict.validity is VALID
    assert int(verdict.looked_at["unanswered_dequeues"]) > 100
    assert 0 < int(verdict.looked_at["excused_by_unanswered_dequeues"]) <= int(verdict.looked_at["never_taken"])


def taken_without_an_answer(values: int, unanswered: int, then: int | None) -> list[Event]:
    """Values 0, 1, ... are put there; so many dequeues get no answer; the next one answers `then`."""
    events = one_process(*(("enqueue", n, n) for n in range(values)))
    events += [event(0, 10 + process, Type.INVOKE, "dequeue", None) for process in range(unanswered)]
    return renumbered([*events, *one_process(("dequeue", None, then))])


@pytest.mark.parametrize("unanswered", [1, 7, 20, 200])
@pytest.mark.parametrize("then", ["a value", "nothing"])
def test_each_dequeue_without_an_answer_excuses_one_value_that_had_to_come_out(unanswered: int, then: str) -> None:
    values = unanswered + (then == "a value")
    answer = values - 1 if then == "a value" else None
    verdict = judge_events(taken_without_an_answer(values, unanswered, answer), "queue")
    assert verdict.validity is VALID
    assert verdict.looked_at["excused_by_unanswered_dequeues"] == unanswered
    assert (
        f"no answer shows: {unanswered}; one of {unanswered} dequeues without an answer" in verdict.details["decided"]
    )
    answer = None if answer is None else answer + 1
    verdict = judge_events(taken_without_an_answer(values + 1, unanswered, answer), "queue")
    assert verdict.validity is INVALID
    [witness] = verdict.witnesses
    assert witness.kind == ("out of order" if then == "a value" else "not empty")
    assert any(f"{unanswered} dequeues without an answer were invoked in time" in why for why in witness.facts["why"])
    assert witness.facts["rejudged"] or unanswered > 7


def test_it_counts_what_was_acknowledged_and_never_came_out() -> None:
    events = one_process(*(("enqueue", n, n) for n in (1, 2, 3, 4)), ("dequeue", None, 1), ("drain", None, [3]))
    events.append(event(len(events), 1, Type.INVOKE, "enqueue", 5))  # its outcome is unknown
    verdict = judge_events(events, "queue")
    assert verdict.validity is INVALID
    assert (verdict.looked_at["acknowledged"], verdict.looked_at["never_taken"]) == (4, 2)
