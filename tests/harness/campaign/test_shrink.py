"""Shrinking a schedule: to the culprit, with luck and without, broken off and gone on with.

Attribution by trial: what is run, what is counted, and the bounds.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
from dealt import deal
from journals import write_journal

from checkers.base.results import ATTRIBUTION, write_results
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.judging import results_of
from checkers.record.faults import Card, Fault
from harness.campaign.shrink import (
    WHOLE,
    Limits,
    Reruns,
    ShrinkCandidate,
    TrialLog,
    _Search,
    attribute,
    bounds,
    judged,
    keep,
    other_symptom,
    shrink,
    smaller,
    variants,
)
from harness.spec import Spec
from nemesis.deck import Schedule, parse_schedule, schedule_json
from tests.support.records_of_runs import whole

SERVERS = ("n1", "n2", "n3", "n4", "n5")


@cache
def original() -> ShrinkCandidate:
    cards = deal("partition,kill", SERVERS, 90.0, Random(3))
    return ShrinkCandidate(Schedule(tuple(sorted(cards, key=lambda c: c.at_s)), {}), 5)


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
    found = shrink(original(), needs("leader-alone-and-split", hold_s=1.5), Limits(times=1), log, quiet)
    (card,) = found.smallest.schedule.cards
    assert card.name == "leader-alone-and-split" and card.at_s == 2.0
    assert 1.5 <= card.heal_s - card.at_s < 3.0
    assert found.smallest.servers == 3
    assert sum(t.runs for t in log.tried.values()) < 60


def test_two_cards_that_matter_together_are_both_left_at_their_distance() -> None:
    first = {c.name: c for c in original().schedule.cards if c.name in ("leader-alone-and-split", "minority")}
    found = shrink(original(), needs(*first), Limits(times=1), TrialLog(), quiet)
    left = {c.name: c for c in found.smallest.schedule.cards}
    assert set(left) == set(first)
    gaps = [of["minority"].at_s - of["leader-alone-and-split"].at_s for of in (left, first)]
    assert gaps[0] == pytest.approx(gaps[1], abs=0.01)


def test_luck_needs_repeats_and_the_result_says_how_sure_it_is() -> None:
    rng = Random(1)
    always = needs("leader-alone-and-split", hold_s=1.5)

    def sometimes(candidate: ShrinkCandidate) -> tuple[bool, str]:
        return always(candidate)[0] and rng.random() < 0.5, "folder"

    found = shrink(original(), sometimes, Limits(times=8), TrialLog(), quiet)
    assert [c.name for c in found.smallest.schedule.cards] == ["leader-alone-and-split"]
    assert found.tried.runs == 8 and 0 < found.tried.failed < 8
    assert 0 < found.chance < 0.2


def test_a_schedule_that_does_not_fail_again_is_not_shrunk() -> None:
    with pytest.raises(ValueError, match="failed 0 times in 2 runs, and 1 are needed"):
        shrink(original(), lambda candidate: (False, ""), Limits(times=2), TrialLog(), quiet)


def test_what_was_broken_off_goes_on_where_it_stood(tmp_path: Path) -> None:
    path = tmp_path / "tried.json"
    run, done = needs("leader-alone-and-split"), []

    def breaks(candidate: ShrinkCandidate) -> tuple[bool, str]:
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(candidate.identity)
        return run(candidate)

    with pytest.raises(KeyboardInterrupt):
        shrink(original(), breaks, Limits(times=1), TrialLog.read(path), quiet)
    again: list[str] = []

    def counted(candidate: ShrinkCandidate) -> tuple[bool, str]:
        again.append(candidate.identity)
        return run(candidate)

    found = shrink(original(), counted, Limits(times=1), TrialLog.read(path), quiet)
    assert not set(again) & set(done), "nothing is run twice"
    assert found.smallest == shrink(original(), run, Limits(times=1), TrialLog(), quiet).smallest


def test_servers_that_a_fault_names_stay() -> None:
    cards = deal("kill", SERVERS, 12.0, Random(0))
    named = ShrinkCandidate(Schedule(tuple(cards), {1: Fault("kill", "n4 killed", ("n4",))}), 5)
    assert {c.servers for c in smaller(named)} == {4, 5}


def test_a_card_whose_model_is_left_out_stands_for_itself() -> None:
    cards = deal("kill", SERVERS, 100.0, Random(0))
    for candidate in smaller(ShrinkCandidate(Schedule(tuple(cards), {}), 5)):
        numbers = {c.number for c in candidate.schedule.cards}
        assert all(c.like in numbers or not c.like for c in candidate.schedule.cards)


def test_a_rerun_is_the_original_but_for_schedule_servers_and_seed(tmp_path: Path) -> None:
    spec = Spec(bug="stale-read", seed=7, backend="namespaces", keys=4, recovery_limit_s=120.0)
    rerun = Reruns(spec, tmp_path, runs=3).spec_of(original(), tmp_path / "s.json")
    changed = {"seed": 10, "schedule": str(tmp_path / "s.json"), "stop_on_violation": True}
    assert rerun == replace(spec, time_limit_s=rerun.time_limit_s, **changed)
    assert rerun.time_limit_s >= original().time_limit_s


def test_one_kill_alone_is_tried_before_anything_else_and_at_its_own_time() -> None:
    """A long log may show what a short one hides: the kill fails only late."""
    kill = next(card for card in original().schedule.cards if card.kind == "kill" and card.at_s > 20)

    def run(candidate: ShrinkCandidate) -> tuple[bool, str]:
        return any(card.kind == "kill" and card.at_s >= 20 for card in candidate.schedule.cards), "folder"

    log = TrialLog()
    found = shrink(original(), run, Limits(times=1), log, quiet)
    (card,) = found.smallest.schedule.cards
    assert card.kind == "kill" and card.at_s >= 20
    assert sum(one.runs for one in log.tried.values()) <= len(original().schedule.cards) + 12
    assert kill.at_s >= 20


def test_every_smaller_schedule_is_run_once_before_one_of_them_is_run_twice() -> None:
    order: list[str] = []

    def run(candidate: ShrinkCandidate) -> tuple[bool, str]:
        order.append(candidate.identity)
        return candidate.identity == original().identity, "folder"

    found = shrink(original(), run, Limits(times=2), TrialLog(), quiet)
    others = [one.identity for one in smaller(original())]
    assert order == [original().identity, *others, *others, original().identity]
    assert found.in_time and found.passed == len(others)


def test_a_candidate_fails_by_n_of_m() -> None:
    def run(candidate: ShrinkCandidate) -> tuple[bool, str]:
        turns[candidate.identity] = turns.get(candidate.identity, 0) + 1
        every_other = turns[candidate.identity] % 2 == 0
        return candidate.identity == original().identity or every_other, "folder"

    turns: dict[str, int] = {}
    found = shrink(original(), run, Limits(needed=2, times=3), TrialLog(), quiet)
    assert found.smallest == original(), "one of three is too few"
    turns.clear()
    found = shrink(original(), run, Limits(needed=1, times=3), TrialLog(), quiet)
    assert len(found.smallest.schedule.cards) == 1


def test_the_search_ends_when_its_time_is_up_and_says_so() -> None:
    left = iter([True] * 3)
    limits = Limits(times=3, time_left=lambda: next(left, False))
    found = shrink(original(), lambda one: (one.identity == original().identity, "folder"), limits, TrialLog(), quiet)
    assert found.smallest == original() and not found.in_time
    assert found.chance == 1.0, "what was never run may fail as often as it likes"


def test_a_role_that_did_not_come_up_is_reported_with_the_run_that_passed(tmp_path: Path) -> None:
    reason = "no node led within 5 s, and its fault hit the leader, which was n2"
    skipped = whole({"card": {"kind": "kill", "name": "leader"}, "achieved": "skipped", "reason": reason})
    other = whole({"card": {"number": 2, "kind": "kill", "name": "leader"}, "achieved": "installed", "reason": reason})
    write_journal(tmp_path, faults=[skipped, other])
    said: list[str] = []
    search = _Search(lambda _: (False, str(tmp_path)), Limits(), TrialLog(), said.append)
    search.run_once(original())
    assert said[0].endswith(f"did not fail (1 of 3); kill leader hit nothing: {reason}")


def test_a_run_with_another_symptom_is_followed_and_named(tmp_path: Path) -> None:
    """The smaller schedule shows a lost write where the original showed a stale read."""
    witness = Witness("lost write", "it is gone")
    write_results(tmp_path, results_of({"set": Verdict(Validity.INVALID, {"reads": 1}, witnesses=(witness,))}))
    said: list[str] = []
    run = lambda one: (len(one.schedule.cards) == 1 or one == original(), str(tmp_path))  # noqa: E731
    found = shrink(original(), run, Limits(times=1, wanted=STALE), TrialLog(), said.append)
    assert len(found.smallest.schedule.cards) == 1
    assert said[1].endswith("failed with another symptom, set: lost write (1 of 1)")
    assert other_symptom(tmp_path, frozenset({("set", "lost write")})) == ""


def test_the_summary_counts_each_schedule_once() -> None:
    """Every other run of a smaller schedule fails, which is too seldom; others never fail; none is counted as both."""
    turns: Counter[str] = Counter()

    def run(candidate: ShrinkCandidate) -> tuple[bool, str]:
        turns[candidate.identity] += 1
        at_times = len(candidate.schedule.cards) == 1 and turns[candidate.identity] == 2
        return candidate == original() or at_times, "folder"

    found = shrink(original(), run, Limits(needed=2, times=3), TrialLog(), quiet)
    ones = sum(len(one.schedule.cards) == 1 for one in smaller(original()))
    assert (found.seldom, found.passed) == (ones, len(list(smaller(original()))) - ones)


CARDS = (
    Card(1, "packets", "leader-heard-late", 3.0, 9.0, until="healed", until_of=2, until_s=1.0),
    Card(2, "pause", "leader", 4.0, 7.0, like=1),
    Card(3, "kill", "one", 0.2, 8.0),
)
ORIGINAL = ShrinkCandidate(Schedule(CARDS, {}), 3)
STALE = frozenset({("linearizability", "stale read")})


class Runs:
    """A test that shows its violation with probability 0.8 while the pause is there and begins after 3.8 s."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rng, self.made = folder, Random(1), 0

    def __call__(self, candidate: ShrinkCandidate) -> tuple[bool, str]:
        self.made += 1
        run = self.folder / str(self.made)
        run.mkdir()
        pause = next((card for card in candidate.schedule.cards if card.kind == "pause"), None)
        shown = pause is not None and pause.at_s > 3.8 and self.rng.random() < 0.8
        witness = (Witness("stale read", "an old value"),) if shown else ()
        verdict = Verdict(Validity.INVALID if shown else Validity.VALID, {"operations": 9}, witnesses=witness)
        write_results(run, results_of({"linearizability": verdict}))
        return shown, str(run)


def test_each_fault_is_left_out_and_moved_and_the_rest_stays_a_schedule() -> None:
    tried = variants(ORIGINAL, 0.5)
    names = ("the packets of leader-heard-late", "the pause of leader", "the kill of one")
    moved = [(f"without {name}", f"{name} 0.5 s earlier", f"{name} 0.5 s later") for name in names]
    assert list(tried) == [WHOLE, *(words for each in moved for words in each)]
    for candidate in tried.values():
        parse_schedule(schedule_json(candidate.schedule.cards))
    without = tried["without the pause of leader"].schedule.cards
    assert [(card.number, card.until) for card in without] == [(1, ""), (3, "")]
    assert min(card.at_s for card in tried["the kill of one 0.5 s earlier"].schedule.cards) == 0


def test_what_a_violation_needs_is_told_from_what_it_does_not(tmp_path: Path) -> None:
    runs, log = Runs(tmp_path), TrialLog(tmp_path / "tried.json")
    limits = Limits(1, 12, wanted=STALE)
    found = {one.words: one for one in attribute(ORIGINAL, 0.5, runs, limits, log, lambda line: None)}
    assert found["without the pause of leader"].line() == "without the pause of leader: 0 of 12 (0 to 26 %): it matters"
    assert found["the pause of leader 0.5 s earlier"].verdict == "it matters"
    assert found["without the kill of one"].verdict == "no difference seen"
    made = runs.made
    again = attribute(ORIGINAL, 0.5, runs, limits, TrialLog.read(tmp_path / "tried.json"), lambda line: None)
    assert (runs.made, again) == (made, list(found.values())), "what was tried before counts"
    keep(tmp_path, again)
    assert json.loads((tmp_path / ATTRIBUTION).read_text())["variants"][0]["line"].startswith("all faults: ")


@pytest.mark.parametrize(
    ("shown", "runs", "expected"), [(0, 12, (0, 0.265)), (9, 12, (0.428, 0.945)), (5, 5, (0.478, 1)), (0, 0, (0, 1))]
)
def test_bounds_are_those_of_tables(shown: int, runs: int, expected: tuple[float, float]) -> None:
    assert bounds(shown, runs) == pytest.approx(expected, abs=0.001)


def test_what_lies_between_is_undecided() -> None:
    _, other = judged([(WHOLE, 9, 12), ("without x", 4, 12)])
    assert other.verdict == "undecided"
