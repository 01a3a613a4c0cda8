"""Mutation check: one verdict-relevant row of a clean run is flipped, and the verdict must turn invalid.

The rows are those that `krucible mutate` falsifies in a stored run; here runs of a toy quorum are falsified.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from toy_quorum import random_run

from checkers import judging
from checkers.base.verdict import Validity

SOME = ("history-against-log", "committed-never-lost", "log-matching", "election-safety", "vote-once", "monotonicity")
OF_ANSWERS = {"answer_never_written", "answer_from_the_past", "leader_that_began_with_nothing"}
"""Other checkers find these: answers of clients, and what a leader began with."""


@pytest.mark.parametrize("name", [name for name in judging.MUTATIONS if name not in OF_ANSWERS])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 30))])
def test_a_relevant_row_flipped_is_noticed(name: str, seed: int, tmp_path: Path) -> None:
    evidence = random_run(seed).evidence()
    rows = judging.Evidence(evidence.history, evidence.logs, evidence.traces, evidence.copies)
    if judging.MUTATIONS[name](rows, Random(seed)) is None:
        pytest.skip("one node led all epochs")
    verdicts = evidence.judge(tmp_path, *SOME, "state-machine-safety")
    assert Validity.INVALID in {v.validity for v in verdicts.values()}
