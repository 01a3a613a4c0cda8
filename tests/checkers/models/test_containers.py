"""Stack, priority queue, semaphore and multi-register: against the independent search, by example, and large."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from simulated_objects import Simulated, event, history, one_process, searched

from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.independent_search import SearchExhausted
from checkers.base.verdict import Validity
from checkers.by_hand.judge_events import judge_events
from checkers.by_hand.judge_file import Ask, judge_as
from checkers.models.model import REFUSED, Operation
from harness.judge.check_files import check


def stack_step(state: tuple[int, ...], operation: Operation) -> object:
    if operation.f == "push":
        return (*state, operation.input)
    if not operation.returned:
        return state[:-1]
    if operation.output is None:
        return REFUSED if state else state
    return state[:-1] if state[-1:] == (operation.output,) else REFUSED


def priority_step(state: frozenset[int] | tuple[int, ...], operation: Operation) -> object:
    left = sorted(state)
    if operation.f == "insert":
        return tuple(sorted([*left, operation.input]))
    if not operation.returned:
        return tuple(left[1:])
    if operation.output is None:
        return REFUSED if left else state
    return tuple(left[1:]) if left[:1] == [operation.output] else REFUSED


def semaphore_step(state: int, operation: Operation) -> object:
    after = state + (operation.input or 1) * (1 if operation.f == "acquire" else -1)  # type: ignore[operator]
    return after if 0 <= after <= 3 else REFUSED


def taken_from(put: str, take: str, at: Callable[[Sequence[int]], int]) -> Callable[[Any, str, Any], tuple[Any, Any]]:
    def do(state: tuple[int, ...], f: str, value: Any) -> tuple[Any, Any]:
        if f == put:
            return (*state, value), value
        if not state:
            return state, None
        place = at(state)
        return state[:place] + state[place + 1 :], state[place]

    return do


class Fresh:
    """Puts and takes of values that are all different, or that repeat."""

    def __init__(self, put: str, take: str, rng: Random) -> None:
        self.names, self.unique, self.used = (put, take), rng.random() < 0.8, set[int]()

    def __call__(self, rng: Random, process: int) -> tuple[str, Any]:
        if rng.random() < 0.5:
            return self.names[1], None
        value = rng.randrange(40)
        while self.unique and value in self.used:
            value = rng.randrange(10**6)
        self.used.add(value)
        return self.names[0], value


class Permits:
    """Each process acquires up to two permits and releases them; sometimes more than it has."""

    def __init__(self) -> None:
        self.holds: dict[int, int] = {}

    def __call__(self, rng: Random, process: int) -> tuple[str, Any]:
        held = self.holds.get(process, 0)
        if held and rng.random() < 0.7:
            self.holds[process] = 0
            return "release", held
        count = rng.choice([1, 1, 2])
        self.holds[process] = held + count
        return "acquire", count


def permits_do(permits: int) -> Callable[[int, str, Any], tuple[int, Any] | None]:
    def do(state: int, f: str, value: Any) -> tuple[int, Any] | None:
        after = state + (value if f == "acquire" else -value)
        return (after, value) if 0 <= after <= permits else None

    return do


def lied(put: str, rng: Random, f: str, was: Any) -> Any:
    return was if f == put else rng.choice([None, rng.randrange(40), was])


def simulated(name: str, rng: Random) -> tuple[Simulated, Any, Callable[[Any, Operation], object]]:
    if name == "stack":
        do = taken_from("push", "pop", lambda state: len(state) - 1)
        return Simulated((), Fresh("push", "pop", rng), do, lambda *a: lied("push", *a)), (), stack_step
    if name == "priority-queue":
        do = taken_from("insert", "extract-min", lambda state: state.index(min(state)))
        ask = Fresh("insert", "extract-min", rng)
        return Simulated((), ask, do, lambda *a: lied("insert", *a)), (), priority_step
    return Simulated(0, Permits(), permits_do(rng.choice([3, 3, 4, 5])), lambda rng, f, was: was), 0, semaphore_step


def with_answers_moved(events: list[Event], rng: Random) -> list[Event]:
    """Some completions come earlier than they did, which may contradict every order."""
    moved = list(events)
    for _ in range(2):
        at = rng.randrange(1, len(moved))
        while (
            at > 1 and moved[at].type is Type.OK and moved[at - 1].process != moved[at].process and rng.random() < 0.8
        ):
            moved[at - 1], moved[at] = moved[at], moved[at - 1]
            at -= 1
    return [replace(e, index=index, time_ns=index) for index, e in enumerate(moved)]


def compare(name: str, rng: Random, cases: int, sizes: tuple[int, int] = (2, 12)) -> dict[Any, int]:
    """Raises AssertionError if a verdict differs from the independent search."""
    seen = {True: 0, False: 0}
    while sum(seen.values()) < cases:
        what, init, step = simulated(name, rng)
        lies = 0 if name == "semaphore:3" else rng.choice([0, 1, 2])
        events = history(what, rng, rng.randint(*sizes), rng.randint(1, 4), rng.choice([0, 0, 0.1]), lies)
        if name == "semaphore:3" or rng.random() < 0.3:
            events = with_answers_moved(events, rng)
        verdict = judge_events(events, name)
        if (verdict.validity is Validity.UNKNOWN and "nothing" in verdict.reason) or not any(
            e.type is Type.OK and e.f in ("pop", "extract-min", "acquire", "release") for e in events
        ):
            continue
        try:
            expected = searched(events, init, step, set())
        except SearchExhausted:
            continue
        assert verdict.validity is (Validity.VALID if expected else Validity.INVALID), (verdict.reason, events)
        if not expected:
            assert all(w.facts.get("rejudged", True) for w in verdict.witnesses), verdict.witnesses
        seen[expected] += 1
    return seen


@pytest.mark.parametrize("name", ["stack", "priority-queue", "semaphore:3"])
def test_a_container_agrees_with_the_independent_search(name: str) -> None:
    seen = compare(name, Random(name), 250)
    assert min(seen.values()) > 25, seen


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", ["stack", "priority-queue", "semaphore:3"])
def test_a_container_agrees_with_the_independent_search_all_night(name: str, part: int, night: Random) -> None:
    print(compare(name, night, 25_000), compare(name, night, 500, (12, 30)))


CASES: dict[str, tuple[str, list[tuple[str, Any, Any]], str]] = {
    "popped out of order": ("stack", [("push", 1, 1), ("push", 2, 2), ("pop", None, 1)], "out of order"),
    "popped twice": ("stack", [("push", 1, 1), ("pop", None, 1), ("pop", None, 1)], "duplicate"),
    "popped from nowhere": ("stack", [("pop", None, 7)], "value from nowhere"),
    "a larger one first": (
        "priority-queue",
        [("insert", 2, 2), ("insert", 1, 1), ("extract-min", None, 2)],
        "out of order",
    ),
    "nothing, while one was there": ("priority-queue", [("insert", 2, 2), ("extract-min", None, None)], "out of order"),
    "one permit too many": ("semaphore:1", [("acquire", None, None), ("acquire", None, None)], "no order"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_has_a_name(case: str) -> None:
    model, steps, kind = CASES[case]
    verdict = judge_events(one_process(*steps), model)
    assert verdict.validity is Validity.INVALID
    assert [w.kind for w in verdict.witnesses][:1] == ["too many held" if "semaphore" in model else kind]


def test_a_value_stays_because_a_smaller_one_is_there() -> None:
    """The 1 was there all the time, so 2 could not leave.  The 0 has left, and is left out."""
    events = one_process(*[("insert", v, v) for v in (0, 1, 2, 3)], ("extract-min", None, 0))
    at = len(events)
    late = [(1, Type.INVOKE, None), (2, Type.INVOKE, None), (2, Type.OK, 3), (1, Type.OK, 2), (0, Type.INVOKE, None)]
    late.append((0, Type.OK, 1))
    events += [event(at + n, process, type_, "extract-min", value) for n, (process, type_, value) in enumerate(late)]
    verdict = judge_events(events, "priority-queue")
    (witness,) = verdict.witnesses
    assert "took 2 while 1 was there" in witness.summary
    assert {e["value"] for e in witness.events if e["f"] == "insert"} == {1, 2}


def test_a_large_priority_queue_is_decided_and_one_late_value_is_found() -> None:
    rng = Random(5)
    ask = Fresh("insert", "extract-min", rng)
    ask.unique = True
    do = taken_from("insert", "extract-min", lambda state: state.index(min(state)))
    events = history(Simulated((), ask, do, lambda rng, f, was: was), rng, 10_000, 10, 0, 0)
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


def test_a_semaphore_needs_its_number(tmp_path: Path) -> None:
    path = tmp_path / "history.edn"
    lines = [f"{{:process {p}, :type {t}, :f :acquire, :value nil}}" for p in (0, 1) for t in (":invoke", ":ok")]
    path.write_text("\n".join(lines) + "\n")
    assert check(path, "semaphore:2").validity is Validity.VALID
    assert check(path, "semaphore:1").validity is Validity.INVALID
    with pytest.raises(ValueError, match="there is no model"):
        check(path, "semaphore")


# Registers that are read and written together


def together(steps: Sequence[tuple[str, str, Any]], done: Sequence[tuple[str, str, Any]]) -> tuple[str, str]:
    return json.dumps(list(map(list, steps))), json.dumps(list(map(list, done)))


def multi_step(state: tuple[tuple[str, Any], ...], operation: Operation) -> object:
    held = dict(state)
    for f, key, value in operation.output if operation.returned else operation.input:  # type: ignore[union-attr]
        if f == "write":
            held[key] = value
        elif operation.returned and held.get(key) != value:
            return REFUSED
    return tuple(sorted(held.items()))


def test_registers_that_are_read_and_written_together_agree_with_the_independent_search() -> None:
    rng, seen = Random(3), {True: 0, False: 0}

    def ask(rng: Random, process: int) -> tuple[str, Any]:
        keys = rng.sample("xyz", rng.randint(1, 2))
        kind = rng.choice(["read", "write"])
        return "txn", [[kind, key, rng.randrange(1, 5) if kind == "write" else None] for key in keys]

    def do(state: tuple[tuple[str, Any], ...], f: str, value: Any) -> tuple[Any, Any]:
        held, done = dict(state), []
        for kind, key, new in value:
            if kind == "write":
                held[key] = new
            done.append([kind, key, held.get(key)])
        return tuple(sorted(held.items())), done

    def lie(rng: Random, f: str, was: Any) -> Any:
        return [[kind, key, rng.randrange(1, 5) if kind == "read" else value] for kind, key, value in was]

    while sum(seen.values()) < 120:
        events = history(
            Simulated((), ask, do, lie), rng, rng.randint(2, 8), 3, rng.choice([0, 0.1]), rng.choice([0, 1])
        )
        verdict = judge_as(events, Ask("multi-register"), Budget())
        if verdict.validity is Validity.UNKNOWN:
            assert "nothing" in verdict.reason
            continue
        expected = searched(events, (), multi_step, set())
        assert (verdict.validity is Validity.VALID) == expected, events
        seen[expected] += 1
    assert min(seen.values()) > 10, seen
