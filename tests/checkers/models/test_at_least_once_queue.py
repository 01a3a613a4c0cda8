"""Queues that deliver at least once, against every order of small histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

from checkers.base.checker import Budget
from checkers.base.independent_search import linearizable
from checkers.models.model import Operation
from checkers.models.objects.queue import judge_deliveries

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
