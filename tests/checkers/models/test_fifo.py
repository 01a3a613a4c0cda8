"""Queues of unique values: the four kinds of violations, against the independent search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from simulated_objects import Simulated, event, history, one_process, queue_do, renumbered, searched

from checkers.base.history import Event, Type
from checkers.base.independent_search import SearchExhausted
from checkers.base.verdict import Validity
from checkers.by_hand.judge_events import judge_events
from checkers.models.model import REFUSED, operations_of
from checkers.models.objects import queue
from checkers.models.objects.queue import QUEUE

VALID, INVALID, UNKNOWN = Validity.VALID, Validity.INVALID, Validity.UNKNOWN


def queue_of_unique_values(*fs: str, lies: Sequence[int | None] = (None, *range(8))) -> Simulated:
    """Return a queue's history in which a dequeue sometimes answers another value, or none."""
    fresh = count()

    def ask(rng: Random, _: int) -> tuple[str, Any]:
        f = rng.choice(fs)
        return f, next(fresh) if f == "enqueue" else None

    def lie(rng: Random, f: str, was: Any) -> Any:
        return rng.choice(lies) if f == "dequeue" else was

    return Simulated((), ask, queue_do, lie)


def compare(
    rng: Random,
    cases: int,
    sizes: tuple[int, int],
    crashes: tuple[float, ...],
    lies: Sequence[int | None] = (None, *range(8)),
) -> Counter[Any]:
    seen = Counter[Any]()
    for _ in range(cases):
        what = queue_of_unique_values("enqueue", "dequeue", *(["enqueue"] if rng.random() < 0.5 else []), lies=lies)
        events = history(what, rng, rng.randint(*sizes), rng.randint(1, 4), rng.choice(crashes), rng.choice([0, 1, 2]))
        # nothing was dequeued: the verdict is unknown
        if all(e.type is not Type.OK or e.f == "enqueue" for e in events):
            continue
        try:
            expected = searched(events, (), QUEUE.step, set())
        except SearchExhausted:
            seen["not tried"] += 1
            continue
        verdict = judge_events(events, "queue")
        assert verdict.validity is (VALID if expected else INVALID), (verdict.reason, events)
        seen[expected] += 1
        seen.update(witness.kind for witness in verdict.witnesses)
    return seen


def test_it_agrees_with_the_independent_search() -> None:
    seen = compare(Random(1), 2000, (2, 12), (0, 0, 0.15))
    for what in (True, False, "out of order", "not empty", "duplicate", "value from nowhere"):
        assert seen[what] > 20, seen


def test_it_agrees_with_the_independent_search_on_longer_histories() -> None:
    seen = compare(Random(2), 15, (20, 40), (0, 0.01))
    assert seen["not tried"] < 5 < seen[True], seen


def test_it_agrees_with_the_independent_search_if_many_dequeues_get_no_answer() -> None:
    seen = compare(Random(3), 1000, (4, 11), (0.2, 0.3), (None,))
    for what in (True, False, "out of order", "not empty"):
        assert seen[what] > 20, seen


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
def test_it_agrees_with_the_independent_search_if_many_dequeues_get_no_answer_all_night(
    part: int, night: Random
) -> None:
    compare(night, 50_000, (2, 14), (0.2, 0.5), (None, None, None, 1))


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
def test_it_agrees_with_the_independent_search_all_night(part: int, night: Random) -> None:
    compare(night, 250_000, (2, 12), (0, 0, 0.15))


def with_drains(events: list[Event]) -> list[Event]:
    """Dequeues of one process, one after another, of which the last found nothing, become one drain."""
    operations = operations_of(events)
    kept = {e.index: e for e in events}
    by_process: dict[int, list[Any]] = {}
    for o in operations:
        run = by_process.setdefault(o.process, [])
        if o.f == "enqueue" or not o.returned:
            run.clear()
            continue
        run.append(o)
        if o.output is None:
            taken = [each.output for each in run[:-1]]
            for each in run:
                del kept[each.call], kept[each.ret]
            kept[run[0].call] = event(run[0].call, o.process, Type.INVOKE, "drain", None)
            kept[o.ret] = event(o.ret, o.process, Type.OK, "drain", taken)
            run.clear()
    return renumbered([kept[at] for at in sorted(kept)])


def taken_apart(events: list[Event]) -> list[Event]:
    """Each drain becomes dequeues [drain, place, value] that all run as long as it did; `in_turn` keeps their order."""
    drains = {o.call: o for o in operations_of(events) if o.f == "drain" and o.returned}
    ends = {o.ret: o for o in drains.values()}
    apart: list[Event] = []
    for e in events:
        if (drain := drains.get(e.index) or ends.get(e.index)) is None:
            apart.append(e)
            continue
        for place, value in enumerate((*drain.output, None)):
            process = 1000 * (drain.call + 1) + place
            answer = [drain.call, place, value] if e.type is Type.OK else None
            apart.append(event(0, process, e.type, "dequeue in turn", answer))
    return renumbered(apart)


def in_turn(state: Any, operation: Any) -> object:
    """state: (the queue, the dequeues of each drain that have been made)."""
    queue, made = state
    if operation.f != "dequeue in turn":
        after = QUEUE.step(queue, operation)
        return REFUSED if after is REFUSED else (after, made)
    drain, place, value = operation.output
    if (queue[0] if queue else None) != value or dict(made).get(drain, 0) != place:
        return REFUSED
    return queue[1:], tuple(sorted({**dict(made), drain: place + 1}.items()))


def drained_by_one_at_a_time(rng: Random, crash: float) -> list[Event] | None:
    """Enqueues at any time, also during drains; None where dequeues or drains meet during a drain."""
    what = queue_of_unique_values("enqueue", "dequeue", "dequeue")
    events = with_drains(history(what, rng, rng.randint(2, 14), rng.randint(1, 3), crash, rng.choice([0, 1])))
    takes = [replace(o, ret=o.ret or o.call) for o in operations_of(events) if o.f != "enqueue"]
    answered = any(e.type is Type.OK and e.f != "enqueue" for e in events)
    return events if answered and queue.overlapping_drain(takes) is None else None


def test_a_drain_that_enqueues_overlap_is_decided_as_its_dequeues_one_after_another() -> None:
    rng, seen = Random(3), Counter[Any]()
    for _ in range(2000):
        events = drained_by_one_at_a_time(rng, rng.choice([0, 0, 0.1]))
        if events is None:
            continue
        expected = searched(taken_apart(events), ((), ()), in_turn, set())
        verdict = judge_events(events, "queue")
        assert verdict.validity is (VALID if expected else INVALID), (verdict.reason, events)
        overlapped = queue.overlapping_drain(operations_of(events)) is not None
        seen[overlapped, expected] += any(e.f == "drain" for e in events)
    assert min(seen.values()) > 10, seen


def test_a_drain_among_other_dequeues_raises_no_alarm() -> None:
    rng, seen = Random(3), Counter[Any]()
    for _ in range(1000):
        what = queue_of_unique_values("enqueue", "dequeue", "dequeue")
        crash = rng.choice([0, 0, 0.1])
        events = history(what, rng, rng.randint(2, 14), rng.randint(1, 3), crash, rng.choice([0, 1]))
        if not any(e.type is Type.OK and e.f != "enqueue" for e in events) or not searched(
            events, (), QUEUE.step, set()
        ):
            continue
        drained_once = with_drains(events)
        assert judge_events(drained_once, "queue").validity is VALID, drained_once
        seen["drained"] += any(e.f == "drain" for e in drained_once)
    assert seen["drained"] > 20, seen


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
    what = queue_of_unique_values("enqueue", "dequeue")
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


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (("push", 1, 1), "push is not an operation of a queue"),
        (("drain", None, 7), "a drain answered 7, which is no list"),
    ],
)
def test_what_no_queue_can_do_or_answer_is_unknown(operation: tuple[str, Any, Any], words: str) -> None:
    verdict = judge_events(one_process(("enqueue", 1, 1), operation), "queue")
    assert verdict.validity is UNKNOWN
    assert words in verdict.reason


def test_it_counts_what_was_acknowledged_and_never_came_out() -> None:
    events = one_process(*(("enqueue", n, n) for n in (1, 2, 3, 4)), ("dequeue", None, 1), ("drain", None, [3]))
    events.append(event(len(events), 1, Type.INVOKE, "enqueue", 5))  # its outcome is unknown
    verdict = judge_events(events, "queue")
    assert verdict.validity is INVALID
    assert (verdict.looked_at["acknowledged"], verdict.looked_at["never_taken"]) == (4, 2)
