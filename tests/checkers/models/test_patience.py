"""Violations of all objects are counted; few are explained, within a total budget of steps."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from simulated_objects import Simulated, history, kv_do, no_lie, renumbered

from checkers.base.history import Event, Type
from checkers.base.verdict import VIOLATIONS_BY_KIND, Validity
from checkers.by_hand import judge_events
from checkers.models import each_object
from checkers.models.past import STEPS_IN_ALL, Patience

STORE = Simulated(
    "",
    lambda rng, _: rng.choice([("get", None), ("append", rng.choice("abc")), ("put", f"x{rng.randrange(1000)}")]),
    kv_do,
    no_lie,
)


TOO_OFTEN = "c" * 500
"""Appends of c make such a string, but there are fewer of them."""


def wrong_keys(count: int, operations: int) -> list[Event]:
    """Stores of strings, each with one answer that nothing explains, three quarters through."""
    rng = Random(count)
    events: list[Event] = []
    for number in range(count):
        some = history(STORE, rng, operations, 4, 0.01, 0)
        reads = [e for e in some if e.f == "get" and e.type is Type.OK]
        wrong = reads[len(reads) * 3 // 4]
        some[wrong.index] = replace(wrong, value=None, payload=json.dumps(TOO_OFTEN))
        events += [replace(e, key=f"k{number}", process=e.process + 1000 * number) for e in some]
    return renumbered(events)


def test_all_violations_are_counted_and_the_explanations_stay_within_their_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[Patience] = []

    def watched() -> Patience:
        used.append(Patience())
        return used[-1]

    monkeypatch.setattr(each_object, "Patience", watched)
    verdict = judge_events(wrong_keys(10, 250), "kv")
    assert verdict.validity is Validity.INVALID
    assert verdict.looked_at["violations"] == 10
    assert verdict.details[VIOLATIONS_BY_KIND] == {"no order": 10}
    assert 1 <= len(verdict.witnesses) <= 10
    assert TOO_OFTEN[:9] in verdict.witnesses[0].summary
    [patience] = used
    assert patience.spent <= STEPS_IN_ALL + 100_000, "at most one compiled search beyond"


def test_an_explanation_that_runs_out_of_steps_is_larger_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(each_object, "Patience", lambda: Patience(20, 20))
    verdict = judge_events(wrong_keys(3, 60), "kv")
    assert verdict.validity is Validity.INVALID
    assert verdict.looked_at["violations"] == 3
    [witness] = verdict.witnesses
    assert "not the smallest" in witness.facts["note"]
    assert witness.facts["rejudged"] is False
    assert witness.events and witness.facts["why"]
