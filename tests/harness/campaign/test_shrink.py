"""Shrinking a schedule: to the culprit, with luck and without, broken off and gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from checkers.record.faults import Fault
from harness.campaign.reruns import Reruns, violated_in
from harness.campaign.shrink import ShrinkCandidate, TrialLog, shrink, smaller
from harness.spec import Spec
from nemesis.cards.deck import deal
from nemesis.cards.schedule_files import Schedule

SERVERS = ("n1", "n2", "n3", "n4", "n5")


def original(faults: dict[int, Fault] | None = None) -> ShrinkCandidate:
    cards = deal("partition,kill", SERVERS, 90.0, Random(3))
    return ShrinkCandidate(Schedule(tuple(sorted(cards, key=lambda c: c.at_s)), faults or {}), 5)


def quiet(words: str) -> None:
    return None


def needs(*names: str, hold_s: float = 0.0):  # type: ignore[no-untyped-def]
    """A system that fails if cards of these names are in the schedule and hold long enough."""

    def run(candidate: ShrinkCandidate) -> tuple[bool, str]:
        held = {c.name: c.heal_s - c.at_s for c in candidate.schedule.cards}
        return all(held.get(name, -1.0) >= hold_s for name in names), "folder"

    return run


def test_the_one_card_that_matters_is_left_short_and_early() -> None:
    log = TrialLog()
    found = shrink(original(), needs("leader-alone-and-split", hold_s=1.5), 1, log, quiet)
    (card,) = found.smallest.schedule.cards
    assert card.name == "leader-alone-and-split" and card.at_s == 2.0
    assert 1.5 <= card.heal_s - card.at_s < 3.0
    assert found.smallest.servers == 3
    assert sum(t.runs for t in log.tried.values()) < 60


def test_two_cards_that_matter_together_are_both_left_at_their_distance() -> None:
    first = {c.name: c for c in original().schedule.cards if c.name in ("leader-alone-and-split", "minority")}
    found = shrink(original(), needs(*first), 1, TrialLog(), quiet)
    left = {c.name: c for c in found.smallest.schedule.cards}
    assert set(left) == set(first)
    gaps = [of["minority"].at_s - of["leader-alone-and-split"].at_s for of in (left, first)]
    assert gaps[0] == pytest.approx(gaps[1], abs=0.01)


def test_luck_needs_repeats_and_the_result_says_how_sure_it_is() -> None:
    rng = Random(1)
    always = needs("leader-alone-and-split", hold_s=1.5)

    def sometimes(candidate: ShrinkCandidate) -> tuple[bool, str]:
        return always(candidate)[0] and rng.random() < 0.5, "folder"

    found = shrink(original(), sometimes, 8, TrialLog(), quiet)
    assert [c.name for c in found.smallest.schedule.cards] == ["leader-alone-and-split"]
    assert found.tried.runs == 8 and 0 < found.tried.failed < 8
    assert 0 < found.chance < 0.2


def test_a_schedule_that_does_not_fail_again_is_not_shrunk() -> None:
    with pytest.raises(ValueError, match="did not fail again in 2 runs"):
        shrink(original(), lambda candidate: (False, ""), 2, TrialLog(), quiet)


def test_what_was_broken_off_goes_on_where_it_stood(tmp_path: Path) -> None:
    path = tmp_path / "tried.json"
    run, done = needs("leader-alone-and-split"), []

    def breaks(candidate: ShrinkCandidate) -> tuple[bool, str]:
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(candidate.identity)
        return run(candidate)

    with pytest.raises(KeyboardInterrupt):
        shrink(original(), breaks, 1, TrialLog.read(path), quiet)
    again: list[str] = []

    def counted(candidate: ShrinkCandidate) -> tuple[bool, str]:
        again.append(candidate.identity)
        return run(candidate)

    found = shrink(original(), counted, 1, TrialLog.read(path), quiet)
    assert not set(again) & set(done), "nothing is run twice"
    assert found.smallest == shrink(original(), run, 1, TrialLog(), quiet).smallest


def test_servers_that_a_fault_names_stay() -> None:
    cards = deal("kill", SERVERS, 12.0, Random(0))
    named = ShrinkCandidate(Schedule(tuple(cards), {1: Fault("kill", "n4 killed", ("n4",))}), 5)
    assert {c.servers for c in smaller(named)} == {4, 5}


def test_a_card_whose_model_is_left_out_stands_for_itself() -> None:
    cards = deal("kill", SERVERS, 400.0, Random(0))
    for candidate in smaller(ShrinkCandidate(Schedule(tuple(cards), {}), 5)):
        numbers = {c.number for c in candidate.schedule.cards}
        assert all(c.like in numbers or not c.like for c in candidate.schedule.cards)


def test_a_rerun_is_the_original_but_for_schedule_servers_and_seed(tmp_path: Path) -> None:
    spec = Spec(bug="stale-read", seed=7, backend="namespaces", keys=4, recovery_limit_s=120.0)
    reruns = Reruns(spec, frozenset(), tmp_path, runs=3)
    words = reruns.words(original(), tmp_path / "s.json")
    assert words[0] == "run" and words[words.index("--bug") + 1] == "stale-read"
    assert words[words.index("--seed") + 1] == "10" and words[words.index("--keys") + 1] == "4"
    assert words[words.index("--recovery-limit") + 1] == "120"


def test_a_run_failed_as_the_original_only_by_the_same_checker_and_kind() -> None:
    results = {"checkers": {"a": {"verdict": "invalid", "witness": [{"kind": "k"}]}, "b": {"verdict": "valid"}}}
    assert violated_in(json.loads(json.dumps(results))) == {("a", "k")}
    assert violated_in({}) == frozenset()
