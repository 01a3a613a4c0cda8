"""A run whose harness was killed, and one whose system never became ready: one plain sentence each."""

from __future__ import annotations

from pathlib import Path

from canary_run import canary_run

from checkers.base.results import Results, RunVerdict, as_object
from checkers.record.journal import JOURNAL
from checkers.sealing.walk import history_batches
from harness.judge.judge_run import _note_set_up_failure, judge
from harness.story.headline import verdict_in_words
from tests.support.results_of_runs import results_in


def silent(_: str) -> None:
    """Drops the progress."""


def test_a_killed_harness_is_told_in_one_sentence(tmp_path: Path) -> None:
    """What SIGKILL leaves: a stream without its last rows, a journal with half a line, and no manifest."""
    import pyarrow as pa

    root = canary_run(tmp_path / "results")
    rows = pa.Table.from_batches(list(history_batches(root)))
    kept = rows.slice(0, len(rows) - 4)
    with pa.ipc.new_stream(str(root / "history.arrows"), kept.schema) as writer:
        writer.write_table(kept)
    lines = (root / JOURNAL).read_text().splitlines(keepends=True)
    (root / JOURNAL).write_text("".join(lines[:-2]) + lines[-2][:40])
    (root / "manifest.json").unlink()
    results = as_object(judge(root, None, silent, report=False))
    assert (results["verdict"], results["exit_code"]) == ("unknown", 2)
    evidence, vacuity = results["checkers"]["evidence"], results["checkers"]["vacuity"]
    assert evidence["reason"] == (
        "the harness was ended before the run was over: its last records are missing, and nothing confirms them"
    )
    assert vacuity["reason"] == "the harness did not come to its end"
    assert "None" not in verdict_in_words(results_in(results), None)


def test_a_system_that_never_became_ready_is_unknown_and_no_failure_of_the_harness() -> None:
    results = _note_set_up_failure(Results(RunVerdict.VALID, exit_code=0), "the server of n1 is dead")
    assert (results.verdict, results.exit_code) == (RunVerdict.UNKNOWN, 2)
    words = "No test took place: the system never became ready: the server of n1 is dead."
    assert verdict_in_words(results, None) == words
    invalid = Results(RunVerdict.INVALID, exit_code=1)
    assert _note_set_up_failure(invalid, "the server of n1 is dead") == invalid
