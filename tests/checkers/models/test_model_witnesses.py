"""Content of a witness of a small model besides its window: the longest legal order, and right answers.

The past of a small object, replaced by its possible resulting states: never creating a violation, and short.

Witnesses of sets, logs, queues, counters, locks and ids: an object reduced to the few values concerned.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest
from simulated_objects import OBJECTS, Simulated, event, every_state_before, history, mixed_up, one_process, renumbered

from checkers.base import independent_search as search
from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.verdict import Validity, Witness
from checkers.by_hand import judge_events
from checkers.models import witnesses
from checkers.models.model import REFUSED, Model, Operation, operations_of, plain
from checkers.models.objects import append_log, queue, sets
from checkers.models.objects.counter import COUNTER
from checkers.models.objects.queue import QUEUE
from checkers.models.past import RestOfHistory, shortest_rest, states_at_calls
from checkers.models.search import cut_at, judge_object
from checkers.registers.judge_history import CAS_REGISTER

KEEPER = Model("keeper", init=lambda: 0, step=lambda s, o: _kept(s, o), observers=frozenset({"read"}))


def _kept(state: Any, operation: Operation) -> Any:
    """A register whose swaps answer with the previous value."""
    if operation.f == "read":
        return state if operation.output == state else REFUSED
    if operation.f == "swap":
        return operation.input if not operation.returned or operation.output == state else REFUSED
    return operation.input


def random_history(rng: Random, functions: Sequence[str], count: int) -> list[Event]:
    """Operations of three processes whose answers are guesses: most of these histories have no order."""
    events: list[Event] = []
    busy: dict[int, tuple[str, int]] = {}
    invoked = 0
    while invoked < count or busy:
        process = rng.randrange(3)
        index = len(events)
        if process in busy:
            f, given = busy.pop(process)
            answer = rng.randrange(4) if f in ("read", "swap") else given
            events.append(Event(index, 0, process, Type.OK, f, None, answer))
        elif invoked < count:
            f, given = rng.choice(functions), rng.randrange(1, 4)
            busy[process] = f, given
            events.append(Event(index, 0, process, Type.INVOKE, f, None, None if f == "read" else given))
            invoked += 1
    return events


def without_order(
    model: Model, functions: Sequence[str], wanted: int
) -> list[tuple[list[Operation], dict[str, Any], int]]:
    """(operations, facts, index of the answer that no order explains) of histories without any."""
    rng, found = Random(5), []
    while len(found) < wanted:
        events = random_history(rng, functions, rng.randint(2, 9))
        verdict = judge_events(events, model)
        if not verdict.witnesses:
            continue
        [witness] = verdict.witnesses
        facts = dict(witness.facts)
        call = next(int(c) for c, letter in facts["letters"].items() if letter == facts["culprit"])
        operations = operations_of(events)
        [culprit] = [o for o in operations if o.call == call]
        assert culprit.ret is not None
        found.append((operations, facts, culprit.ret))
    return found


CASES = [(KEEPER, ("read", "write", "swap")), (COUNTER, ("read", "add"))]


@pytest.mark.parametrize(("model", "functions"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_what_is_called_right_would_have_been_right_in_the_whole_history(
    model: Model, functions: Sequence[str]
) -> None:
    checked = 0
    for operations, facts, index in without_order(model, functions, 150):
        words = facts["expected"].removeprefix("an answer of ")
        for word in words.split(" or ") if words != facts["expected"] else ():
            if "others" in word:
                continue
            answer = ast.literal_eval(word)
            other = [replace(o, output=answer) if o.ret == index else o for o in operations]
            assert judge_object(model, cut_at(other, index), Budget()).linearizable, facts
            checked += 1
    assert checked > 100


@pytest.mark.parametrize(("model", "functions"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_the_longest_order_is_legal_and_lacks_something_that_was_answered(
    model: Model, functions: Sequence[str]
) -> None:
    for operations, facts, index in without_order(model, functions, 150):
        window = {
            o.call: replace(o, output=None, ret=None) if facts["letters"][str(o.call)] in facts["under_way"] else o
            for o in cut_at(operations, index)
            if str(o.call) in facts["letters"]
        }
        order = [window[step["call"]] for step in facts["order"]["steps"]]
        left = [o for o in window.values() if o not in order]
        assert any(o.returned for o in left)
        for place, operation in enumerate(order):
            still = [*order[place + 1 :], *left]
            assert all(o.ret is None or o.ret > operation.call for o in still), "real time is respected"
        state: Any = ast.literal_eval(facts["order"]["begins"])
        for operation, step in zip(order, facts["order"]["steps"], strict=True):
            state = model.step(state, operation)
            assert repr(state) == step["holds"]
        assert len(order) == len(window) or not search.linearizable(
            list(window.values()),
            [ast.literal_eval(w) for w in facts["states_before"]],
            model.step,  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(("model", "functions"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_the_window_ends_at_the_first_answer_that_brute_force_cannot_explain(
    model: Model, functions: Sequence[str]
) -> None:
    rng, invalid = Random(6), 0
    for _ in range(400):
        events = random_history(rng, functions, rng.randint(2, 6))
        operations = operations_of(events)
        returns = sorted(o.ret for o in operations if o.ret is not None)
        first = next((i for i in returns if not every_state_before(model, cut_at(operations, i), i)), None)
        found = judge_events(events, model).witnesses
        assert bool(found) == (first is not None), events
        for witness in found:
            assert witness.facts["rejudged"] is True
            assert f"(index {first})" in witness.summary
            invalid += 1
    assert 50 < invalid < 390


def test_a_model_that_fails_on_an_answer_that_was_tried_is_reported_in_the_witness() -> None:
    def strict(state: Any, operation: Operation) -> Any:
        if operation.f == "read":
            return state if operation.output + 0 == state else REFUSED  # None + 0 raises
        return operation.input

    model = Model("strict", init=lambda: 0, step=strict, observers=frozenset({"read"}))
    events = [Event(0, 0, 0, Type.INVOKE, "read", None), Event(1, 0, 0, Type.OK, "read", None, 3)]
    [witness] = judge_events(events, model).witnesses
    assert witness.facts["expected"] == "an answer of 0"
    note = witness.facts["note"]
    assert note.startswith("An answer could not be tried in place of the wrong one: the model strict failed on read()")
    assert "(index 0): TypeError" in note


def test_where_the_model_fails_on_every_other_answer_the_witness_does_not_claim_that_none_is_right() -> None:
    def stricter(state: Any, operation: Operation) -> Any:
        if operation.f == "read" and operation.output != 3:
            raise KeyError(operation.output)
        return REFUSED if operation.f == "read" else operation.input

    model = Model("stricter", init=lambda: 0, step=stricter, observers=frozenset({"read"}))
    events = [Event(0, 0, 0, Type.INVOKE, "read", None), Event(1, 0, 0, Type.OK, "read", None, 3)]
    [witness] = judge_events(events, model).witnesses
    assert "the model failed" in witness.facts["expected"]
    assert "KeyError" in witness.facts["note"]


def test_a_mistake_of_the_harness_is_not_taken_for_one_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(witnesses, "_explained", broken)
    events = [Event(0, 0, 0, Type.INVOKE, "read", None), Event(1, 0, 0, Type.OK, "read", None, 3)]
    with pytest.raises(ZeroDivisionError):
        judge_events(events, KEEPER)


def test_a_state_is_written_the_same_in_every_process() -> None:
    assert plain((frozenset({"b", "a"}), (1,), (), None, ("x", 2))) == "({'a', 'b'}, (1,), (), nil, ('x', 2))"


def test_a_witness_that_cannot_be_minimised_ends_with_the_first_answer_that_no_order_explains() -> None:
    """Sums are even, and one read among thousands is odd.  Such a read makes every state before it hopeless."""
    sums = Simulated(
        0,
        lambda rng, _: rng.choice([("add", 2), ("add", 4), ("add", -2), ("read", None), ("read", None)]),
        lambda state, f, value: (state, state) if f == "read" else (state + value, value),
        lambda rng, f, was: was,
    )
    events = history(sums, Random(1), 1200, 8, 0.005, 0)
    wrong = next(e.index for e in events[len(events) // 2 :] if e.type is Type.OK and e.f == "read")
    events[wrong] = replace(events[wrong], value=events[wrong].value + 1)  # type: ignore[operator]
    (witness,) = judge_events(events, "counter").witnesses
    assert wrong in {row["index"] for row in witness.events}
    assert f"index {wrong}" in witness.summary


MODELS = {"queue": QUEUE, "counter": COUNTER, "register": CAS_REGISTER}


def has_order(model: Model, rest: RestOfHistory) -> bool:
    return search.linearizable(
        cast(Sequence[search.RegisterOperation], rest.operations), rest.states, cast(search.Model, model.step)
    )


@pytest.mark.parametrize("name", MODELS)
def test_no_violation_is_made_and_none_is_lost(name: str) -> None:
    model, rng = MODELS[name], Random(name)
    simulated = OBJECTS[name].make(rng)
    seen = {True: 0, False: 0}
    shorter = 0
    for _ in range(250):
        events = history(
            simulated, rng, rng.randint(3, 14), rng.randint(1, 4), rng.choice([0, 0.2]), rng.choice([0, 1])
        )
        operations = [o for o in operations_of(events) if o.returned or o.f not in model.observers]
        whole = RestOfHistory((model.init(),), tuple(operations))
        right = has_order(model, whole)
        tried: list[RestOfHistory] = []

        def impossible(rest: RestOfHistory, tried: list[RestOfHistory] = tried) -> bool:
            tried.append(rest)
            return not has_order(model, rest)

        rest = shortest_rest(model, operations, 10**9, impossible)
        if right:
            assert rest == whole
            assert all(has_order(model, each) for each in tried)
        else:
            assert not has_order(model, rest)
            shorter += len(rest.operations) < len(operations)
        seen[right] += 1
    assert min(seen.values()) > 20, seen
    assert shorter > seen[False] / 2


def states_after_some(model: Model, state: Any, under_way: Sequence[Operation]) -> set[Any]:
    """Return the states after any of the open operations, in any order, from one state."""
    found = {state}
    for chosen in under_way:
        after = model.step(state, chosen)
        if after is not REFUSED:
            found |= states_after_some(model, after, [o for o in under_way if o is not chosen])
    return found


@pytest.mark.parametrize("name", MODELS)
def test_states_at_every_call_are_those_of_brute_force(name: str) -> None:
    """None is made up; and each one that is missing comes of one that is there, by what was under way."""
    model, rng = MODELS[name], Random(name)
    simulated = OBJECTS[name].make(rng)
    moments = ambiguous = 0
    for _ in range(200):
        events = history(
            simulated, rng, rng.randint(2, 7), rng.randint(1, 4), rng.choice([0, 0.2]), rng.choice([0, 0, 1])
        )
        operations = [o for o in operations_of(events) if o.returned or o.f not in model.observers]
        for moment, states in states_at_calls(model, operations):
            possible = every_state_before(model, operations, moment)
            assert states <= possible, (events, moment)
            under_way = [o for o in operations if o.call < moment and (o.ret is None or o.ret > moment)]
            assert possible <= set().union(*(states_after_some(model, s, under_way) for s in states)), (events, moment)
            moments += 1
            ambiguous += len(states) > 1
    assert moments > 500
    assert ambiguous > 10


def test_states_at_a_call_are_those_some_order_has_come_to() -> None:
    two_at_once = [event(0, 0, Type.INVOKE, "write", 1), event(1, 1, Type.INVOKE, "write", 2)]
    two_at_once += [event(2, 0, Type.OK, "write", 1), event(3, 1, Type.OK, "write", 2)]
    two_at_once += [event(4, 0, Type.INVOKE, "read", None), event(5, 0, Type.OK, "read", 2)]
    moments = states_at_calls(CAS_REGISTER, operations_of(two_at_once))
    assert moments[0] == (0, frozenset({None}))
    assert moments[-1] == (4, frozenset({1, 2}))


def behind(first: Event, events: Sequence[Event]) -> list[Event]:
    return [first, *(replace(e, index=e.index + 1) for e in events)]


def witness_of(events: Sequence[Event], model: str | Model) -> Witness:
    [witness] = judge_events(events, model).witnesses
    assert witness.facts["rejudged"] is True
    return witness


def test_an_operation_never_answered_does_not_keep_the_whole_past_in_the_witness() -> None:
    right = [("enqueue", n, n) if even else ("dequeue", None, n) for n in [*range(59), 0] for even in (True, False)]
    wrong = [("enqueue", 90, 90), ("enqueue", 91, 91), ("dequeue", None, 91), ("dequeue", None, 90)]
    witness = witness_of(behind(event(0, 77, Type.INVOKE, "enqueue", 555), one_process(*right, *wrong)), "queue")
    assert [e["f"] for e in witness.events] == ["enqueue", "dequeue", "dequeue"]
    assert "(90, 91)" in witness.facts["states_before"]
    assert "A: enqueue(555), never answered" in witness.facts["why"]
    assert witness.facts["expected"] == "an answer of 555 or 90"


def test_an_operation_under_way_and_answered_later_is_shown_as_such() -> None:
    events = behind(event(0, 7, Type.INVOKE, "write", 5), one_process(("write", 1, 1), ("read", None, 1)))
    more = [event(5, 0, Type.INVOKE, "read", None), event(6, 7, Type.OK, "write", 5), event(7, 0, Type.OK, "read", 9)]
    witness = witness_of(events + more, CAS_REGISTER)
    assert witness.facts["states_before"] == ["1", "5"] or witness.facts["states_before"] == ["1"]
    assert "A: write of 5, which was under way before this window and may have happened" in witness.facts["why"]
    assert witness.facts["expected"] == "an answer of 1 or 5"


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
    for events, found in wrong_histories(name, 100):
        for witness in found:
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
        "A set that only grows contains an element at most once, and elements never leave the set",
        "The add of 7 had returned (index 15) before the read was invoked (index 100), "
        "so it comes first in every order",
        "Only 7 matters here; operations on other values are left out",
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
