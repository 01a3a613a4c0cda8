"""Queues into which every value is put once: the four things that can be wrong, against the independent search."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from simulated_objects import Simulated, event, history, one_process, searched
from test_projected_witness import drained

from checkers.base.history import Event, Type
from checkers.base.independent_search import SearchExhausted
from checkers.base.verdict import Validity
from checkers.by_hand.judge_events import judge_events
from checkers.models.model import operations_of
from checkers.models.objects import fifo
from checkers.models.objects.queue import QUEUE

VALID, INVALID, UNKNOWN = Validity.VALID, Validity.INVALID, Validity.UNKNOWN


def queue_of_unique_values(*fs: str) -> Simulated:
    """Now and then it is said that another value, or none, was taken."""
    fresh = count()

    def ask(rng: Random, _: int) -> tuple[str, Any]:
        f = rng.choice(fs)
        return f, next(fresh) if f == "enqueue" else None

    def lie(rng: Random, f: str, was: Any) -> Any:
        return rng.choice([None, *range(8)]) if f == "dequeue" else was

    return Simulated((), ask, drained, lie)


def compare(rng: Random, cases: int, sizes: tuple[int, int], crashes: tuple[float, ...]) -> Counter[Any]:
    seen = Counter[Any]()
    for _ in range(cases):
        what = queue_of_unique_values("enqueue", "dequeue", *(["enqueue"] if rng.random() < 0.5 else []))
        events = history(what, rng, rng.randint(*sizes), rng.randint(1, 4), rng.choice(crashes), rng.choice([0, 1, 2]))
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
    seen = compare(Random(2), 100, (20, 40), (0, 0.01))
    assert seen["not tried"] < 20 < seen[True], seen


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_it_agrees_with_the_independent_search_all_night(part: int, night: Random) -> None:
    compare(night, 250_000, (2, 12), (0, 0, 0.15))


def with_drains(events: list[Event]) -> list[Event]:
    """Dequeues of one process, one after another, of which the last found nothing, are told as one drain."""
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
    return [replace(kept[at], index=index) for index, at in enumerate(sorted(kept))]


def test_a_drain_among_others_is_no_alarm_and_one_by_itself_is_decided() -> None:
    rng, seen = Random(3), Counter[Any]()
    for _ in range(2500):
        what = queue_of_unique_values("enqueue", "dequeue", "dequeue")
        crash = rng.choice([0, 0, 0.1])
        events = history(what, rng, rng.randint(2, 14), rng.randint(1, 3), crash, rng.choice([0, 1]))
        if not any(e.type is Type.OK for e in events):
            continue  # nothing was answered: unknown
        expected = searched(events, (), QUEUE.step, set())
        told = with_drains(events)
        verdict = judge_events(told, "queue")
        alone = fifo.overlapping_drain(operations_of(told), but_open_takes=False) is None
        if alone:
            assert verdict.validity is (VALID if expected else INVALID), (verdict.reason, told)
        elif expected:
            assert verdict.validity is not INVALID, told
        seen[alone, expected] += any(e.f == "drain" for e in told)
    assert min(seen.values()) > 30, seen


def test_what_came_out_too_early_is_told_with_what_should_have_come() -> None:
    put = [("enqueue", n, n) for n in range(20)]
    events = one_process(*put, *[("dequeue", None, n) for n in (0, 1, 2, 7, 3, 4, 5, 6)])
    [witness] = judge_events(events, "queue").witnesses
    assert witness.kind == "out of order"
    assert witness.summary == "7 came out of the queue before 6, which was put there before it"
    assert [row["index"] for row in witness.events] == [12, 13, 14, 15, 46, 47, 54, 55]
    assert witness.facts["order"]["steps"][-1]["holds"] == "[6, 7]"


def test_nothing_found_in_a_queue_that_was_never_empty_is_told_with_the_values_in_turn() -> None:
    def step(process: int, kind: Type, f: str, value: Any = None) -> Event:
        return event(0, process, kind, f, value)

    inv, ok = Type.INVOKE, Type.OK
    steps = [step(0, inv, "enqueue", 1), step(0, ok, "enqueue", 1), step(9, inv, "dequeue")]
    steps += [step(0, inv, "enqueue", 2), step(0, ok, "enqueue", 2), step(1, inv, "dequeue"), step(1, ok, "dequeue", 1)]
    steps += [step(9, ok, "dequeue"), step(1, inv, "dequeue"), step(1, ok, "dequeue", 2)]
    [witness] = judge_events([replace(e, index=index) for index, e in enumerate(steps)], "queue").witnesses
    assert (witness.kind, witness.summary) == ("not empty", "a dequeue found nothing while 1 and 2 were there")
    moved = [*steps[:3], *steps[5:7], *steps[3:5], *steps[7:]]
    assert judge_events([replace(e, index=index) for index, e in enumerate(moved)], "queue").validity is VALID


def test_a_dequeue_without_an_answer_may_have_taken_what_nobody_else_took() -> None:
    put = one_process(("enqueue", 1, 1), ("enqueue", 2, 2))
    lost = [event(4, 5, Type.INVOKE, "dequeue", None), event(5, 5, Type.INFO, "dequeue", None)]
    took = [event(6, 0, Type.INVOKE, "dequeue", None), event(7, 0, Type.OK, "dequeue", 2)]
    assert judge_events([*put, *lost, *took], "queue").validity is VALID
    without = [replace(e, index=index) for index, e in enumerate([*put, *took])]
    assert judge_events(without, "queue").validity is INVALID


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("push", 1, 1), "push is not an operation of a queue"),
        (("drain", None, 7), "a drain answered 7, which is no list"),
    ],
)
def test_what_no_queue_can_do_or_answer_is_unknown(asked: tuple[str, Any, Any], words: str) -> None:
    verdict = judge_events(one_process(("enqueue", 1, 1), asked), "queue")
    assert verdict.validity is UNKNOWN
    assert words in verdict.reason
