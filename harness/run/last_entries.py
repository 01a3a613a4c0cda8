"""The last entries of a run: outcome.json, and the end of the ledger, which counts what there is of the run."""

from __future__ import annotations

from dataclasses import replace

from checkers.record.reading import OUTCOME
from checkers.record.writing import as_json
from harness.backends.backend import Exit
from harness.run.context import RunContext
from harness.run.watching.deaths import deaths
from harness.run.watching.rate_outside_faults import achieved_rate_hz


def write_outcome(run: RunContext) -> None:
    """Gather what only the end of a run shows, and write outcome.json."""
    watch, subject = run.watch, run.subject

    def last_words(end: Exit) -> str:
        return subject.last_words(run.folder.root / "nodes" / end.node, end.pid)

    complaints = subject.complaints(run.folder.root)
    run.outcome = replace(
        run.outcome,
        achieved_rate_hz=_achieved_rate_hz(run),
        loop_stalls=tuple(watch.stalls),
        loop_late_ms=watch.lateness(),
        longest_copy_stop_s=round(run.copies.longest_stop_s, 3),
        processor={node: tuple(samples) for node, samples in watch.processor.items()},
        deaths=deaths(run.backend.exits(), complaints, run.recorder.started_monotonic_ns, last_words),
        leaders=tuple(watch.leaders),
        reports=tuple(watch.reports),
        online=run.online.record if run.online is not None else None,
    )
    run.folder.write_json(OUTCOME, as_json(run.outcome))


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
    main = run.outcome.phase("main")
    if main is None or main.end_ns < 0:
        return None
    run.recorder.flush()
    return achieved_rate_hz(run.folder.root, main.start_ns, main.end_ns, run.records.values())
