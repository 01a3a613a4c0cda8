"""Notes beside the verdict."""

from __future__ import annotations

import pytest

from checkers.record.outcome import Phase, ProcessorSums, RunOutcome
from harness.story.headline import REFUSED_MIN, notes
from tests.support.results_of_runs import results_in


@pytest.mark.parametrize("refused", [0, REFUSED_MIN - 1, REFUSED_MIN])
def test_a_client_that_connects_late_is_reported(refused: int) -> None:
    results = {"checkers": {"statistics": {"details": {"refused_connections": refused}}}}
    found = [note for note in notes(results_in(results), RunOutcome()) if "connect in `open`" in note]
    assert len(found) == (refused >= REFUSED_MIN)


@pytest.mark.parametrize("forwards", [False, True])
def test_where_servers_pass_requests_on_the_one_that_answered_is_not_blamed(forwards: bool) -> None:
    witness = {"kind": "stale read", "summary": "it is old", "events": [{"index": 1, "node": "n2"}], "facts": {}}
    results = {"checkers": {"linearizability": {"verdict": "invalid", "witness": [witness]}}}
    found = notes(results_in(results), RunOutcome(declares={"forwards": forwards}))
    assert any("may be the mistake of the leader" in note for note in found) is forwards


def test_a_busy_machine_is_named_with_what_it_means_for_the_verdict() -> None:
    sums = ProcessorSums(0, 0.0), ProcessorSums(10**9, 0.9)
    outcome = RunOutcome(processor={"n1": sums}, phases=(Phase("main", 0, 10**9),))
    (note,) = notes(results_in({}), outcome)
    assert note.startswith("The machine was busy: processes waited for a processor for 90% of the time.")
    assert note.endswith("makes no right answer wrong: if it kept the run from testing enough, the verdict is unknown.")
