"""Queues with drains that are concurrent with other operations, against brute force; and orders of equal values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Any

import pytest
from simulated_objects import Simulated, any_of, history, no_lie, operations_of, queue_do, stack_do

from checkers.base.checker import Budget
from checkers.models.known_object import KnownObject, ObjectFinding
from checkers.models.model import Operation
from checkers.models.objects.queue import QUEUE_OBJECT
from checkers.models.objects.stack import STACK_OBJECT

Step = tuple[str, Any, int, int | None, int]
"""(function, value or None for nothing, call, return or None, number of the step in its operation)."""

VALUES = 4
NAMES = {"queue": ("enqueue", "dequeue"), "stack": ("push", "pop")}


def brute_force(operations: Sequence[Operation]) -> bool:
    """Try all orders.  A drain is as many dequeues one after another as it has values, and one that found nothing."""
    chains: list[list[Step]] = []
    for o in operations:
        if o.f == "drain" and o.returned:
            values = [*(o.output if isinstance(o.output, tuple) else ()), None]
            chains.append([("take", value, o.call, o.ret, n) for n, value in enumerate(values)])
        elif o.f == "drain":
            chains += [[("open", None, o.call, None, 0)] for _ in operations]
        elif o.f == "enqueue":
            chains.append([("put", o.input, o.call, o.ret, 0)])
        else:
            chains.append([("take" if o.returned else "open", o.output, o.call, o.ret, 0)])
    seen: set[tuple[Any, ...]] = set()

    def explains(done: tuple[int, ...], held: tuple[Any, ...]) -> bool:
        if (done, held) in seen:
            return False
        seen.add((done, held))
        left = [chain[at] for chain, at in zip(chains, done, strict=True) if at < len(chain)]
        first = min((ret for _, _, _, ret, _ in left if ret is not None), default=None)
        if first is None:
            return True
        for number, (chain, at) in enumerate(zip(chains, done, strict=True)):
            if at == len(chain) or chain[at][2] > first:
                continue
            what, value = chain[at][:2]
            later = (*done[:number], at + 1, *done[number + 1 :])
            if what == "take" and value != (held[0] if held else None):
                continue
            if explains(later, (*held, value) if what == "put" else held[1:]):
                return True
        return False

    return explains((0,) * len(chains), ())


def random_history(rng: Random, unique: bool) -> list[Operation]:
    """A queue whose operations take effect between their calls and returns; some answers are wrong."""
    values, size, fresh = rng.randint(1, VALUES), rng.randint(3, 8), count()
    held: list[int] = []
    clock = begun = 0
    waiting: list[list[Any]] = []  # function, input, call, answer so far, whether it took effect
    made: list[Operation] = []
    while begun < size or waiting:
        clock += 1
        if begun < size and len(waiting) < 4 and rng.random() < 0.5:
            f = rng.choice(["enqueue", "enqueue", "dequeue", "dequeue", "drain"])
            value = next(fresh) if unique else rng.randrange(values)
            waiting.append([f, value if f == "enqueue" else None, clock, [], False])
            begun += 1
            continue
        if not waiting:
            continue
        entry = rng.choice(waiting)
        f, given, call, answer, over = entry
        if not over:
            if f == "enqueue":
                held.append(given)
            else:
                answer.append(held.pop(0) if held else None)
            entry[4] = f != "drain" or answer[-1] is None
            continue
        waiting.remove(entry)
        output = given if f == "enqueue" else answer[0] if f == "dequeue" else tuple(answer[:-1])
        if f == "dequeue" and rng.random() < 0.1:
            output = rng.choice([None, *range(VALUES)])
        ret = None if rng.random() < 0.1 else clock
        made.append(Operation(f, given, output if ret else None, None, call, "", call, ret, ret))
    return sorted(made, key=lambda o: o.call)


KNOWN = {known.name: known for known in (QUEUE_OBJECT, STACK_OBJECT)}


def judged(known: KnownObject, operations: Sequence[Operation]) -> ObjectFinding:
    return known.judge(operations, Budget(steps=20_000_000))


@pytest.mark.parametrize("unique", [False, True])
def test_verdicts_on_a_queue_with_drains_equal_those_of_brute_force(unique: bool) -> None:
    """Every order counts, and a lost value is a violation of its own where the last drain proves it."""
    seen = Counter[bool]()
    for seed in range(500):
        operations = random_history(Random(seed), unique)
        found = judged(QUEUE_OBJECT, operations)
        assert not found.reason, (seed, found.reason)
        assert bool(found.violations) is not brute_force(operations), (seed, operations)
        seen[bool(found.violations)] += 1
    assert min(seen.values()) > 10, seen


@pytest.mark.parametrize("kind", NAMES)
def test_orders_of_many_equal_values_are_found_without_a_search(kind: str) -> None:
    """Up to ten operations run at once, and a tenth of them has no answer."""
    put, take = NAMES[kind]
    for seed in range(8):
        few = Simulated((), any_of((put, range(3)), (take, None)), queue_do if kind == "queue" else stack_do, no_lie)
        operations = operations_of(history(few, Random(seed), 100, 10, 0.1, 0))
        found = judged(KNOWN[kind], operations)
        assert (found.violations, found.reason, found.steps) == ((), "", len(operations)), seed


def together(f: str, values: Sequence[int], begins: int, answers: bool = False) -> list[Operation]:
    """Return operations that all overlap."""
    ends = begins + len(values)
    return [
        Operation(f, None if answers else value, value, None, n, "", begins + n, ends + n, ends + n)
        for n, value in enumerate(values)
    ]


def in_turn(f: str, values: Sequence[int], begins: int) -> list[Operation]:
    return [
        Operation(f, None, value, None, 0, "", begins + 2 * n, begins + 2 * n + 1, begins + 2 * n + 1)
        for n, value in enumerate(values)
    ]


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("different", [1, 2, 5])
def test_any_order_of_concurrent_puts_needs_no_search(kind: str, different: int) -> None:
    put, take = NAMES[kind]
    values = [n % different for n in range(60)]
    taken = Random(1).sample(values, len(values))
    puts = together(put, values, 0)
    for takes in (in_turn(take, taken, 1000), together(take, taken, 1000, answers=True)):
        found = judged(KNOWN[kind], [*puts, *takes])
        assert (found.violations, found.reason) == ((), "")
        assert found.steps <= 120


def test_an_enqueue_may_come_between_the_dequeues_of_a_drain() -> None:
    """The drain took 1 before 2 was enqueued behind it, and 1 again after that; no drain at one moment does so."""
    operations = [
        Operation("enqueue", 1, 1, None, 0, "", 0, 1, 1),
        Operation("drain", None, (1, 2, 1), None, 1, "", 2, 9, 9),
        Operation("enqueue", 2, 2, None, 0, "", 3, 4, 4),
        Operation("dequeue", None, None, None, 2, "", 5, None, None),
        Operation("enqueue", 1, 1, None, 0, "", 6, 7, 7),
    ]
    assert not judged(QUEUE_OBJECT, operations).violations


def test_repeated_values_out_of_order_are_found_without_a_search() -> None:
    """1,000 values that repeat were put there one after another, and the last two came out in the wrong order."""
    values = [n % 7 for n in range(1_000)]
    puts = [Operation("enqueue", v, v, None, 0, "", 2 * n, 2 * n + 1, 2 * n + 1) for n, v in enumerate(values)]
    [violation] = judged(
        QUEUE_OBJECT, [*puts, *in_turn("dequeue", [*values[:-2], values[-1], values[-2]], 5_000)]
    ).violations
    assert (violation.kind, violation.index) == ("no order", 5_000 + 2 * 998 + 1)
