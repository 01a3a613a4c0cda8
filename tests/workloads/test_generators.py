"""Generators are values: driven by a loop here, with no cluster and no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, Request
from workloads import generators

OK = Outcome(Type.OK)


def call(f: str) -> generators.Call:
    return generators.Call(lambda turn: Request(f))


def in_order(*names: str) -> generators.InOrder:
    return generators.InOrder([Request(f) for f in names])


def turn_of(thread: int = 0, threads: int = 1, seed: int = 1, reads_only: bool = False) -> generators.Turn:
    return generators.Turn(Placement(thread, "c1", follows=True, reads_only=reads_only), threads, Random(seed))


def drive(
    generator: generators.Generator,
    count: int = 1000,
    turn: generators.Turn | None = None,
    seconds_per_request: float = 0.01,
    answer: Callable[[Request], Outcome] = lambda _: OK,
) -> list[Request | float]:
    """At most `count` steps of one thread: requests as they are, pauses as seconds."""
    turn = turn or turn_of()
    steps: list[Request | float] = []
    time_s, requests = 0.0, 0
    while len(steps) < count:
        step, generator = generator.next(
            generators.Turn(turn.placement, turn.threads, turn.rng, time_s=time_s, count=requests)
        )
        if step is None:
            break
        if isinstance(step, generators.Wait):
            steps.append(step.seconds)
            time_s += step.seconds
            continue
        steps.append(step)
        time_s += seconds_per_request
        requests += 1
        generator = generator.heard(step, answer(step))
    return steps


def names(steps: list[Request | float]) -> list[str]:
    return [step.f for step in steps if isinstance(step, Request)]


def test_a_value_can_be_asked_twice_and_what_is_exhausted_stays_exhausted() -> None:
    generator = generators.Phases((in_order("a", "b"), generators.Limit(2, call("c"))))
    assert names(drive(generator)) == names(drive(generator)) == ["a", "b", "c", "c"]
    step, after = in_order().next(turn_of())
    assert step is None
    assert after.next(turn_of())[0] is None
    assert drive(generators.Mix(())) == drive(generators.Phases(())) == drive(generators.Limit(0, call("a"))) == []


def test_a_limit_counts_requests_and_until_ends_at_its_time_and_cuts_a_pause_short() -> None:
    steps = drive(generators.Limit(3, generators.Stagger(1.0, call("a"))))
    assert (names(steps), sum(isinstance(step, float) for step in steps)) == (["a", "a", "a"], 3)
    assert len(drive(generators.Until(0.1, call("a")), seconds_per_request=0.02)) == 5
    assert drive(generators.Until(0.1, generators.Stagger(1000.0, call("a")))) == [pytest.approx(0.1)]


def test_a_mix_keeps_its_weights_and_leaves_out_what_is_exhausted() -> None:
    counted = Counter(names(drive(generators.Mix(((3.0, call("a")), (1.0, call("b")))), 4000)))
    assert 2800 < counted["a"] < 3200
    assert Counter(
        names(drive(generators.Mix(((1.0, in_order("a", "a")), (1.0, generators.Limit(5, call("b")))))))
    ) == {"a": 2, "b": 5}


def test_an_outcome_goes_to_the_generator_that_gave_the_request() -> None:
    class Once(generators.Generator):
        """Gives its name until it has heard an ok."""

        def __init__(self, f: str, done: bool = False) -> None:
            self.f, self.done = f, done

        def next(self, turn: generators.Turn) -> tuple[Request | None, generators.Generator]:
            return (None if self.done else Request(self.f)), self

        def heard(self, request: Request, outcome: Outcome) -> generators.Generator:
            assert request.f == self.f
            return Once(self.f, outcome.type is Type.OK)

    def once(key: str) -> generators.Generator:
        return Once(key)

    for generator in (
        generators.Mix(((1.0, Once("a")), (1.0, Once("b")))),
        generators.Phases((Once("a"), Once("b"))),
        generators.PerKey(("a", "b"), 2, once),
        generators.Phases((generators.Until(9.0, Once("a")), generators.Limit(1, generators.Stagger(0.1, Once("b"))))),
    ):
        assert sorted(names(drive(generator))) == ["a", "b"]


def test_readers_are_reserved() -> None:
    for reads_only, expected in ((True, "read"), (False, "write")):
        placement = turn_of(reads_only=reads_only).placement
        generator = generators.reserve(placement, readers=call("read"), others=call("write"))
        assert set(names(drive(generator, 5))) == {expected}


def test_a_key_that_is_exhausted_is_retired_and_the_next_one_taken() -> None:
    keys = tuple("abcdef")
    steps = names(drive(generators.PerKey(keys, 2, lambda key: generators.Limit(10, call(key)))))
    assert Counter(steps) == dict.fromkeys(keys, 10)
    for first in range(len(steps) - 1):
        later = set(steps[first:])
        assert len(set(steps[: first + 1]) & later) <= 2, "at most two keys are in use at a time"


def test_zipf_prefers_the_first_and_uses_all() -> None:
    turn, keys = turn_of(), [f"k{i}" for i in range(8)]
    counted = Counter(generators.zipf(keys)(turn) for _ in range(8000))
    assert set(counted) == set(keys)
    assert counted["k0"] / counted["k7"] == pytest.approx(8, rel=0.35)
    flat = Counter(generators.uniform(keys)(turn) for _ in range(8000))
    assert max(flat.values()) < 1.3 * min(flat.values())


def test_moving_keys_use_a_few_at_a_time_and_all_in_the_end() -> None:
    keys = [f"k{i}" for i in range(10)]
    for pick in (generators.moving(keys, 3, 20), generators.zipf_of_moving(keys, 3, 20)):
        rng, used = Random(1), []
        for count in range(200):
            used.append(pick(generators.Turn(turn_of().placement, 1, rng, count=count)))
        assert set(used) == set(keys)
        assert all(len(set(used[start : start + 20])) <= 3 for start in range(0, 200, 20))
    with pytest.raises(ValueError, match="cannot use 4 keys at a time: there are only 3 keys"):
        generators.moving(keys[:3], 4, 1)


def test_fresh_values_are_those_of_one_turn_alone() -> None:
    threads = 5
    given = [
        generators.Turn(turn_of(thread).placement, threads, Random(0), count=count).fresh(place)
        for thread in range(threads)
        for count in range(50)
        for place in range(generators.VALUES_PER_TURN)
    ]
    assert len(set(given)) == len(given)
    assert min(given) == 1


@pytest.mark.parametrize(
    "pace",
    [
        generators.Steady(),
        generators.Steps(5.0, (1.0, 3.0, 0.5)),
        generators.Bursts(10.0, 1.0, 20.0),
        generators.Bursts(6.0, 2.0, 0.1),
    ],
)
def test_the_mean_of_a_pace_is_one(pace: generators.Pace) -> None:
    factors = [pace.factor(i / 100) for i in range(3000)]
    assert sum(factors) / len(factors) == pytest.approx(1.0, rel=1e-6)
    assert min(factors) > 0
    burst = generators.Bursts(10.0, 1.0, 20.0)
    assert burst.factor(10.5) / burst.factor(15.0) == pytest.approx(20.0)
