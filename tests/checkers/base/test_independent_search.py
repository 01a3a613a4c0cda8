"""The independent search, and what makes a witness small."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest
from histories import Script, operations_of, tiny

from checkers.base import independent_search
from checkers.base.shrinking import drop_in_pieces, first_that_holds, without_pieces


def by_all_permutations(operations: list[independent_search.RegisterOperation]) -> bool:
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


def runs(order: tuple[independent_search.RegisterOperation, ...]) -> bool:
    state: object = None
    for operation in order:
        state = independent_search.register(state, operation)
        if state is independent_search.REFUSED:
            return False
    return True


def test_it_agrees_with_the_definition_on_every_tiny_history() -> None:
    rng = Random(11)
    seen = {True: 0, False: 0}
    for _ in range(1500):
        operations = operations_of(tiny(rng, rng.randint(1, 5), rng.randint(2, 3)))
        answer = independent_search.linearizable(operations)
        assert answer == by_all_permutations(operations), operations
        seen[answer] += 1
    assert min(seen.values()) > 200


def test_states_are_those_in_which_some_order_ends() -> None:
    two_writes_at_once = Script().invoke(0, "write", 1).invoke(1, "write", 2).ok(0).ok(1)
    assert independent_search.reachable_states(operations_of(two_writes_at_once.events)) == {1, 2}
    one_after_the_other = Script().invoke(0, "write", 1).ok(0).invoke(1, "write", 2).ok(1)
    assert independent_search.reachable_states(operations_of(one_after_the_other.events)) == {2}
    perhaps = Script().invoke(0, "write", 1).ok(0).invoke(1, "write", 2).info(1)
    assert independent_search.reachable_states(operations_of(perhaps.events)) == {1, 2}


def test_it_starts_in_any_of_the_states_given() -> None:
    read_seven = operations_of(Script().invoke(0, "read").ok(0, 7).events)
    assert not independent_search.linearizable(read_seven)
    assert independent_search.linearizable(read_seven, [5, 7])


def test_it_gives_up_rather_than_run_for_ever() -> None:
    many = Script()
    for process in range(14):
        many.invoke(process, "write", process + 1)
    for process in range(14):
        many.ok(process)
    many.invoke(0, "read").ok(0, 99)
    with pytest.raises(independent_search.SearchExhausted):
        independent_search.linearizable(operations_of(many.events), configurations_max=1000)


# Dropping items that a condition does not need keeps the needed ones, in order, with a limited number of tries


def without(piece: Sequence[int], rest: list[int]) -> list[int]:
    return [item for item in rest if item not in piece]


@pytest.mark.parametrize("piece_most", [None, 1, 5])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_needed_stays_and_nothing_else(seed: int, piece_most: int | None) -> None:
    rng = Random(seed)
    items = list(range(rng.randrange(40)))
    needed = sorted(rng.sample(items, rng.randint(0, len(items))))
    left = drop_in_pieces(items, items, without, lambda rest: set(needed) <= set(rest), piece_most=piece_most)
    assert left == needed


def test_what_is_no_item_is_never_dropped() -> None:
    assert drop_in_pieces([1, 2], [0, 1, 2, 3], without, lambda rest: 2 in rest) == [0, 2, 3]


def test_large_pieces_go_first_and_attempts_are_counted() -> None:
    tried: list[list[int]] = []

    def holds(rest: list[int]) -> bool:
        tried.append(rest)
        return 6 in rest

    items = list(range(8))
    assert drop_in_pieces(items, items, without, holds, attempts_most=3) == [6, 7]
    assert tried == [[4, 5, 6, 7], [], [6, 7]]


def test_pieces_are_left_out_one_at_a_time() -> None:
    assert list(without_pieces("abc", 2)) == [("c",), ("a", "b"), ("b", "c"), ("a", "c"), ("a", "b")]
    assert list(without_pieces("", 0)) == []


# Halving, compared with trying one number after another


@pytest.mark.parametrize("times", [0, 2, 4])
def test_it_finds_what_trying_one_after_another_finds(times: int) -> None:
    for low in range(4):
        for high in range(low, 40):
            for first in range(low, high + 1):
                tried: list[int] = []

                def holds(number: int, first: int = first, tried: list[int] = tried) -> bool:
                    tried.append(number)
                    return number >= first

                assert first_that_holds(low, high, holds, times) == first
                assert high not in tried
                assert len(tried) <= 14


def test_near_numbers_are_tried_first() -> None:
    tried: list[int] = []
    first_that_holds(0, 1_000_000, lambda n: tried.append(n) or n >= 3, 4)  # type: ignore[func-returns-value]
    assert max(tried) < 20
