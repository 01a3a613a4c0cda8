"""The independent search, checked against orders written by hand and against all permutations."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from histories import Script, tiny

from checkers.base.independent_search import (
    REFUSED,
    RegisterOperation,
    SearchExhausted,
    linearizable,
    reachable_states,
    register,
)
from tests.support.register_operations import operations_of


def by_all_permutations(operations: list[RegisterOperation]) -> bool:
    """Herlihy & Wing's definition, literally: some subset of the open operations, in some order."""
    must = [o for o in operations if o.ret is not None]
    may = [o for o in operations if o.ret is None]
    for chosen in range(1 << len(may)):
        present = must + [o for i, o in enumerate(may) if chosen >> i & 1]
        for order in permutations(present):
            in_time = all(
                not (later.ret is not None and later.ret < earlier.call)
                for i, earlier in enumerate(order)
                for later in order[i + 1 :]
            )
            if in_time and runs(order):
                return True
    return False


def runs(order: tuple[RegisterOperation, ...]) -> bool:
    state: object = None
    for operation in order:
        state = register(state, operation)
        if state is REFUSED:
            return False
    return True


def test_it_agrees_with_the_definition_on_every_tiny_history() -> None:
    rng = Random(11)
    seen = {True: 0, False: 0}
    for _ in range(1500):
        operations = operations_of(tiny(rng, rng.randint(1, 5), rng.randint(2, 3)))
        answer = linearizable(operations)
        assert answer == by_all_permutations(operations), operations
        seen[answer] += 1
    assert min(seen.values()) > 200


def test_states_are_those_in_which_some_order_ends() -> None:
    two_writes_at_once = Script().invoke(0, "write", 1).invoke(1, "write", 2).ok(0).ok(1)
    assert reachable_states(operations_of(two_writes_at_once.events)) == {1, 2}
    one_after_the_other = Script().invoke(0, "write", 1).ok(0).invoke(1, "write", 2).ok(1)
    assert reachable_states(operations_of(one_after_the_other.events)) == {2}
    perhaps = Script().invoke(0, "write", 1).ok(0).invoke(1, "write", 2).info(1)
    assert reachable_states(operations_of(perhaps.events)) == {1, 2}


def test_it_starts_in_any_of_the_states_given() -> None:
    read_seven = operations_of(Script().invoke(0, "read").ok(0, 7).events)
    assert not linearizable(read_seven)
    assert linearizable(read_seven, [5, 7])


def test_it_gives_up_rather_than_run_for_ever() -> None:
    many = Script()
    for process in range(14):
        many.invoke(process, "write", process + 1)
    for process in range(14):
        many.ok(process)
    many.invoke(0, "read").ok(0, 99)
    with pytest.raises(SearchExhausted):
        linearizable(operations_of(many.events), configurations_max=1000)
