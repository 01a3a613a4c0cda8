"""Notes beside the verdict."""

from __future__ import annotations

import pytest

from checkers.record.outcome import RunOutcome
from harness.story.headline import REFUSED_MIN, notes
from tests.support.results_of_runs import results_in


@pytest.mark.parametrize("refused", [0, REFUSED_MIN - 1, REFUSED_MIN])
def test_a_client_that_connects_late_is_reported(refused: int) -> None:
    results = {"checkers": {"statistics": {"details": {"refused_connections": refused}}}}
    found = [note for note in notes(results_in(results), RunOutcome()) if "connect in `open`" in note]
    assert len(found) == (refused >= REFUSED_MIN)
