"""Locks with fencing tokens: each rule by an example, and all of them against the search over all ways to hand out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from simulated_objects import event, one_process, renumbered, searched

from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.by_hand import judge_events
from checkers.models.objects.locks import FENCED


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
