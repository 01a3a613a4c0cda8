"""Queues of unique values: the four kinds of violations, against the independent search.

Queues that deliver at least once, against every order of small histories.

Stack, priority queue and semaphore: by example, and large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
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
    priority_do,
    queue_do,
    renumbered,
)

from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.independent_search import linearizable
from checkers.base.verdict import Validity
from checkers.by_hand import judge_events
from checkers.models.model import Operation
from checkers.models.objects.queue import judge_deliveries
from harness.judge.check_files import check

VALID, INVALID, UNKNOWN = Validity.VALID, Validity.INVALID, Validity.UNKNOWN


def test_a_value_out_of_order_comes_with_the_one_that_was_due() -> None:
    put = [("enqueue", n, n) for n in range(20)]
    events = one_process(*put, *[("dequeue", None, n) for n in (0, 1, 2, 7, 3, 4, 5, 6)])
    [witness] = judge_events(events, "queue").witnesses
    assert witness.kind == "out of order"
    assert witness.summary == "7 came out of the queue before 6, although 6 was put there first"
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
    """Return a history of acknowledged values, `unanswered` dequeues without an answer, and a drain that finds nothing.

    late: number of dequeues after the drain, without an answer either
    """
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


Held = tuple[frozenset[int], frozenset[int]]
"""(the enqueued values, the ones never dequeued)"""


def op(f: str, given: object, output: object, call: int, ret: int | None, process: int) -> Operation:
    return Operation(f, given, output, None, process, "", call, ret)  # type: ignore[arg-type]


def after(held: Held, operation: Operation) -> Iterator[Held]:
    """Return every state after an operation of a queue that may deliver enqueued values again."""
    put, waiting = held
    match operation.f, operation.returned:
        case "enqueue", _:
            yield put | {operation.input}, waiting | {operation.input}
        case "dequeue", False:
            yield from ((put, waiting - {value}) for value in (None, *put))
        case "dequeue", True:
            if operation.output is None or operation.output in put:
                yield put, waiting - {operation.output}
        case "drain", True:
            taken = frozenset(operation.output)
            if taken <= put and not waiting - taken:
                yield put, frozenset()


def has_an_order(operations: Sequence[Operation], held: Held = (frozenset(), frozenset())) -> bool:
    """Try each operation that may come first; those without an answer may be left out."""
    if not any(o.returned for o in operations):
        return True
    first_ret = min(o.ret for o in operations if o.ret is not None)
    for at, operation in enumerate(operations):
        rest = [*operations[:at], *operations[at + 1 :]]
        if operation.call < first_ret and any(has_an_order(rest, next_) for next_ in after(held, operation)):
            return True
    return False


def drawn(rng: Random) -> list[Operation]:
    """Return a few operations on three values, some without an answer, and one drain."""
    moments = rng.sample(range(100), 14)
    operations = []
    for number in range(rng.randint(1, 5)):
        call, ret = sorted(moments[2 * number : 2 * number + 2])
        value, open_ = number % 4, rng.random() < 0.2
        f = rng.choice(("enqueue", "enqueue", "dequeue"))
        output = None if f == "enqueue" or open_ else rng.choice((None, 0, 1, 2, 3))
        given = value if f == "enqueue" else None
        operations.append(op(f, given, output, call, None if open_ else ret, number))
    call, ret = sorted(moments[12:]) if rng.random() < 0.3 else (100, 101)
    left = tuple(value for value in range(4) if rng.random() < 0.4)
    operations.append(op("drain", None, left, call, ret, 9))
    return sorted(operations, key=lambda o: o.call)


def test_it_agrees_with_every_order() -> None:
    rng, seen = Random(1), Counter[str]()
    for _ in range(4000):
        operations = drawn(rng)
        found = judge_deliveries(operations, Budget()).violations
        beside = any(o.f == "drain" and o.call < 100 for o in operations)
        ordered = has_an_order(operations)
        assert not (found and ordered), operations
        assert found or ordered or beside, "a drain is many dequeues: it may miss what is put there while it runs"
        seen.update({each.kind for each in found} or {"valid"})
        for each in found:
            assert not linearizable(each.operations, [each.smaller.init()], each.smaller.step)  # type: ignore[arg-type]
    assert min(seen[kind] for kind in ("valid", "value from nowhere", "acknowledged element lost")) > 100, seen


def test_a_value_may_come_again_and_in_any_order() -> None:
    put = [op("enqueue", value, None, 2 * value, 2 * value + 1, 0) for value in range(3)]
    taken = [op("dequeue", None, value, 10 + at, 20 + at, 1) for at, value in enumerate((2, 2, 0))]
    found = judge_deliveries([*put, *taken, op("drain", None, (1, 0), 50, 51, 0)], Budget())
    assert not found.violations
    assert (found.counts["delivered_again"], found.counts["never_taken"]) == (2, 0)


def test_a_drain_without_an_answer_excuses_what_is_missing() -> None:
    put, lost = op("enqueue", 1, None, 0, 1, 0), op("drain", None, (), 4, 5, 0)
    assert [each.kind for each in judge_deliveries([put, lost], Budget()).violations] == ["acknowledged element lost"]
    assert not judge_deliveries([put, op("drain", None, None, 2, None, 1), lost], Budget()).violations


def test_a_value_stays_because_a_smaller_one_is_there() -> None:
    """The 1 was there all the time, so 2 could not leave.  The 0 has left, and is left out."""
    events = one_process(*[("insert", v, v) for v in (0, 1, 2, 3)], ("extract-min", None, 0))
    at = len(events)
    late = [(1, Type.INVOKE, None), (2, Type.INVOKE, None), (2, Type.OK, 3), (1, Type.OK, 2), (0, Type.INVOKE, None)]
    late.append((0, Type.OK, 1))
    events += [event(at + n, process, type_, "extract-min", value) for n, (process, type_, value) in enumerate(late)]
    verdict = judge_events(events, "priority-queue")
    (witness,) = verdict.witnesses
    assert "took 2 while 1 was in the queue" in witness.summary
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
