"""The last entries of a run: outcome.json, and the end of the ledger, which counts what there is of the run."""

from __future__ import annotations

from harness.backends.backend import Exit
from harness.run.context import RunContext
from harness.run.watching.deaths import deaths
from harness.run.watching.rate_outside_faults import achieved_rate_hz


def write_outcome(run: RunContext) -> None:
    """Gather what only the end of a run shows, and write outcome.json."""
    outcome, subject = run.outcome, run.subject

    def last_words(end: Exit) -> str:
        return subject.last_words(run.folder.root / "nodes" / end.node, end.pid)

    outcome.achieved_rate_hz = _achieved_rate_hz(run)
    outcome.doubts = list(subject.doubts)
    outcome.loop_late_ms = run.watch.lateness()
    outcome.longest_copy_stop_s = round(run.copies.longest_stop_s, 3)
    complaints = subject.complaints(run.folder.root)
    outcome.deaths = deaths(run.backend.exits(), complaints, run.recorder.started_monotonic_ns, last_words)
    run.folder.write_json("outcome.json", outcome.to_json())


def close_the_ledger(run: RunContext) -> None:
    """Enter the end of the history, and what there must be of the run besides."""
    run.recorder.end(
        {
            "phases": len(run.outcome.phases),
            "faults": len(run.records),
            "copies": len(run.copies.index()),
            "final_reads": sum(why == "ok" for why in run.outcome.final_reads.values()),
        }
    )


def _achieved_rate_hz(run: RunContext) -> float | None:
    main = next((p for p in run.outcome.phases if p.name == "main" and p.end_ns >= 0), None)
    if main is None:
        return None
    run.recorder.flush()
    return achieved_rate_hz(run.folder.root, main.start_ns, main.end_ns, run.records.values())
