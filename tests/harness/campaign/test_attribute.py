"""Attribution by trial: what is run, what is counted, and the bounds."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from checkers.base.results import ATTRIBUTION, write_results
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.judging.pipeline import results_of
from checkers.record.faults import Card
from harness.campaign.shrink import WHOLE, Limits, ShrinkCandidate, TrialLog, attribute, bounds, judged, keep, variants
from nemesis.deck import Schedule, parse_schedule, schedule_json

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
    assert list(tried) == [
        WHOLE,
        *(f"without the {name}" for name in ("packets of leader-heard-late",)),
        "the packets of leader-heard-late 0.5 s earlier",
        "the packets of leader-heard-late 0.5 s later",
        "without the pause of leader",
        "the pause of leader 0.5 s earlier",
        "the pause of leader 0.5 s later",
        "without the kill of one",
        "the kill of one 0.5 s earlier",
        "the kill of one 0.5 s later",
    ]
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
