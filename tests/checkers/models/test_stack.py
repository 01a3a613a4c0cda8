"""Stacks onto which no value is pushed twice: against the independent search, by example, and large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from simulated_objects import Simulated, event, history, mixed_up, no_lie, searched, stack_do, step_of

from checkers.base.history import Event, Type
from checkers.base.independent_search import Disagreement, SearchExhausted
from checkers.base.verdict import Validity
from checkers.by_hand import judge_events
from checkers.models.model import REFUSED, operations_of
from checkers.models.objects.conservation import not_conserved
from checkers.models.objects.stack import NAMES, STACK, decide
from checkers.models.past import impossible
from checkers.models.search import demand_explanation
from checkers.models.witnesses import Decided

stack_step = step_of(stack_do)


def stack_of_unique_values(pops: float) -> Simulated:
    """pops: the share of operations that pop."""
    fresh = count(1)

    def ask(rng: Random, _: int) -> tuple[str, Any]:
        return ("pop", None) if rng.random() < pops else ("push", next(fresh))

    return Simulated((), ask, stack_do, no_lie)


def with_answers_swapped(events: list[Event], rng: Random, times: int) -> list[Event]:
    """Pops answer what others popped, or nil."""
    swapped = list(events)
    pops = [e.index for e in events if e.type is Type.OK and e.f == "pop"]
    for _ in range(times if len(pops) > 1 else 0):
        one, other = rng.sample(pops, 2)
        values = swapped[one].value, swapped[other].value
        swapped[one] = replace(swapped[one], value=values[1] if rng.random() < 0.9 else None)
        swapped[other] = replace(swapped[other], value=values[0])
    return swapped


def nonsense(rng: Random, values: int, processes: int, crash: float) -> list[Event]:
    """Each value is popped at any time after it was pushed, or stays.  Nothing says that a stack did this."""
    left = [("push", value) for value in range(1, values + 1)] + [("pop", None)] * rng.choice([0, 0, 1, 2])
    for value in range(1, values + 1):
        if rng.random() < 0.85:
            left.insert(rng.randint(left.index(("push", value)) + 1, len(left)), ("pop", value))
    if rng.random() < 0.5:
        at = left.index(("push", 1))
        left[at + 1 : at + 1 + values] = sorted(left[at + 1 : at + 1 + values], key=lambda step: step[0] == "pop")
    events: list[Event] = []
    busy: list[tuple[int, str, int | None]] = []
    idle, fresh = list(range(processes)), count(processes)
    while left or busy:
        if left and idle and (not busy or rng.random() < 0.5):
            f, value = left.pop(0)
            busy.append((idle.pop(rng.randrange(len(idle))), f, value))
            events.append(event(len(events), busy[-1][0], Type.INVOKE, f, value if f == "push" else None))
            continue
        process, f, value = busy.pop(rng.randrange(len(busy)))
        crashed = rng.random() < crash
        idle.append(next(fresh) if crashed else process)
        answer = None if crashed and f == "pop" else value
        events.append(event(len(events), process, Type.INFO if crashed else Type.OK, f, answer))
    return events


def compare(rng: Random, cases: int, sizes: tuple[int, int], crashes: Sequence[float]) -> Counter[Any]:
    """Raises AssertionError if the verdict differs from the independent search, or a witness has an order."""
    seen = Counter[Any]()
    while seen["compared"] < cases:
        operations_count, processes, crash = rng.randint(*sizes), rng.randint(2, 5), rng.choice(crashes)
        if rng.random() < 0.5:
            events = nonsense(rng, operations_count // 2, processes, crash)
        else:
            what = stack_of_unique_values(rng.choice([0.25, 0.4, 0.5, 0.6]))
            events = history(what, rng, operations_count, processes, crash, 0)
            events = with_answers_swapped(events, rng, rng.choice([0, 0, 1, 1, 2, 3]))
        events = mixed_up(events, rng, 2) if rng.random() < 0.4 else events
        operations = operations_of(events)
        if not_conserved(operations, NAMES):
            continue
        found = decide(operations)
        try:
            expected = searched(events, (), stack_step, set())
        except SearchExhausted:
            seen["not tried"] += 1
            continue
        seen["compared"] += 1
        if found is None:
            assert any(o.f == "pop" and not o.returned for o in operations), operations
            seen["not decided"] += 1
            continue
        assert isinstance(found, Decided) is not expected, operations
        seen[expected] += 1
        if isinstance(found, Decided):
            shown = sorted(found.operations, key=lambda o: o.call)
            assert impossible(STACK, shown, [()]) is not False, (shown, operations)
            seen["found nothing" if found.culprit.output is None else "values"] += 1
            seen["more than two values"] += sum(o.f == "push" for o in shown) > 2
            continue
        state: Any = ()
        for step in found:
            state = stack_step(state, step)
            assert state is not REFUSED, operations
    return seen


def test_it_agrees_with_the_independent_search() -> None:
    seen = compare(Random(1), 1000, (4, 14), (0,))
    assert min(seen[w] for w in (True, False, "values", "found nothing")) > 100 and not seen["not decided"], seen
    assert seen["more than two values"] > 10, seen


def test_it_agrees_if_operations_get_no_answer() -> None:
    seen = compare(Random(2), 1000, (4, 14), (0.1, 0.3))
    assert seen[True] > 300 and seen[False] > 50 and seen["not decided"] < 100, seen


def test_it_agrees_on_longer_histories() -> None:
    seen = compare(Random(3), 40, (20, 40), (0, 0.05))
    assert seen[True] > 8 < seen[False], seen


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
def test_it_agrees_with_the_independent_search_all_night(part: int, night: Random) -> None:
    print(compare(night, 25_000, (3, 14), (0, 0.1, 0.3)), compare(night, 500, (20, 40), (0, 0.05)))


def two_pops_of_nested_values(events: Sequence[Event]) -> tuple[Event, Event]:
    """Answers of two pops, one after the other.  The first took a value that was certainly above that of the second."""
    operations = operations_of(events)
    pushed = {o.input: o for o in operations if o.f == "push"}
    pops = [o for o in operations if o.f == "pop" and o.output is not None]
    for first in pops[len(pops) // 2 :]:
        above = pushed[first.output]
        for second in pops:
            below = pushed.get(second.output)
            if below is None or below.ret is None or first.ret is None or above.ret is None or second.ret is None:
                continue
            if below.ret < above.call and above.ret < first.call and first.ret < second.call:
                return events[first.ret], events[second.ret]
    raise AssertionError("there are no such values")


@pytest.mark.parametrize("crash", [0, 0.002])
def test_a_large_stack_is_decided_and_two_swapped_answers_are_found(crash: float) -> None:
    events = history(stack_of_unique_values(0.4), Random(5), 10_000, 10, crash, 0)
    assert judge_events(events, "stack").validity is Validity.VALID
    first, second = two_pops_of_nested_values(events)
    swapped = {first.index: second.value, second.index: first.value}
    verdict = judge_events([replace(e, value=swapped.get(e.index, e.value)) for e in events], "stack")
    assert verdict.validity is Validity.INVALID
    assert verdict.witnesses[0].kind == "out of order" and verdict.witnesses[0].facts["rejudged"]


def test_an_order_that_does_not_explain_the_answers_is_refused() -> None:
    rng = Random(6)
    events = history(stack_of_unique_values(0.4), rng, 30, 3, 0, 0)
    operations = operations_of(events)
    found = decide(operations)
    assert found is not None and not isinstance(found, Decided)
    order = list(found)
    demand_explanation(operations, order, STACK)
    for wrong in (order[1:], order[:-1], [*order[:5], order[6], *order[5:]], order[::-1]):
        with pytest.raises(Disagreement):
            demand_explanation(operations, wrong, STACK)
