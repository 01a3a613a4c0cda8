"""Witnesses of sets, logs, queues, counters, locks and ids: an object reduced to the few values concerned."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from simulated_objects import OBJECTS, event, history, mixed_up, one_process, renumbered

from checkers.base import independent_search as search
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity, Witness
from checkers.by_hand import judge_events
from checkers.models.model import Operation, operations_of
from checkers.models.objects import append_log, queue, sets

SOURCES = ("set", "append-log", "counter", "queue with drains", "unique-ids", "mutex")


def wrong_histories(name: str, wanted: int) -> list[tuple[list[Event], tuple[Witness, ...]]]:
    rng, found = Random(name), []
    while len(found) < wanted:
        what = OBJECTS[name]
        events = history(what.make(rng), rng, rng.randint(2, 12), 3, 0.0 if name == "mutex" else 0.1, 2)
        events = mixed_up(events, rng, 4) if name == "mutex" else events
        verdict = judge_events(events, what.model)
        if verdict.validity is Validity.INVALID:
            found.append((events, verdict.witnesses))
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_every_witness_says_what_was_before_why_nothing_else_fits_and_what_would(name: str) -> None:
    kinds: Counter[str] = Counter()
    for events, witnesses in wrong_histories(name, 100):
        for witness in witnesses:
            facts = witness.facts
            kinds[witness.kind] += 1
            assert facts["states_before"] and facts["why"] and facts["expected"]
            assert facts["rejudged"] is True
            assert [e for e in events if e.index in {row["index"] for row in witness.events}], "rows of the history"
            letters = facts["letters"]
            assert facts["culprit"] in letters.values()
            answered = {str(o.call) for o in operations_of(events) if o.returned} & set(letters)
            placed = {str(step["call"]) for step in facts["order"]["steps"]}
            assert answered - placed, "the longest legal order leaves an answer without its place"
    assert len(kinds) > (name not in ("unique-ids", "mutex")), kinds


def of_set(operations: list[Operation], rng: Random) -> tuple[Any, list[Operation]]:
    at_stake = rng.sample(range(6), rng.randint(1, 2))
    return sets.seen_through(at_stake), [o for o in operations if o.f == "read" or o.input in at_stake]


def of_log(operations: list[Operation], rng: Random) -> tuple[Any, list[Operation]]:
    appended = [o.input for o in operations if o.f == "append"]
    at_stake = rng.sample(appended, min(len(appended), rng.randint(0, 2)))
    return append_log.seen_through(at_stake), [o for o in operations if o.f == "read" or o.input in at_stake]


def of_queue(operations: list[Operation], rng: Random) -> tuple[Any, list[Operation]]:
    values = rng.sample(range(3), rng.randint(1, 2))
    involved = [
        o for o in operations if o.input in values or {*values} & {*queue.NAMES.taken_by(o)} or o.output in (None, ())
    ]
    return queue.seen_through(values), [o for o in involved if o.f != "enqueue" or o.input in values]


@pytest.mark.parametrize(
    ("name", "through"),
    [
        ("set", of_set),
        ("append-log", of_log),
        ("append-log with some offsets", of_log),
        ("queue with drains", of_queue),
    ],
)
def test_what_is_right_of_the_whole_is_right_of_any_part(name: str, through: Any) -> None:
    """Answered dequeues only: one that was not may have taken anything."""
    rng = Random(7)
    for _ in range(400):
        crash = rng.choice([0, 0.15])
        events = history(OBJECTS[name].make(rng), rng, rng.randint(2, 12), rng.randint(1, 4), crash, 0)
        operations = [o for o in operations_of(events) if o.returned or o.f in ("add", "append", "enqueue")]
        if any(o.f in ("dequeue", "drain") and not o.returned for o in operations_of(events)):
            continue
        smaller, part = through(operations, rng)
        assert search.linearizable(part, [smaller.init()], smaller.step), events


def test_values_that_no_read_shows_do_not_multiply_the_states_of_a_log() -> None:
    for answer in ([], [2, 1]):
        appended = [(process, process, process) for process in range(8)] + [(8, 99, [99, 11])]
        events = [event(0, process, Type.INVOKE, "append", value) for process, value, _ in appended]
        events.append(event(0, 9, Type.INVOKE, "read", None))
        events += [event(0, process, Type.OK, "append", answered) for process, _, answered in appended]
        events.append(event(0, 9, Type.OK, "read", answer))
        verdict = judge_events(renumbered(events), "append-log")
        assert verdict.validity is Validity.VALID
        assert verdict.looked_at["steps"] < 5_000_000


def only(events: list[Event], model: str) -> Witness:
    [witness] = judge_events(events, model).witnesses
    return witness


def test_a_lost_element_comes_with_its_add_and_nothing_else() -> None:
    added = [("add", n, n) for n in range(50)]
    witness = only(one_process(*added, ("read", None, [n for n in range(50) if n != 7])), "set")
    assert [row["index"] for row in witness.events] == [14, 15, 100, 101]
    assert witness.facts["states_before"] == ["{}"]
    assert witness.facts["order"]["steps"] == [{"call": 14, "holds": "{7}"}]
    assert witness.facts["why"] == [
        "A set that only grows holds an element once, and what is in it stays there",
        "The add of 7 had returned (index 15) before the read was invoked (index 100), "
        "so it comes first in every order",
        "Only 7 matters here; all else is left out",
        "An independent search tried every order of these 2 operations and found none that fits",
    ]


def test_two_values_at_one_offset_come_with_both_readers() -> None:
    events = one_process(("append", "a", ["a", 0]), ("read", None, ["a", "b"]), ("append", "b", "b"))
    events += one_process(("append", "c", "c"), ("read", None, ["a", "c"]))
    witness = only(renumbered(events), "append-log")
    assert witness.kind == "two values at one offset"
    assert [row["index"] for row in witness.events] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert witness.facts["states_before"] == ["[]"]


def test_a_queue_says_how_often_the_value_was_there() -> None:
    many = [("enqueue", n % 3, n % 3) for n in range(30)]
    witness = only(one_process(*many, *[("dequeue", None, n % 3) for n in range(30)], ("dequeue", None, 1)), "queue")
    assert witness.kind == "duplicate"
    assert "taken 11 times, and put there 10 times" in witness.summary
    assert witness.facts["states_before"] == ["[]"]
    assert witness.facts["order"]["steps"][9]["holds"] == "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"


def test_the_past_of_a_value_taken_very_often_is_replaced_by_how_often_it_is_there() -> None:
    often = [("enqueue", 1, 1), ("dequeue", None, 1)] * 500
    witness = only(one_process(*often, ("dequeue", None, 1)), "queue")
    assert len(witness.events) == 2
    assert witness.facts["states_before"] == ["[]"]
    assert witness.facts["rejudged"] is True


def test_a_counter_of_many_open_adds_tells_the_least_and_the_greatest_sum() -> None:
    def adds_then_read(count: int) -> list[Event]:
        events = [Event(n, n, n + 1, Type.INVOKE, "add", None, 1) for n in range(count)]
        return [*events, *one_process(("read", None, -1))]

    few, many = (only(renumbered(adds_then_read(count)), "counter") for count in (3, 80))
    assert few.facts["states_before"] == ["0", "1", "2", "3"]
    assert many.facts["states_before"] == ["0 to 80"]
    assert few.facts["rejudged"] and many.facts["rejudged"]
