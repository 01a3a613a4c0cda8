"""Locks with fencing tokens: each rule by an example, and all of them against the search over all ways to hand out.

A lock with a lease: lawful expiry, double holds, and a brute force over small histories.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise, permutations, product
from pathlib import Path
from random import Random

import pytest
from simulated_objects import event, one_process, renumbered, searched

from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.by_hand import judge_events
from checkers.models.objects import locks
from checkers.models.objects.locks import FENCED
from harness.judge.check_files import check


def kinds(events: list[Event]) -> list[str]:
    return [w.kind for w in judge_events(events, "fenced-lock").witnesses]


def test_a_guarded_write_needs_a_token_that_an_acquire_has_handed_out() -> None:
    got, wrote = ("acquire", None, 1), ("write", 1, 1)
    assert kinds(one_process(got, wrote)) == []
    assert kinds(one_process(got, ("write", [1, 5], [1, 5]))) == []
    for steps in ([got, ("write", 2, 2)], [wrote, got], [wrote]):
        [witness] = judge_events(one_process(*steps), "fenced-lock").witnesses
        assert witness.kind == "token never handed out"
        assert witness.facts["rejudged"]


def test_an_acquire_without_an_answer_may_have_handed_out_any_token() -> None:
    begun = [event(0, 7, Type.INVOKE, "acquire", None), event(0, 7, Type.INFO, "acquire", None)]
    wrote = one_process(("write", 2, 2))
    assert kinds(renumbered([*begun, *wrote])) == []
    assert kinds(renumbered([wrote[0], *begun, wrote[1]])) == []
    assert kinds(renumbered([*wrote, *begun])) == ["token never handed out"]
    again = [replace(e, process=2) for e in one_process(("acquire", None, 2))]
    assert kinds(renumbered([*begun, *wrote, *again])) == ["token never handed out"]
    refused = [begun[0], replace(begun[1], type=Type.FAIL)]
    assert kinds(renumbered([*refused, *wrote])) == ["token never handed out"]


def test_tokens_are_judged_as_the_search_judges_all_ways_in_which_they_may_have_been_handed_out() -> None:
    rng, seen = Random(5), Counter[str]()
    for _ in range(4000):
        events = random_tokens(rng)
        verdict = judge_events(events, "fenced-lock")
        explained = searched(events, FENCED.init(), FENCED.step, set())
        assert (verdict.validity is not Validity.INVALID) == explained, events
        assert all(witness.facts["rejudged"] for witness in verdict.witnesses)
        seen[verdict.witnesses[0].kind if verdict.witnesses else "explained"] += 1
    assert min(seen[k] for k in ("explained", "token never handed out", "tokens out of order")) > 200, seen
    assert min(seen[k] for k in ("token handed out twice", "stale token accepted")) > 50, seen


def random_tokens(rng: Random) -> list[Event]:
    """Up to six acquires and writes, at once or one after another, of which some get no answer."""
    events: list[Event] = []
    open_: list[Event] = []
    token = 1
    for process in range(rng.randint(2, 6)):
        token += rng.choice([-1, 0, 1, 1, 2])
        if rng.random() < 0.5:
            begun = event(0, process, Type.INVOKE, "acquire", None)
        else:
            begun = event(0, process, Type.INVOKE, "write", token)
        events.append(begun)
        if rng.random() < 0.7:
            open_.append(event(0, process, Type.OK, begun.f, token))
        while open_ and rng.random() < 0.6:
            events.append(open_.pop(rng.randrange(len(open_))))
    return renumbered([*events, *open_])


def test_a_token_that_was_used_in_a_write_is_handed_out_before_greater_ones() -> None:
    late = [event(0, 0, Type.INVOKE, "acquire", None)]
    late += [replace(e, process=1) for e in one_process(("write", 10, 10))]
    late += [replace(e, process=2) for e in one_process(("acquire", None, 5))]
    late += [event(0, 0, Type.OK, "acquire", 10)]
    [witness] = judge_events(renumbered(late), "fenced-lock").witnesses
    assert witness.summary == "token 5 was handed out after token 10, which is greater, had been accepted in a write"


def test_nothing_is_judged_where_no_token_was_shown() -> None:
    verdict = judge_events(one_process(("release", None, None)), "fenced-lock")
    assert (verdict.validity, verdict.reason[:24]) == (Validity.UNKNOWN, "no acquire was answered ")


def test_a_write_under_way_while_its_token_is_handed_out_may_come_after_it() -> None:
    wrote = [replace(e, process=1) for e in one_process(("write", 1, 1))]
    got = one_process(("acquire", None, 1))
    assert kinds(renumbered([wrote[0], got[0], wrote[1], got[1]])) == []


S = 1_000_000_000
Hold = tuple[float, float, int, float | None, float | None]
"""Called and answered (s), valid for (ms), release called and answered (s); None: no release, or no answer to it."""


def events_of(*holds: Hold) -> list[Event]:
    """Return the events, with one process for each hold."""
    found = []
    for process, (called, answered, valid_ms, released, done) in enumerate(holds):
        steps = [(called, Type.INVOKE, "acquire", None), (answered, Type.OK, "acquire", valid_ms)]
        steps += [(released, Type.INVOKE, "release", None)] if released is not None else []
        steps += [(done, Type.OK, "release", None)] if released is not None and done is not None else []
        for at_s, type_, f, value in steps:
            found.append(Event(0, int(at_s * S), process, type_, f, "k0", value, node=f"n{process + 1}"))
    ordered = sorted(found, key=lambda e: (e.time_ns, e.process))
    return [replace(event, index=index) for index, event in enumerate(ordered)]


def kinds_of_holds(*holds: Hold) -> list[str]:
    verdict = judge_events(events_of(*holds), "leased-lock")
    assert verdict.validity in (Validity.VALID, Validity.INVALID), verdict.reason
    return [witness.kind for witness in verdict.witnesses]


@pytest.mark.parametrize(
    ("holds", "right"),
    [
        ([(1, 1.1, 2000, 2, 2.1), (2.2, 2.3, 2000, None, None)], True),
        ([(1, 1.1, 2000, None, None), (3.05, 3.1, 2000, None, None)], True),
        ([(1, 1.1, 2000, None, None), (2.2, 2.3, 2000, None, None)], False),
        ([(1, 1.1, 2000, None, None), (2.2, 3.3, 2000, None, None)], True),
        ([(1, 2.4, 2000, None, None), (2.2, 2.3, 100, 2.31, 2.32)], True),
        ([(1, 1.1, 2000, 1.5, None), (1.6, 1.7, 2000, None, None)], True),
        ([(1, 1.1, 2000, 2.5, 2.6), (1.6, 1.7, 2000, None, None)], False),
        ([(1, 1.1, 0, None, None), (1.2, 1.3, 2000, None, None)], True),
    ],
    ids=[
        "released in between",
        "the lease had ended",
        "double hold",
        "it may have waited until the lease ended",
        "the first may have been granted late",
        "a release without an answer may have taken effect",
        "released too late",
        "a lease of no length",
    ],
)
def test_when_a_second_holder_is_lawful(holds: list[Hold], right: bool) -> None:
    assert (kinds_of_holds(*holds) == []) == right


def test_a_release_after_the_lease_does_not_free_the_lock_of_the_next_holder() -> None:
    assert kinds_of_holds((1, 1.1, 1000, 2.5, 2.6), (2.2, 2.3, 5000, None, None), (2.7, 2.8, 100, None, None)) == [
        "no order"
    ]
    assert kinds_of_holds((1, 1.1, 1000, 2.5, 2.6), (2.2, 2.3, 400, None, None), (2.7, 2.8, 100, None, None)) == []


def test_the_witness_names_the_server_and_the_seconds() -> None:
    verdict = judge_events(events_of((1, 1.1, 2000, None, None), (2.2, 2.3, 2000, None, None)), "leased-lock")
    (witness,) = verdict.witnesses
    assert [event["node"] for event in witness.events] == ["n2", "n2"]
    assert "acquire at 2.200 s -> valid for 2000 ms" in witness.summary
    assert witness.facts["states_before"] == ["process 0 holds it from 1.000 s to 2.997 s at the earliest"]


def test_an_answer_without_a_time_or_without_a_length_is_not_judged() -> None:
    events = [replace(event, time_ns=0) for event in events_of((1, 1.1, 2000, None, None))]
    assert "has no time" in judge_events(events, "leased-lock").reason
    events = [replace(event, value=None) for event in events_of((1, 1.1, 2000, None, None))]
    assert "no number of milliseconds" in judge_events(events, "leased-lock").reason


def test_the_holder_may_acquire_again_and_nobody_else_may() -> None:
    """A renewal: the lock is held until the later of both leases is over."""
    renewed = one_holder((1, 1.1, 3000), (2, 2.1, 3000))
    assert judge_events(renewed, "leased-lock").validity is Validity.VALID
    for again_ms, other_at, right in ((3000, 4.5, False), (3000, 5.2, True), (100, 3.5, False), (100, 4.2, True)):
        events = one_holder((1, 1.1, 3000), (2, 2.1, again_ms))
        other = [replace(e, process=9, index=e.index + 4) for e in one_holder((other_at, other_at + 0.1, 1000))]
        assert (judge_events(events + other, "leased-lock").validity is Validity.VALID) == right, (again_ms, other_at)


def one_holder(*acquires: tuple[float, float, int]) -> list[Event]:
    """One process acquires again and again.  acquires: (called and answered in s, valid for ms)."""
    found = []
    for called, answered, valid_ms in acquires:
        found.append(Event(len(found), int(called * S), 0, Type.INVOKE, "acquire", "k0", None, node="n1"))
        found.append(Event(len(found), int(answered * S), 0, Type.OK, "acquire", "k0", valid_ms, node="n1"))
    return found


@pytest.mark.parametrize("at", [0, 1, 3], ids=["a call", "an answer", "the last answer"])
def test_times_that_fall_accuse_nobody(at: int) -> None:
    """They are of two clocks, or one is missing.  A lock that was held twice would else look right, and a right one
    wrong."""
    events = one_holder((5, 5.1, 1000), (6.5, 6.6, 1000))
    events[at] = replace(events[at], time_ns=20 * S if at == 0 else 0)
    verdict = judge_events(events, "leased-lock")
    assert verdict.validity is Validity.UNKNOWN
    assert "the time falls from" in verdict.reason


def test_times_that_fall_by_less_than_clocks_differ_are_judged() -> None:
    events = one_holder((1, 0.9999, 1000), (2.5, 2.6, 1000))
    assert judge_events(events, "leased-lock").validity is Validity.VALID


def test_small_histories_against_every_choice_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole seconds, and no slack: a grant and a release may take effect at every second that their answers allow.

    No two events share a second, so the order of the events is that of their times."""
    monkeypatch.setattr(locks, "DRIFT", 0.0)
    monkeypatch.setattr(locks, "SLACK_NS", 0)
    rng, verdicts = Random(11), {True: 0, False: 0}
    for _ in range(600):
        holds = _random_holds(rng, rng.choice((2, 2, 3)))
        expected = _possible(holds)
        verdicts[expected] += 1
        assert (kinds_of_holds(*_as_shown(holds)) == []) == expected, holds
    assert min(verdicts.values()) > 100, verdicts


def test_a_long_history_of_few_processes_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that differ in nothing but their times are no copies of each other."""
    holds: list[Hold] = [(n, n + 0.1, 500, n + 0.6, n + 0.7) for n in range(300)]
    events = [replace(event, process=event.process % 3) for event in events_of(*holds)]
    assert judge_events(events, "leased-lock").validity is Validity.VALID
    twice = events_of(*holds, (200.2, 200.3, 500, None, None))
    verdict = judge_events(twice, "leased-lock")
    assert verdict.validity is Validity.INVALID
    assert any("200.2" in witness.summary for witness in verdict.witnesses)


Small = tuple[int, int, int, int | None, int | None]
"""Called, answered, valid for, release called, release answered, in seconds."""


def _random_holds(rng: Random, count: int) -> list[Small]:
    seconds = rng.sample(range(1, 4 * count + 3), 4 * count)
    holds = []
    for n in range(count):
        called, answered, released, done = sorted(seconds[4 * n : 4 * n + 4])
        kept = rng.random()
        holds.append(
            (called, answered, rng.randrange(0, 8), released if kept < 0.7 else None, done if kept < 0.5 else None)
        )
    return holds


def _as_shown(holds: list[Small]) -> list[Hold]:
    return [(called, answered, valid * 1000, released, done) for called, answered, valid, released, done in holds]


def _possible(holds: list[Small]) -> bool:
    """Return whether times of grants and releases exist for which no two holds overlap.

    A grant lies between call and answer.  A release takes effect after its call and up to its answer, if it has one."""
    choices = []
    for called, answered, valid, released, done in holds:
        spans = set()
        for granted in range(called, answered + 1):
            spans.add((granted, granted + valid))
            if released is not None:
                last = done if done is not None else released + 16
                spans |= {(granted, min(granted + valid, at)) for at in range(released, last + 1)}
        choices.append(sorted(spans))
    return any(
        all(one[1] <= other[0] for one, other in pairwise(spans))
        for order in permutations(range(len(holds)))
        for spans in product(*(choices[hold] for hold in order))
    )


def test_a_semaphore_needs_its_number(tmp_path: Path) -> None:
    path = tmp_path / "history.edn"
    lines = [f"{{:process {p}, :type {t}, :f :acquire, :value nil}}" for p in (0, 1) for t in (":invoke", ":ok")]
    path.write_text("\n".join(lines) + "\n")
    assert check(path, "semaphore:2").validity is Validity.VALID
    assert check(path, "semaphore:1").validity is Validity.INVALID
    with pytest.raises(ValueError, match="there is no model"):
        check(path, "semaphore")
